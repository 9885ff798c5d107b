#include "stream/stream_request.hpp"

#include <unimem/core/error.hpp>

#include "manager/read_way.hpp"
#include "stream/output_paths.hpp"
#include "stream/tensor_path.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace unimem::detail {
namespace {

/// What options must be by themselves and for the kernel.
void check_options(StreamOptions const& options, StreamKernel const& kernel) {
  if (!kernel.work()) throw_empty_handle("kernel");
  if (options.buffers == 0) throw InvalidArgument("buffers", "0", "at least 1");
  if (options.resume && options.output.empty()) throw InvalidArgument("resume", "true", "with an output to go on with");
  if (options.chunk_bytes == 0) throw InvalidArgument("chunk_bytes", "0", "at least one element");
  if (!options.output.empty() && !kernel.maps()) {
    throw InvalidArgument("output", options.output.string(), fmt::format("empty: {} has no output", kernel.name()));
  }
  if (kernel.element() && options.element && *kernel.element() != *options.element) {
    throw InvalidArgument("element", std::string(to_string(*options.element)),
                          fmt::format("{}, as the kernel was made for", to_string(*kernel.element())));
  }
}

std::optional<Manifest> manifest_to_verify(StreamOptions const& options) {
  if (options.verify.empty()) return std::nullopt;
  auto manifest = read_manifest(options.verify);
  if (options.checksum && *options.checksum != manifest.checksum) {
    throw InvalidArgument("checksum", std::string(to_string(*options.checksum)),
                          fmt::format("{}, which '{}' has", to_string(manifest.checksum), options.verify.string()));
  }
  return manifest;
}

/// What the input is compared with, if there are paths and the options make sense.
std::optional<Manifest> accept(std::span<const std::filesystem::path> paths, StreamKernel const& kernel,
                               StreamOptions const& options) {
  if (paths.empty()) throw InvalidArgument("paths", "none", "at least one file");
  check_options(options, kernel);
  return manifest_to_verify(options);
}

/// The files that are written, and which option says so. Throws InvalidArgument where two are one.
std::vector<std::pair<std::filesystem::path, std::string>> written_files(StreamOptions const& options) {
  std::vector<std::pair<std::filesystem::path, std::string>> all;
  if (!options.output.empty()) {
    all.emplace_back(options.output, "output");
    if (options.resume) {
      OutputPaths const output(options.output);
      all.emplace_back(output.unfinished(), "output");
      all.emplace_back(output.journal(), "output");
    }
  }
  if (!options.manifest.empty()) {
    for (auto const& [written, argument] : all) {
      if (!is_one_file(written, options.manifest)) continue;
      throw InvalidArgument("manifest", options.manifest.string(), "another file than the output");
    }
    all.emplace_back(options.manifest, "manifest");
  }
  if (options.verify.empty()) return all;
  for (auto const& [written, argument] : all) {
    if (!is_one_file(written, options.verify)) continue;
    throw InvalidArgument(argument, written.string(), "another file than the manifest that the input is compared with");
  }
  return all;
}

/// What options ask of the input that not every input has.
void check_input(StreamOptions const& options, Input const& input) {
  for (auto const& [written, argument] : written_files(options)) input.check_is_not(written, argument);
  if (input.has_pipes() && options.access == FileAccess::direct) {
    throw UnsupportedOperation("reading past the page cache (O_DIRECT)", fmt::format("'{}'", input.name()),
                               "there is a pipe, which no disk is behind");
  }
  if (input.has_pipes() && options.output.extension() == ".npy") {
    throw InvalidArgument("output", options.output.string(),
                          "no .npy: its header says how many elements there are, and a pipe does not");
  }
  if (options.resume && input.only_file() == nullptr) {
    throw InvalidArgument("resume", input.name(), "one file: pipes do not begin anew, nor do several files");
  }
}

/// The bytes of an archive are rarely what is meant by its name: only whoever names a type gets them.
void check_whole_files(std::span<const std::filesystem::path> paths, StreamKernel const& kernel,
                       StreamOptions const& options) {
  if (kernel.element() || options.element) return;
  for (auto const& path : paths) {
    if (!names_whole_archive(path)) continue;
    throw InvalidArgument("path", path.string(),
                          "FILE#NAME, one of its arrays, or come with an element type (u8: its raw bytes)");
  }
}

ElementType element_of(StreamKernel const& kernel, StreamOptions const& options, Input& input) {
  auto const asked = kernel.element() ? kernel.element() : options.element;
  if (asked && input.element() && *asked != *input.element()) {
    throw IoError(input.name(), 0, fmt::format("it holds {}, not {}", to_string(*input.element()), to_string(*asked)));
  }
  auto const element = asked ? *asked : input.element().value_or(ElementType::u8);
  auto const size = element_size(element);
  input.take_as(element);
  if (options.chunk_bytes % size != 0) {
    throw InvalidArgument("chunk_bytes", fmt::format("{}", options.chunk_bytes),
                          fmt::format("a multiple of {}, the size of an {}", size, to_string(element)));
  }
  return element;
}

/// What the input is taken to hold, if the options and the kernel go with it.
ElementType accept(std::span<const std::filesystem::path> paths, Input& input, StreamKernel const& kernel,
                   StreamOptions const& options) {
  check_input(options, input);
  check_whole_files(paths, kernel, options);
  return element_of(kernel, options, input);
}

/// Whether chunks are windows of the file itself: which they can be where kernels read the host's memory (a header of
/// an odd length leaves elements where none may) and there is one file alone, and are unless bytes are to go past the
/// page cache, to memory there is.
bool reads_in_place(StreamOptions const& options, StreamMemory& memory, Input const& input, ElementType element) {
  auto const& device = memory.device();
  auto const* const file = input.only_file();
  bool const aligned = file != nullptr && file->data_offset() % element_size(element) == 0;
  bool const can = device.reaches_host_memory() && aligned;
  if (options.access == FileAccess::mapped && !can) {
    throw UnsupportedOperation("reading a file in place",
                               aligned ? std::string(device.id()) : fmt::format("'{}'", input.name()),
                               aligned           ? "the device does not reach the host's memory"
                               : file == nullptr ? "only one file by itself is mapped"
                                                 : "its header leaves the elements where no kernel may read them");
  }
  if (!can || options.access == FileAccess::direct) return false;
  if (options.access != FileAccess::automatic || !file->goes_direct()) return true;
  auto const chunk = std::min<std::uint64_t>(options.chunk_bytes, file->bytes());
  auto const needed = 2 * chunk * std::min<std::uint64_t>(options.buffers, most_slots);
  return needed > std::min(options.memory_limit, memory.room_beside(Location::host));
}

std::optional<InputCheck> check_for(StreamOptions const& options, std::optional<Manifest> const& expected,
                                    std::uint64_t chunk_bytes) {
  std::optional<InputCheck> check;
  if (expected) {
    check.emplace(expected->checksum, expected->chunk_bytes, &*expected);
  } else if (options.checksum || !options.manifest.empty()) {
    check.emplace(options.checksum.value_or(Checksum::xxh3), chunk_bytes, nullptr);
  }
  return check;
}

}  // namespace

StreamRequest::StreamRequest(std::span<const std::filesystem::path> paths, StreamKernel const& asked_kernel,
                             StreamOptions const& asked)
    : options(asked),
      kernel(asked_kernel),
      expected(accept(paths, kernel, options)),
      memory(options),
      input(paths, read_way(options.access), options.retries),
      element(accept(paths, input, kernel, options)) {
  plan.mapped = reads_in_place(options, memory, input, element);
  plan.reduces = !kernel.maps();
  plan.writes = !options.output.empty();
  run = kernel.work()->start(memory.device(), element, plan.mapped);
  if (!is_empty()) divide(plan, options, memory.device(), *run, input.bytes(), element_size(element));
  check = check_for(options, expected, is_empty() ? options.chunk_bytes : plan.chunk_bytes);
  if (check) input.watch_with(*check);
}

}  // namespace unimem::detail
