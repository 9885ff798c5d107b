#include "device/cuda/kernel_compiler.hpp"

#include <unimem/core/error.hpp>

#include "device/cuda/prelude.cuda.hpp"
#include "device/fast_math.hpp"
#include "device/group_words.hpp"
#include "device/source_kernels.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

namespace unimem::detail::cuda {
namespace {

/// One compilation by NVRTC.
class Compilation {
 public:
  Compilation(Nvrtc const& nvrtc, std::string const& text, std::string const& name) : nvrtc_(nvrtc) {
    check(nvrtc_, nvrtc_.nvrtcCreateProgram(&program_, text.c_str(), name.c_str(), 0, nullptr, nullptr),
          "nvrtcCreateProgram");
  }
  Compilation(Compilation const&) = delete;
  Compilation& operator=(Compilation const&) = delete;
  ~Compilation() { static_cast<void>(nvrtc_.nvrtcDestroyProgram(&program_)); }

  /// The compiler's name of what `expression` stands for can be asked for afterwards.
  void name(std::string const& expression) {
    check(nvrtc_, nvrtc_.nvrtcAddNameExpression(program_, expression.c_str()), "nvrtcAddNameExpression");
  }

  [[nodiscard]] NvrtcResult run(std::vector<std::string> const& options) {
    std::vector<char const*> list(options.size());
    std::ranges::transform(options, list.begin(), &std::string::c_str);
    return nvrtc_.nvrtcCompileProgram(program_, static_cast<int>(list.size()), list.data());
  }

  [[nodiscard]] std::string lowered(std::string const& expression) const {
    char const* result = nullptr;
    check(nvrtc_, nvrtc_.nvrtcGetLoweredName(program_, expression.c_str(), &result), "nvrtcGetLoweredName");
    return result;
  }

  [[nodiscard]] std::string log() const {
    std::size_t size = 0;
    if (nvrtc_.nvrtcGetProgramLogSize(program_, &size) != NvrtcResult::success || size == 0) return {};
    std::string text(size, '\0');
    if (nvrtc_.nvrtcGetProgramLog(program_, text.data()) != NvrtcResult::success) return {};
    text.resize(std::min(text.find('\0'), text.size()));
    while (!text.empty() && text.back() == '\n') text.pop_back();
    return text;
  }

  /// What was made: machine code if the compiler made any, else PTX.
  [[nodiscard]] std::string image() const {
    std::size_t size = 0;
    check(nvrtc_, nvrtc_.nvrtcGetCUBINSize(program_, &size), "nvrtcGetCUBINSize");
    if (size != 0) {
      std::string cubin(size, '\0');
      check(nvrtc_, nvrtc_.nvrtcGetCUBIN(program_, cubin.data()), "nvrtcGetCUBIN");
      return cubin;
    }
    check(nvrtc_, nvrtc_.nvrtcGetPTXSize(program_, &size), "nvrtcGetPTXSize");
    std::string ptx(size, '\0');
    check(nvrtc_, nvrtc_.nvrtcGetPTX(program_, ptx.data()), "nvrtcGetPTX");
    return ptx;
  }

