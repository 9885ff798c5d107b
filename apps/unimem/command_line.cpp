#include "command_line.hpp"

#include <unimem/core/build.hpp>
#include <unimem/core/error.hpp>
#include <unimem/core/size.hpp>
#include <unimem/stream/stream_kernel.hpp>

#include <fmt/format.h>
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

namespace unimem::cli {
namespace {

constexpr std::string_view commands = "devices, run, replay, bench, ps, version";
constexpr std::string_view kernels = "histogram, statistics, affine";
constexpr std::array all_benchmarks{Benchmark::allocation, Benchmark::transfer, Benchmark::coherence,
                                    Benchmark::launch,     Benchmark::stream,   Benchmark::eviction};
constexpr std::size_t most_buffers = 1024;
constexpr unsigned most_retries = 1000;
/// What `-` stands for: opening it reads what standard input is, by the same rules as any file or pipe.
constexpr auto standard_input = "/dev/stdin";

/// The value of an option as the user wrote it; nothing when it was not given. CLI11 is asked for texts only: its own
/// conversions know neither units nor what an unusable value should be called.
std::optional<std::string> value_of(CLI::Option const* option) {
  auto const& values = option->results();
  if (values.empty()) return std::nullopt;
  if (values.size() > 1) {
    throw UsageError(fmt::format("{} is given more than once: '{}', '{}'", option->get_name(), values[0], values[1]));
  }
  return values.front();
}

[[noreturn]] void refuse(std::string_view option, std::string_view value, std::string_view requirement) {
  throw UsageError(fmt::format("invalid {} '{}': must be {}", option, value, requirement));
}

std::optional<std::size_t> size_of(CLI::Option const* option) {
  auto const text = value_of(option);
  if (!text) return std::nullopt;
  auto const name = option->get_name();
  std::uint64_t bytes = 0;
  try {
    bytes = parse_size(*text, name);
  } catch (InvalidArgument const& error) {
    throw UsageError(error.what());
  }
  // Files and addresses are counted in signed 64-bit numbers underneath.
  constexpr auto most = static_cast<std::uint64_t>(std::numeric_limits<std::ptrdiff_t>::max());
  if (bytes == 0) refuse(name, *text, "greater than zero");
  if (bytes > most) refuse(name, *text, "below 8 EiB");
  return bytes;
}

template <class Count>
std::optional<Count> count_of(CLI::Option const* option, Count least, Count most) {
  auto const text = value_of(option);
  if (!text) return std::nullopt;
  Count count = 0;
  auto const [end, error] = std::from_chars(text->data(), text->data() + text->size(), count);
  if (error != std::errc{} || end != text->data() + text->size() || count < least || count > most) {
    refuse(option->get_name(), *text, fmt::format("a whole number from {} to {}", least, most));
  }
  return count;
}

std::optional<Checksum> checksum_of(CLI::Option const* option) {
  auto const text = value_of(option);
  if (!text) return std::nullopt;
  try {
    return parse_checksum(*text);
  } catch (InvalidArgument const& error) {
    throw UsageError(fmt::format("invalid {} '{}': must be {}", option->get_name(), *text, error.requirement));
  }
}

std::optional<double> number_of(CLI::Option const* option) {
  auto const text = value_of(option);
  if (!text) return std::nullopt;
  double value = 0;
  auto const [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc{} || end != text->data() + text->size() || !std::isfinite(value)) {
    refuse(option->get_name(), *text, "a finite number such as 2, -0.5 or 1e-3");
  }
  return value;
}

std::optional<ElementType> element_of(CLI::Option const* option) {
  auto const text = value_of(option);
  if (!text) return std::nullopt;
  try {
    return parse_element_type(*text);
  } catch (InvalidArgument const& error) {
    throw UsageError(fmt::format("invalid {} '{}': must be {}", option->get_name(), *text, error.requirement));
  }
}

FileAccess access_of(CLI::Option const* option) {
  auto const text = value_of(option).value_or("auto");
  if (text == "auto") return FileAccess::automatic;
  if (text == "on") return FileAccess::direct;
  if (text == "off") return FileAccess::cached;
  refuse(option->get_name(), text, "auto, on or off");
}

std::optional<SourceKernel::Reduction> reduction_of(CLI::Option const* option) {
  auto const text = value_of(option);
  if (!text) return std::nullopt;
  auto const star = text->find('*');
  std::size_t count = 0;
  auto const digits = star == std::string::npos ? std::string_view() : std::string_view(*text).substr(star + 1);
  auto const [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), count);
  bool const counts = error == std::errc{} && !digits.empty() && end == digits.data() + digits.size();
  try {
    if (counts && count >= 1 && count <= most_reduced) {
      return SourceKernel::Reduction{parse_element_type(text->substr(0, star)), count};
    }
  } catch (InvalidArgument const&) {  // NOLINT(bugprone-empty-catch): said below, with all of the text
  }
  refuse(option->get_name(), *text, fmt::format("such as u64*256: a type of --dtype, and 1 to {}", most_reduced));
}

/// A text that must not be empty: a file, an id, a name.
std::optional<std::string> text_of(CLI::Option const* option) {
  auto text = value_of(option);
  if (text && text->empty()) refuse(option->get_name(), *text, "a name");
  return text;
}

/// A file to write. The answer goes to standard output, where its bytes would stand among them.
std::string file_of(CLI::Option const* option) {
  auto text = text_of(option).value_or("");
  if (text == "-") refuse(option->get_name(), text, "a file, not standard output; ./- is one that is called so");
  return text;
}

/// An option or, without dashes in its name, an argument: CLI11 hands over the texts it was given.
CLI::Option* add_text(CLI::App& command, std::string const& name, std::string const& type,
                      std::string const& description) {
  return command.add_option(name, CLI::callback_t{}, description)
      ->type_name(type)
      ->type_size(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

/// `unimem run` and its options, from declaration to RunCommand.
class RunOptions {
 public:
  explicit RunOptions(CLI::App& app)
      : command_(app.add_subcommand("run", "Stream files through a device, chunk by chunk, and compute on them")) {
    files_ =
        option("FILE", "",
               "The input: raw elements, a .npy file, FILE#NAME, an array of a .npz or .safetensors, a pipe, or - for "
               "standard input; several are taken as one")
            ->expected(1, std::numeric_limits<int>::max())
            ->allow_extra_args();
    kernel_ = option("--kernel", "NAME", "histogram (of bytes, with entropy), statistics, or affine: y = A x + B");
    source_ = option("--source", "K.cl", "Instead of --kernel: the file of a kernel (in, out, count), see below");
    entry_ = option("--entry", "NAME", "The kernel's name in that file");
    reduce_ = option("--reduce", "TYPE*N",
                     "Of --source: its kernel (in, result, count, lanes, first) accumulates into N elements of TYPE");
    dtype_ = option("--dtype", "TYPE", "u8 i8 u16 i16 u32 i32 u64 i64 f32 f64 (default: what the file says, else u8)");
    scale_ = option("--scale", "A", "Of affine (default: 1)");
    offset_ = option("--offset", "B", "Of affine (default: 0)");
    output_ = option("--output", "OUT", "Where the new elements go; a name ending in .npy gets a header");
    device_ =
        option("--device", "ID",
               "cpu, opencl:0, sim:memory=1GiB, ... (default: UNIMEM_DEVICE, else the best there is; with --source, "
               "the best that compiles source)");
    chunk_ = option("--chunk", "SIZE",
                    "Bytes moved and computed at a time (default: 64MiB, or less to fit the memory there may be)");
    buffers_ = option("--buffers", "N", "Chunks under way at once (default: 3)");
    limit_ =
        option("--memory-limit", "SIZE", "Bound on device memory; with --chunk, room for fewer buffers uses fewer");
    checksum_ = option("--checksum", "NAME", "A checksum of every chunk of each file: xxh3 or crc32c");
    manifest_ = option("--manifest", "M.json", "Where the checksums go (default of --checksum: xxh3)");
    verify_ = option("--verify", "M.json", "A manifest that the files are compared with while they are read");
    retries_ = option("--retries", "N", "Times that a read which fails is tried again (default: 5)");
    command_->add_flag("--resume", resume_,
                       "Go on with an --output that was interrupted; until it is complete, OUT.unimem-part and "
                       "OUT.unimem-journal stay beside it");
    direct_ = option("--direct", "auto|on|off",
                     "Read the file past the page cache: what is not there, all, or nothing (default: auto)");
    command_->add_flag("--no-progress", no_progress_, "No progress bar on the terminal");
    command_->add_flag("--json", json_, "One JSON object on standard output");
    command_->footer(
        "A kernel of --source runs once for each element of a chunk, which are of --dtype; for f32, and --entry mine:\n"
        "  UNIMEM_KERNEL mine(UNIMEM_CONST_BUFFER(unimem_f32, in), UNIMEM_BUFFER(unimem_f32, out), unimem_u64 count) "
        "{\n"
        "    UNIMEM_DATA(unimem_f32, out)[UNIMEM_ITEM_X] = 2 * UNIMEM_DATA(const unimem_f32, in)[UNIMEM_ITEM_X];\n"
        "  }\n"
        "With --reduce u64*256 it runs once for each of the 256 elements of the result, and accumulates into its own:\n"
        "  UNIMEM_KERNEL mine(UNIMEM_CONST_BUFFER(unimem_f32, in), UNIMEM_BUFFER(unimem_u64, result), unimem_u64 "
        "count,\n"
        "                     unimem_u64 lanes, unimem_u64 first) {\n"
        "    for (unimem_u64 i = UNIMEM_ITEM_X; i < count; i += lanes)\n"
        "      UNIMEM_DATA(unimem_u64, result)[UNIMEM_ITEM_X] += UNIMEM_DATA(const unimem_f32, in)[i] > 0;\n"
        "  }\n"
        "The first as plain OpenCL C:  __kernel void mine(__global const float* in, __global float* out, ulong count)\n"
        "Sizes read 4096, 64KiB, 1.5GiB, 12GB. Exit code 2: the command line is wrong; 1: the work failed;\n"
        "130, 143: stopped by Ctrl-C or SIGTERM. An output file appears only when it is complete.");
  }

  [[nodiscard]] bool chosen() const { return command_->parsed(); }

  /// So that the help says so; CLI11 itself is not to check it (see refuse_leftovers).
  void mark_what_is_required() { files_->required(); }

  [[nodiscard]] RunCommand command() const {
    if (files_->count() == 0) throw UsageError("run needs a FILE");
    RunCommand run;
    for (auto const& file : files_->results()) {
      if (file.empty()) refuse("FILE", file, "a name");
      run.files.emplace_back(file == "-" ? standard_input : file);
    }
    run.element = element_of(dtype_);
    run.output = file_of(output_);
    run.device = text_of(device_);
    run.chunk_bytes = size_of(chunk_);
    run.buffers = count_of<std::size_t>(buffers_, 1, most_buffers);
    run.memory_limit = size_of(limit_);
    run.checksum = checksum_of(checksum_);
    run.manifest = file_of(manifest_);
    run.verify = text_of(verify_).value_or("");
    run.retries = count_of<unsigned>(retries_, 0, most_retries);
    run.resume = resume_;
    run.access = access_of(direct_);
    run.progress = !no_progress_;
    run.json = json_;
    choose_kernel(run);
    check_output(run);
    check_chunk(run);
    return run;
  }

 private:
  CLI::Option* option(std::string const& name, std::string const& type, std::string const& description) {
    return add_text(*command_, name, type, description);
  }

  /// Sets run.kernel, and refuses what belongs to a kernel that was not asked for: an ignored option is a wrong result
  /// that looks right.
  void choose_kernel(RunCommand& run) const {
    auto const kernel = value_of(kernel_);
    auto const source = text_of(source_);
    auto const entry = text_of(entry_);
    auto const scale = number_of(scale_);
    auto const offset = number_of(offset_);
    if (kernel && source)
      throw UsageError(fmt::format("--kernel {} and --source {} exclude each other", *kernel, *source));
    if (!kernel && !source) throw UsageError(fmt::format("run needs --kernel ({}) or --source with --entry", kernels));
    if (source && !entry) throw UsageError(fmt::format("--source {} needs --entry with the kernel's name", *source));
    if (entry && !source) throw UsageError(fmt::format("--entry {} belongs to --source", *entry));
    auto const reduction = reduction_of(reduce_);
    if (reduction && !source) throw UsageError(fmt::format("--reduce {} belongs to --source", *value_of(reduce_)));

    if (source) {
      run.kernel = SourceKernel{*source, *entry, reduction};
    } else if (*kernel == "histogram") {
      run.kernel = HistogramKernel{};
    } else if (*kernel == "statistics") {
      run.kernel = StatisticsKernel{};
    } else if (*kernel == "affine") {
      run.kernel = AffineKernel{scale.value_or(1), offset.value_or(0)};
      return;
    } else {
      throw UsageError(fmt::format("no kernel '{}': there are {}", *kernel, kernels));
    }
    if (scale) throw UsageError(fmt::format("--scale {} belongs to --kernel affine", *scale));
    if (offset) throw UsageError(fmt::format("--offset {} belongs to --kernel affine", *offset));
  }

  static void check_output(RunCommand const& run) {
    if (run.resume && run.output.empty()) throw UsageError("--resume needs --output");
    if (run.resume && run.files.size() > 1) throw UsageError("--resume goes on with one FILE, not with several");
    auto const* const source = std::get_if<SourceKernel>(&run.kernel);
    if (source != nullptr && source->reduction && !run.output.empty()) {
      throw UsageError(fmt::format("--output {} and --reduce exclude each other: a reduction writes no elements",
                                   run.output.native()));
    }
    bool const reduces =
        std::holds_alternative<HistogramKernel>(run.kernel) || std::holds_alternative<StatisticsKernel>(run.kernel);
    if (reduces && !run.output.empty()) {
      throw UsageError(fmt::format("--output {} belongs to affine and --source: other kernels write no elements",
                                   run.output.native()));
    }
    if (std::holds_alternative<AffineKernel>(run.kernel) && run.output.empty()) {
      throw UsageError("--kernel affine needs --output");
    }
  }

  void check_chunk(RunCommand const& run) const {
    if (!run.chunk_bytes || !run.element || std::holds_alternative<HistogramKernel>(run.kernel)) return;
    auto const size = element_size(*run.element);
    if (*run.chunk_bytes % size != 0) {
      refuse("--chunk", value_of(chunk_).value_or(""),
             fmt::format("a multiple of the {} bytes of {}", size, to_string(*run.element)));
    }
  }

  CLI::App* command_;
  CLI::Option *files_, *kernel_, *source_, *entry_, *dtype_, *scale_, *offset_, *output_, *device_, *chunk_, *buffers_,
      *limit_, *checksum_, *manifest_, *verify_, *retries_, *direct_, *reduce_;
  bool resume_ = false;
  bool no_progress_ = false;
  bool json_ = false;
};

/// `unimem replay` and its options.
class ReplayOptions {
 public:
  explicit ReplayOptions(CLI::App& app)
      : command_(app.add_subcommand("replay", "Run an allocation log through a memory pool and tell what it cost")) {
    trace_ = add_text(*command_, "TRACE.csv", "", "The log: RMM's columns Thread,Time,Action,Pointer,Size,Stream");
    device_ = add_text(*command_, "--device", "ID", "cpu, opencl:0, sim:memory=1GiB, ... (default: cpu)");
    capacity_ = add_text(*command_, "--capacity", "SIZE", "Bound on the pool's memory (default: the device's)");
    command_->add_flag("--json", json_, "One JSON object on standard output");
    command_->footer(
        "Blocks are taken and given back in the order of the log, by as many threads and for as many queues, and "
        "never\n"
        "touched. UNIMEM_LOG=FILE.csv makes a program that uses the library write such a log. Exit code 0 also if the\n"
        "log does not fit: the answer says where; 2: the command line is wrong; 1: the log or the device is.");
  }

  [[nodiscard]] bool chosen() const { return command_->parsed(); }
  void mark_what_is_required() { trace_->required(); }

  [[nodiscard]] ReplayCommand command() const {
    if (trace_->count() == 0) throw UsageError("replay needs a TRACE.csv");
    ReplayCommand replay;
    replay.trace = text_of(trace_).value_or("");
    replay.device = text_of(device_).value_or(replay.device);
    replay.capacity = size_of(capacity_);
    replay.json = json_;
    return replay;
  }

 private:
  CLI::App* command_;
  CLI::Option *trace_, *device_, *capacity_;
  bool json_ = false;
};

/// `unimem bench` and its options.
class BenchOptions {
 public:
  explicit BenchOptions(CLI::App& app)
      : command_(app.add_subcommand("bench", "Measure what the library takes on a device")) {
    only_ = add_text(*command_, "--only", "NAME,...",
                     "Of allocation, transfer, coherence, launch, stream, eviction (default: all)");
    device_ = add_text(*command_, "--device", "ID",
                       "cpu, opencl:0, sim:memory=1GiB, ... (default: UNIMEM_DEVICE, else the best there is)");
    command_->add_flag("--quick", quick_, "Less of everything, in a second or two");
    command_->add_flag("--json", json_, "One JSON object on standard output");
    command_->footer(
        "Each figure is a median of 15 measurements (--quick: 5), beside the least and the most. At most an eighth of\n"
        "the device's free memory is taken at once. No disk is measured: the file that is streamed is in memory.");
  }

  [[nodiscard]] bool chosen() const { return command_->parsed(); }

  [[nodiscard]] BenchCommand command() const {
    BenchCommand bench;
    bench.only = chosen_benchmarks();
    bench.device = text_of(device_);
    bench.quick = quick_;
    bench.json = json_;
    return bench;
  }

 private:
  [[nodiscard]] std::vector<Benchmark> chosen_benchmarks() const {
    std::vector<Benchmark> all{all_benchmarks.begin(), all_benchmarks.end()};
    auto const text = text_of(only_);
    if (!text) return all;
    std::vector<Benchmark> named;
    for (std::size_t begin = 0; begin <= text->size();) {
      auto const end = std::min(text->find(',', begin), text->size());
      auto const name = std::string_view(*text).substr(begin, end - begin);
      auto const found = std::ranges::find(all, name, [](Benchmark one) { return to_string(one); });
      if (found == all.end()) {
        throw UsageError(fmt::format(
            "no benchmark '{}': there are allocation, transfer, coherence, launch, stream, eviction", name));
      }
      named.push_back(*found);
      begin = end + 1;
    }
    std::ranges::sort(named);
    auto const twice = std::ranges::unique(named);
    named.erase(twice.begin(), twice.end());
    return named;
  }

  CLI::App* command_;
  CLI::Option *only_, *device_;
  bool quick_ = false;
  bool json_ = false;
};

/// `--chunk=` would make CLI11 take the next argument for the value, whatever it is.
void refuse_empty_values(int argc, char const* const* argv) {
  for (int i = 1; i < argc; ++i) {
    std::string_view const argument = argv[i];
    if (argument == "--") return;
    if (argument.starts_with("--") && argument.find('=') == argument.size() - 1) {
      throw UsageError(fmt::format("{} has no value after the '='", argument.substr(0, argument.size() - 1)));
    }
  }
}

/// CLI11 would first complain of what is missing; what is there and wrong is the better answer.
void refuse_leftovers(CLI::App const& app) {
  for (auto const& argument : app.remaining(true)) {
    if (argument == "--") continue;
    if (argument.starts_with('-') && argument != "-") throw UsageError(fmt::format("unknown option '{}'", argument));
    if (app.get_subcommands().empty()) {
      throw UsageError(fmt::format("no command '{}': there are {}", argument, commands));
    }
    throw UsageError(fmt::format("unexpected argument '{}'", argument));
  }
}

}  // namespace

std::string_view to_string(Benchmark benchmark) noexcept {
  constexpr std::array<std::string_view, 6> names{"allocation", "transfer", "coherence",
                                                  "launch",     "stream",   "eviction"};
  return names[static_cast<std::size_t>(benchmark)];
}

Command parse_command_line(int argc, char const* const* argv) {
  CLI::App app{"Keeps one logical array coherent between the host and accelerators, and streams files through them.",
               "unimem"};
  app.get_formatter()->column_width(26);
  app.require_subcommand(0, 1);
  app.allow_extras();
  bool asks_version = false, json_version = false;
  app.add_flag("--version", asks_version, "Print the version and exit");
  app.add_flag("--json", json_version, "With --version: what 'unimem version --json' prints");
  app.footer("'unimem COMMAND --help' tells the options of a command.");

  auto* const devices = app.add_subcommand("devices", "List the devices, and the backends that have none");
  DevicesCommand devices_command;
  devices->add_flag("--verbose", devices_command.verbose, "Everything known of each device");
  devices->add_flag("--links", devices_command.links,
                    "How fast bytes travel between them; measured once (tenths of a second a link) and kept");
  devices->add_flag("--json", devices_command.json,
                    "One JSON object on standard output, as whenever that is not a terminal");
  RunOptions run{app};
  ReplayOptions replay{app};
  BenchOptions bench{app};
  auto* const ps = app.add_subcommand("ps", "List the buffers that this user's processes share, and who holds them");
  PsCommand ps_command;
  ps->add_flag("--json", ps_command.json, "One JSON object on standard output");
  ps->footer(
      "Each shared buffer with the processes that hold it, what they read and write just now, what is lost with one\n"
      "that was killed; what was sent and not received; processes that did not answer within two seconds.");
  auto* const version_app = app.add_subcommand("version", "Print the version of the library and how it was built");
  VersionCommand version_command;
  version_app->add_flag("--json", version_command.json, "One JSON object on standard output");
  for (auto* const command : {devices, ps, version_app}) command->allow_extras();
  app.get_subcommand("run")->allow_extras();
  app.get_subcommand("replay")->allow_extras();
  app.get_subcommand("bench")->allow_extras();

  refuse_empty_values(argc, argv);
  try {
    app.parse(argc, argv);
  } catch (CLI::CallForHelp const&) {
    run.mark_what_is_required();
    replay.mark_what_is_required();
    app.require_subcommand(1);
    return PrintText{app.help()};
  } catch (CLI::ParseError const& error) {
    throw UsageError(error.what());
  }
  if (asks_version && json_version) return VersionCommand{.json = true};
  if (asks_version) return PrintText{fmt::format("unimem {}\n", version())};
  refuse_leftovers(app);
  if (json_version) throw UsageError("--json stands behind a command, or with --version");
  if (devices->parsed()) return devices_command;
  if (ps->parsed()) return ps_command;
  if (version_app->parsed()) return version_command;
  if (run.chosen()) return run.command();
  if (replay.chosen()) return replay.command();
  if (bench.chosen()) return bench.command();
  throw UsageError(fmt::format("a command is missing: there are {}", commands));
}

}  // namespace unimem::cli
