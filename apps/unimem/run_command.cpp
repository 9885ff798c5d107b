#include "commands.hpp"
#include "interruption.hpp"
#include "kernel_source.hpp"
#include "named_device.hpp"
#include "progress_bar.hpp"
#include "run_report.hpp"
#include "standard_streams.hpp"
#include "storage_location.hpp"

#include <unimem/core/detail/environment.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/kernel/kernel.hpp>
#include <unimem/manager/memory_manager.hpp>
#include <unimem/stream/stream_file.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <variant>

namespace unimem::cli {
namespace {

/// The default device, unless a user's source is to run, no device was named, and the default one does not compile
/// source: then the first that does. Without one the default device's own refusal is the answer.
Device& device_for(RunCommand const& command) {
  if (command.device) return device_named(*command.device);
  auto& chosen = default_device();
  bool const needs_compiler = std::holds_alternative<SourceKernel>(command.kernel);
  if (!needs_compiler || chosen.info().compiles_source || environment("UNIMEM_DEVICE")) return chosen;
  for (Device& other : devices()) {
    if (other.info().compiles_source) return other;
  }
  return chosen;
}

/// The user's kernel, built: what is wrong with it is said before a file is touched, and what the driver's compiler
/// writes to standard error on its own comes after the reason, with its log.
Kernel built_kernel(SourceKernel const& wanted, Device& device) {
  auto kernel = Kernel(wanted.entry).source(read_kernel_source(wanted.file));
  HeldStandardError held;
  try {
    static_cast<void>(kernel.program(device));
  } catch (KernelError const& error) {
    throw KernelError(error.name, error.reason, error.build_log + held.take());
  }
  return kernel;
}

struct MakeKernel {
  std::optional<ElementType> element;
  Device& device;

  StreamKernel operator()(HistogramKernel) const { return histogram(); }
  StreamKernel operator()(StatisticsKernel) const { return statistics(element); }
  StreamKernel operator()(AffineKernel const& kernel) const { return affine(element, kernel.scale, kernel.offset); }
  StreamKernel operator()(SourceKernel const& kernel) const {
    auto const built = built_kernel(kernel, device);
    if (!kernel.reduction) return mapping(built, element);
    return reducing(built, kernel.reduction->element, kernel.reduction->count, element);
  }
};

bool shows_progress(RunCommand const& command) {
  auto const terminal = environment("TERM");
  return command.progress && standard_error_is_terminal() && terminal != "dumb";
}

/// What is written would replace what is read, whichever name it is given by: that is no work to fail at, but a slip of
/// the pen.
void check_written_are_others(RunCommand const& command) {
  auto const check = [](std::string_view option, std::filesystem::path const& written,
                        std::filesystem::path const& read, std::string_view what) {
    std::error_code unknown;  // opening the files says what is wrong with them
    if (written.empty() || !std::filesystem::equivalent(read, written, unknown)) return;
    throw UsageError(fmt::format("invalid {} '{}': must be another file than the {}", option, written.native(), what));
  };
  for (auto const& file : command.files) check("--output", command.output, file, "input");
  auto const* const source = std::get_if<SourceKernel>(&command.kernel);
  if (source == nullptr) return;
  check("--output", command.output, source->file, "kernel's source");
  check("--manifest", command.manifest, source->file, "kernel's source");
}

/// What the process reports of its memory is the default manager's (UNIMEM_REPORT, UNIMEM_LEAKS), so the work is done
/// in that one, which then holds `--memory-limit` too. The host's memory is not the device's to limit.
MemoryManager& manager_for(RunCommand const& command, Device& device) {
  auto& manager = default_manager();
  bool const limited = command.memory_limit && *command.memory_limit < device.info().total_bytes;
  if (limited && !device.reaches_host_memory()) {
    manager.set_limit(device, storage_location(device), *command.memory_limit);
  }
  return manager;
}

StreamResult stream(RunCommand const& command, std::stop_token const& cancel) {
  auto& device = device_for(command);
  auto const kernel = std::visit(MakeKernel{command.element, device}, command.kernel);
  StreamOptions options;
  options.device = &device;
  options.manager = &manager_for(command, device);
  options.output = command.output;
  options.element = command.element;
  options.cancel = cancel;
  options.access = command.access;
  options.fit_chunk = !command.chunk_bytes;  // one that was asked for stays as it is
  if (command.chunk_bytes) options.chunk_bytes = *command.chunk_bytes;
  if (command.buffers) options.buffers = *command.buffers;
  if (command.memory_limit) options.memory_limit = *command.memory_limit;
  options.checksum = command.checksum;
  options.manifest = command.manifest;
  options.verify = command.verify;
  if (command.retries) options.retries = *command.retries;
  options.resume = command.resume;

  std::optional<ProgressBar> bar;
  if (shows_progress(command)) {
    bar.emplace();
    options.progress = [&bar](std::uint64_t done, std::uint64_t total) { bar->update(done, total); };
  }
  try {
    return stream_files(command.files, kernel, options);
  } catch (InvalidArgument const& error) {
    if (error.argument == "path") {
      throw UsageError(fmt::format(
          "invalid FILE '{}': must be FILE#NAME, one of its arrays, or come with --dtype u8 for its raw bytes",
          error.value));
    }
    // Of the file of FILE#NAME, which only the stream knows to take apart, among others, and of a pipe.
    constexpr std::array<std::string_view, 4> options_of_run{"output", "manifest", "checksum", "resume"};
    if (std::ranges::find(options_of_run, error.argument) == options_of_run.end()) throw;
    throw UsageError(fmt::format("invalid --{} '{}': must be {}", error.argument, error.value, error.requirement));
  }
}

}  // namespace

int run(RunCommand const& command) {
  check_written_are_others(command);
  Interruption const interruption{remove_unfinished_outputs};
  try {
    auto const result = stream(command, interruption.token());
    write_standard_output(command.json ? run_json(result) + '\n' : run_text(result, command));
    return EXIT_SUCCESS;
  } catch (StreamCancelled const& cancelled) {
    complain(fmt::format("unimem: {}: {}", word_for(interruption.signal()), cancelled.what()));
    return exit_code_of(interruption.signal());
  }
}

}  // namespace unimem::cli