 private:
  Nvrtc const& nvrtc_;
  NvrtcProgram program_ = nullptr;
};

/// What NVRTC is asked for: machine code of just this architecture, or, for one newer than the compiler, the newest
/// PTX that the driver can make it from.
std::string architecture_option(LoadedNvrtc const& nvrtc, int architecture, std::string_view device_id) {
  auto const& known = nvrtc.architectures;
  auto const above = std::ranges::upper_bound(known, architecture);
  if (above == known.begin()) {
    throw UnsupportedOperation(
        "compiling kernels", std::string(device_id),
        fmt::format("NVRTC {}.{} makes code for sm_{} at the least, and the device is sm_{}", nvrtc.version / 1000,
                    nvrtc.version % 1000 / 10, known.front(), architecture));
  }
  auto const nearest = *(above - 1);
  return fmt::format("--gpu-architecture={}_{}", nearest == architecture ? "sm" : "compute", nearest);
}

/// What is compiled, and how, apart from the architecture.
struct Task {
  std::string text;
  std::string entry;      ///< an expression that names the entry
  std::string signature;  ///< an expression whose name tells the entry's parameters
  std::vector<std::string> options;
  bool portable = false;
  std::string asks_group_by;
};

Task task_for(ProgramSource const& source, SourceKernels const& kernels) {
  Task task;
  task.portable = kernels.is_portable(source.name);
  task.options = {"--std=c++17"};
  if (task.portable) {
    task.asks_group_by = find_word(source.source, source.name, group_words);
    if (!task.asks_group_by.empty()) {
      task.text = "#define UNIMEM_GROUPED 1\n";
    } else if (!find_word(source.source, source.name, range_words).empty()) {
      task.text = "#define UNIMEM_KEEPS_RANGE 1\n";
    }
  }
  task.text += prelude;
  if (calls_group_functions(source.source)) task.text.append(group_tree).append(group_functions);
  bool const is_fast = asks_fast_math(source.source);
  if (is_fast) task.options.emplace_back("--use_fast_math");
  if (task.portable) {
    // Each operation rounds by itself, as on the host; a plain source is compiled as other programs would.
    for (auto const* option : {"--fmad=false", "--prec-div=true", "--prec-sqrt=true", "--ftz=false"}) {
      if (!is_fast) task.options.emplace_back(option);
    }
    task.text.append(portable_begin).append(source.source).append(portable_end);
    auto const body = "unimem_source::" + source.name;
    task.entry = fmt::format("unimem_entry<{0}>({0})", body);
    task.signature = fmt::format("unimem_signature_of<decltype({})>()", body);
  } else {
    task.text.append(plain_begin).append(source.source);
    task.entry = source.name;
    task.signature = fmt::format("unimem_signature_of<decltype({})>()", source.name);
  }
  return task;
}

void refuse_what_cannot_be_compiled(ProgramSource const& source, std::string_view device_id) {
  if (source.source.empty()) {
    throw KernelError(source.name, fmt::format("has no source form, which {} needs", device_id));
  }
  // The compiler would take what stands before it for the whole.
  if (auto const zero = source.source.find('\0'); zero != std::string::npos) {
    throw KernelError(source.name, fmt::format("the source has a zero byte at {}", zero));
  }
}

/// A portable kernel runs in blocks of the library's making, so it must not ask for its block.
void refuse_blocks(ProgramSource const& source) {
  constexpr std::array<std::string_view, 12> words{"__shared__",        "__syncthreads",    "__syncthreads_count",
                                                   "__syncthreads_and", "__syncthreads_or", "__syncwarp",
                                                   "threadIdx",         "blockIdx",         "blockDim",
                                                   "gridDim",           "__shfl_sync",      "__shfl_down_sync"};
  auto const word = find_word(source.source, source.name, words);
  if (word.empty()) return;
  throw KernelError(source.name, fmt::format("uses {}: the portable form runs in blocks of the library's choice. Use "
                                             "the portable names (UNIMEM_LOCAL_X, UNIMEM_SHARED, UNIMEM_BARRIER), or "
                                             "write it as plain CUDA C++",
                                             word));
}

CompiledKernel compile_now(Nvrtc const& nvrtc, Task const& task, ProgramSource const& source,
                           SourceKernels const& kernels, std::string_view device_id) {
  Compilation compilation{nvrtc, task.text, source.name};
  compilation.name(task.entry);
  compilation.name(task.signature);
  auto const code = compilation.run(task.options);
  if (code != NvrtcResult::success) {
    auto log = compilation.log();
    if (!kernels.has(source.name)) {
      // Without the expressions that name the entry, what is left to complain of is the source itself.
      Compilation without{nvrtc, task.text, source.name};
      if (without.run(task.options) == NvrtcResult::success) {
        auto const names = kernels.names();
        throw KernelError(source.name, names.empty()
                                           ? "the source defines no kernel"
                                           : fmt::format("the source has no such entry; it defines {}", names));
      }
      log = without.log();
    }
    throw KernelError(source.name, fmt::format("does not build on {} ({})", device_id, code_name(nvrtc, code)), log);
  }
  auto parameters = parameters_in(compilation.lowered(task.signature));
  if (!parameters) throw KernelError(source.name, "the compiler does not tell its parameters");
  return {compilation.image(), compilation.lowered(task.entry), std::move(*parameters), task.portable};
}

/// As the cache holds it: the form, the code of each parameter, and the entry's name, each on a line of its
/// own, and the image.
std::string as_bytes(CompiledKernel const& kernel) {
  std::string bytes = kernel.portable ? "portable\n" : "plain\n";
  for (auto const& parameter : kernel.parameters) bytes += fmt::format("{} ", code_of(parameter));
  return bytes + '\n' + kernel.entry + '\n' + kernel.image;
}

std::optional<CompiledKernel> from_bytes(std::string_view bytes) {
  auto const line = [&] {
    auto const end = std::min(bytes.find('\n'), bytes.size());
    auto const text = bytes.substr(0, end);
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
    return text;
  };
  CompiledKernel kernel;
  kernel.portable = line() == "portable";
  auto numbers = line();
  while (!numbers.empty()) {
    std::uint64_t code = 0;
    auto const end = std::from_chars(numbers.data(), numbers.data() + numbers.size(), code).ptr;
    auto const parameter = parameter_from(code);
    if (!parameter) return std::nullopt;
    kernel.parameters.push_back(*parameter);
    numbers.remove_prefix(std::min(static_cast<std::size_t>(end - numbers.data()) + 1, numbers.size()));
  }
  kernel.entry = line();
  kernel.image = bytes;
  if (kernel.entry.empty() || kernel.image.empty()) return std::nullopt;
  return kernel;
}

}  // namespace

KernelCompiler::KernelCompiler(int driver_version, KernelCache cache)
    : driver_version_(driver_version), cache_(std::move(cache)) {}

KernelCompiler::KernelCompiler(LoadedNvrtc nvrtc, int driver_version, KernelCache cache)
    : driver_version_(driver_version),
      cache_(std::move(cache)),
      given_(std::make_unique<LoadedNvrtc const>(std::move(nvrtc))) {}

LoadedNvrtc const& KernelCompiler::loaded_for(int architecture) const {
  if (given_) return *given_;
  std::lock_guard const lock{mutex_};
  auto& found = by_architecture_[architecture];
  if (!found) {
    found = std::make_unique<LoadedNvrtc const>(load_nvrtc(driver_version_, toolkit_folders(), architecture));
  }
  return *found;
}

CompiledKernel KernelCompiler::compile(ProgramSource const& source, int architecture,
                                       std::string_view device_id) const {
  refuse_what_cannot_be_compiled(source, device_id);
  auto const& nvrtc = loaded_for(architecture);
  if (!nvrtc.problem.empty()) {
    throw UnsupportedOperation("compiling kernels", std::string(device_id), nvrtc.problem);
  }
  auto const kernels = kernels_in(source.source);
  auto task = task_for(source, kernels);
  if (task.portable) refuse_blocks(source);
  task.options.push_back(architecture_option(nvrtc, architecture, device_id));
  auto const key = fmt::format("NVRTC {}\ndriver {}\noptions {}\nentry {}\n{}", nvrtc.version, driver_version_,
                               fmt::join(task.options, " "), task.entry, task.text);
  auto const kept = cache_.find(key);
  auto kernel = kept ? from_bytes(*kept) : std::nullopt;
  if (!kernel) {
    kernel = compile_now(nvrtc.nvrtc, task, source, kernels, device_id);
    // NOLINTNEXTLINE(bugprone-unused-return-value): what is not kept is compiled again
    static_cast<void>(cache_.keep(key, as_bytes(*kernel)));
  }
  kernel->compiler = fmt::format("NVRTC {}.{}", nvrtc.version / 1000, nvrtc.version % 1000 / 10);
  return *std::move(kernel);
}

}  // namespace unimem::detail::cuda
