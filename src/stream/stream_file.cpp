#include <unimem/core/error.hpp>
#include <unimem/core/size.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/manager/memory_manager.hpp>
#include <unimem/stream/stream_file.hpp>

#include "core/disk_cache.hpp"
#include "file/digest.hpp"
#include "kernel/known_answer.hpp"
#include "manager/read_way.hpp"
#include "stream/chunk_plan.hpp"
#include "stream/chunk_ring.hpp"
#include "stream/chunk_work.hpp"
#include "stream/input.hpp"
#include "stream/input_check.hpp"
#include "stream/manifest.hpp"
#include "stream/npy.hpp"
#include "stream/output_file.hpp"
#include "stream/output_paths.hpp"
#include "stream/resumption.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

namespace unimem {

StreamCancelled::StreamCancelled(std::string path_, std::uint64_t bytes_done_, std::uint64_t bytes_total_)
    : RuntimeError(bytes_total_ == 0
                       ? fmt::format("{}: cancelled after {} bytes", path_, bytes_done_)
                       : fmt::format("{}: cancelled after {} of {} bytes", path_, bytes_done_, bytes_total_)),
      path(std::move(path_)),
      bytes_done(bytes_done_),
      bytes_total(bytes_total_) {}
StreamCancelled::~StreamCancelled() = default;

namespace {

void check_options(StreamKernel const& kernel, StreamOptions const& options) {
  if (!kernel.work()) detail::throw_empty_handle("kernel");
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

ElementType element_of(StreamKernel const& kernel, StreamOptions const& options, detail::Input& input) {
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

/// The files that are written, and which option says so. Throws InvalidArgument where two are one.
std::vector<std::pair<std::filesystem::path, std::string>> written_files(StreamOptions const& options) {
  std::vector<std::pair<std::filesystem::path, std::string>> all;
  if (!options.output.empty()) {
    all.emplace_back(options.output, "output");
    if (options.resume) {
      detail::OutputPaths const output(options.output);
      all.emplace_back(output.unfinished(), "output");
      all.emplace_back(output.journal(), "output");
    }
  }
  if (options.manifest.empty()) return all;
  for (auto const& [written, argument] : all) {
    if (!detail::is_one_file(written, options.manifest)) continue;
    throw InvalidArgument("manifest", options.manifest.string(), "another file than the output");
  }
  all.emplace_back(options.manifest, "manifest");
  return all;
}

/// What options ask of the input that not every input has.
void check_input(StreamOptions const& options, detail::Input const& input) {
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

/// What an output begins with.
std::string header_of(StreamOptions const& options, ElementType element, detail::Input const& input) {
  if (options.output.extension() != ".npy") return {};
  std::array const flat{*input.bytes() / element_size(element)};
  return input.shape() ? detail::format_npy_header(element, *input.shape()) : detail::format_npy_header(element, flat);
}

std::optional<detail::Manifest> manifest_to_verify(StreamOptions const& options) {
  if (options.verify.empty()) return std::nullopt;
  auto manifest = detail::read_manifest(options.verify);
  if (options.checksum && *options.checksum != manifest.checksum) {
    throw InvalidArgument("checksum", std::string(to_string(*options.checksum)),
                          fmt::format("{}, which '{}' has", to_string(manifest.checksum), options.verify.string()));
  }
  return manifest;
}

/// Whether checksums were asked for, in one way or another; that of `chunk_bytes` where the manifest does not say.
std::optional<detail::InputCheck> check_for(StreamOptions const& options,
                                            std::optional<detail::Manifest> const& expected,
                                            std::uint64_t chunk_bytes) {
  if (expected)
    return std::optional<detail::InputCheck>(std::in_place, expected->checksum, expected->chunk_bytes, &*expected);
  if (!options.checksum && options.manifest.empty()) return std::nullopt;
  return std::optional<detail::InputCheck>(std::in_place, options.checksum.value_or(Checksum::xxh3), chunk_bytes,
                                           nullptr);
}

/// What a run that goes on must have in common with the one that began.
detail::Journal::Identity identity_of(StreamKernel const& kernel, StreamOptions const& options,
                                      StreamResult const& result, detail::Input const& input,
                                      detail::ChunkPlan const& plan, std::optional<detail::InputCheck> const& check) {
  auto const checked =
      check ? fmt::format("{} of {} bytes", to_string(check->found().checksum), check->found().chunk_bytes)
            : std::string("none");
  return {{"kernel", kernel.work()->identity()},
          {"input", fmt::format("{}", fmt::join(input.identities(), ", "))},
          {"element", std::string(to_string(result.element))},
          {"chunk size", fmt::format("{}", plan.chunk_bytes)},
          {"output", options.output.filename().string()},
          {"checksum", checked},
          {"manifest", options.verify.string()}};
}

void write_manifest(detail::OutputFile& file, detail::Manifest const& manifest) {
  auto const text = detail::to_json(manifest);
  file.write(std::as_bytes(std::span{text}));
}

/// What was found out about the files.
void take_files(StreamResult& result, detail::Input const& input, std::optional<detail::InputCheck> const& check) {
  for (auto const& [path, bytes] : input.read_so_far()) result.files.push_back({path, bytes, {}});
  if (!check) return;
  auto const& found = check->found();
  result.checksum = found.checksum;
  result.checksum_bytes = found.chunk_bytes;
  for (std::size_t i = 0; i < found.files.size(); ++i) {
    for (auto const digest : found.files[i].chunks) {
      result.files[i].checksums.push_back(detail::digest_text(found.checksum, digest));
    }
  }
}

Location location_on(Device const& device) {
  return device.reaches_host_memory()        ? Location::host
         : device.shares_storage_with_host() ? Location::unified
                                             : Location::device;
}

/// Bytes that a manager of its own may take besides the one that was given, whose limit bounds both.
std::size_t room_beside(MemoryManager& given, Device& device, Location location) {
  auto const limit = given.limit(device, location);
  auto const live = given.pool(device, location).statistics().active_bytes;
  return std::min(limit - std::min(limit, live), device.memory_info().free_bytes);
}

/// A kernel of the library that the device's driver compiles is tried before it is given anything of the user's, and
/// before the stream takes memory. What that takes comes from a manager of its own, so that a first stream's statistics
/// are those of the next; where there is no room beside the one given, from that, which can ask residents to make room.
void check_known_answer(detail::ChunkRun const& run, Device& device, StreamOptions const& options) {
  static auto& answers = *new detail::KnownAnswers(detail::user_cache_directory("answers-v1"));  // kept for good
  if (device.info().runs_host_form) return;  // compiled with the library, and not by a driver
  auto const location = location_on(device);
  MemoryManager own;
  auto& given = options.manager != nullptr ? *options.manager : own;
  auto const answer = run.known_answer(std::min(options.memory_limit, given.limit(device, location)));
  if (!answer) return;
  std::size_t bytes = 0;
  for (auto const& each : answer->runs) bytes += each.bytes;
  answers.check(*answer, device, bytes <= room_beside(given, device, location) ? own : given, location);
}

/// Whether chunks are windows of the file itself: which they can be where kernels read the host's memory (a header of
/// an odd length leaves elements where none may) and there is one file alone, and are unless bytes are to go past the
/// page cache, to memory there is.
bool reads_in_place(StreamOptions const& options, Device& device, detail::Input const& input, ElementType element) {
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
  auto const needed = 2 * chunk * std::min<std::uint64_t>(options.buffers, detail::most_slots);
  MemoryManager own;
  auto& given = options.manager != nullptr ? *options.manager : own;
  return needed > std::min(options.memory_limit, room_beside(given, device, Location::host));
}

/// The way that most of the input came.
FileAccess access_of(detail::Input const& input, detail::ChunkPlan const& plan) noexcept {
  if (plan.mapped) return FileAccess::mapped;
  auto const read = input.bytes_read();
  return read.direct > read.bytes / 2 ? FileAccess::direct : FileAccess::cached;
}

/// Sends the chunks of an input that has any.
void run_chunks(StreamResult& result, detail::Input& input, detail::ChunkRun& run, detail::ChunkPlan const& plan,
                detail::ChunkSinks const& sinks, StreamOptions const& options, Device& device) {
  auto const location = location_on(device);
  std::optional<MemoryManager> own;
  auto& manager = options.manager != nullptr ? *options.manager : own.emplace();
  if (own && location != Location::host && options.memory_limit < device.info().total_bytes) {
    own->set_limit(device, location, options.memory_limit);
  }
  {
    detail::ChunkRing ring(manager, device, input, run, plan);
    result.bytes = ring.run(sinks, options.cancel);
    result.buffers = ring.slots();
    result.chunks = ring.chunks();
    result.host_to_device_bytes = ring.moved().host_to_device_bytes;
    result.device_to_host_bytes = ring.moved().device_to_host_bytes;
  }
  result.chunk_bytes = static_cast<std::size_t>(std::min<std::uint64_t>(plan.chunk_bytes, result.bytes));
  result.pool = manager.pool(device, location).statistics();
  result.peak_device_bytes = result.pool.peak_reserved_bytes;
}

}  // namespace

StreamResult stream_file(std::filesystem::path const& path, StreamKernel const& kernel, StreamOptions const& options) {
  return stream_files({&path, 1}, kernel, options);
}

StreamResult stream_files(std::span<const std::filesystem::path> paths, StreamKernel const& kernel,
                          StreamOptions const& options) {
  auto const begin = std::chrono::steady_clock::now();
  if (paths.empty()) throw InvalidArgument("paths", "none", "at least one file");
  check_options(kernel, options);
  auto const expected = manifest_to_verify(options);
  auto& device = options.device == nullptr ? default_device() : *options.device;
  detail::Input input(paths, detail::read_way(options.access), options.retries);
  check_input(options, input);
  auto const element = element_of(kernel, options, input);

  detail::ChunkPlan plan;
  plan.mapped = reads_in_place(options, device, input, element);
  plan.reduces = !kernel.maps();
  plan.writes = !options.output.empty();
  auto const run = kernel.work()->start(device, element, plan.mapped);
  bool const empty = input.bytes() == 0;
  if (!empty) {
    divide(plan, options, device, *run, input.bytes(), element_size(element));
    check_known_answer(*run, device, options);
  }

  StreamResult result;
  result.kernel = kernel.name();
  result.device = device.id();
  result.element = element;
  result.access = options.access;
  auto check = check_for(options, expected, empty ? options.chunk_bytes : plan.chunk_bytes);
  if (check) input.watch_with(*check);
  detail::ChunkSinks sinks;
  sinks.check = check ? &*check : nullptr;
  sinks.progress = options.progress;
  std::optional<detail::OutputFile> output, manifest;  // that the latter cannot be made is known before the work
  if (!options.manifest.empty()) manifest.emplace(options.manifest);
  std::optional<detail::Resumption> resumption;
  if (plan.writes) {
    using enum detail::OutputFile::Unfinished;
    sinks.output = &output.emplace(options.output, options.resume ? stays : goes);
    auto const header = header_of(options, element, input);
    if (options.resume) {
      auto const identity = identity_of(kernel, options, result, input, plan, check);
      sinks.resumption = &resumption.emplace(*output, header, identity, check ? check->found().chunk_bytes : 1);
      result.resumed_bytes = resumption->begin();
    } else if (!header.empty()) {
      output->write(std::as_bytes(std::span{header}));
    }
  }
  if (!empty) {
    run_chunks(result, input, *run, plan, sinks, options, device);
    result.access = access_of(input, plan);
    result.direct_bytes = input.bytes_read().direct;
  } else if (options.progress) {
    options.progress(0, 0);
  }
  input.pass_empty_files();
  take_files(result, input, check);
  result.retries = input.retries().times();
  if (check) check->throw_mismatches();
  result.result = run->finish(result.bytes / element_size(element));
  if (manifest) write_manifest(*manifest, check->found());
  if (output) output->commit();
  if (resumption) resumption->end();
  if (manifest) manifest->commit();
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

}  // namespace unimem
