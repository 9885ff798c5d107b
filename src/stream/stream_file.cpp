#include <unimem/core/error.hpp>
#include <unimem/stream/stream_file.hpp>

#include "file/digest.hpp"
#include "stream/chunk_ring.hpp"
#include "stream/known_answer_check.hpp"
#include "stream/stream_outputs.hpp"
#include "stream/stream_request.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>

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

using detail::StreamOutputs;
using detail::StreamRequest;

/// What is known of a stream before its chunks.
StreamResult result_of(StreamRequest const& request) {
  StreamResult result;
  result.kernel = request.kernel.name();
  result.device = request.memory.device().id();
  result.element = request.element;
  result.access = request.options.access;
  return result;
}

/// The way that most of the input came.
FileAccess access_of(StreamRequest const& request) noexcept {
  if (request.plan.mapped) return FileAccess::mapped;
  auto const read = request.input.bytes_read();
  return read.direct > read.bytes / 2 ? FileAccess::direct : FileAccess::cached;
}

/// Sends the chunks of an input that has any.
void send_chunks(StreamResult& result, StreamRequest& request, StreamOutputs& outputs) {
  auto const& options = request.options;
  detail::ChunkSinks const sinks{outputs.output(), outputs.resumption(), request.check ? &*request.check : nullptr,
                                 options.progress, options.check_interrupt};
  auto& manager = request.memory.manager();
  auto& device = request.memory.device();
  {
    detail::ChunkRing ring(manager, device, request.input, *request.run, request.plan);
    result.bytes = ring.run(sinks, options.cancel);
    result.buffers = ring.slots();
    result.chunks = ring.chunks();
    result.host_to_device_bytes = ring.moved().host_to_device_bytes;
    result.device_to_host_bytes = ring.moved().device_to_host_bytes;
  }
  result.chunk_bytes = static_cast<std::size_t>(std::min<std::uint64_t>(request.plan.chunk_bytes, result.bytes));
  result.pool = manager.pool(device, request.memory.location()).statistics();
  result.peak_device_bytes = result.pool.peak_reserved_bytes;
  result.access = access_of(request);
  result.direct_bytes = request.input.bytes_read().direct;
}

/// What was found out about the files.
void take_files(StreamResult& result, StreamRequest const& request) {
  result.retries = request.input.retries().times();
  for (auto const& [path, bytes] : request.input.read_so_far()) result.files.push_back({path, bytes, {}});
  if (!request.check) return;
  auto const& found = request.check->found();
  result.checksum = found.checksum;
  result.checksum_bytes = found.chunk_bytes;
  for (std::size_t i = 0; i < found.files.size(); ++i) {
    for (auto const digest : found.files[i].chunks) {
      result.files[i].checksums.push_back(detail::digest_text(found.checksum, digest));
    }
  }
}

}  // namespace

StreamResult stream_file(std::filesystem::path const& path, StreamKernel const& kernel, StreamOptions const& options) {
  return stream_files({&path, 1}, kernel, options);
}

StreamResult stream_files(std::span<const std::filesystem::path> paths, StreamKernel const& kernel,
                          StreamOptions const& options) {
  auto const begin = std::chrono::steady_clock::now();
  StreamRequest request(paths, kernel, options);
  detail::check_known_answer(request);
  StreamOutputs outputs(request);
  auto result = result_of(request);
  if (outputs.resumption() != nullptr) result.resumed_bytes = outputs.resumption()->begin();
  if (!request.is_empty()) {
    send_chunks(result, request, outputs);
  } else if (options.progress) {
    options.progress(0, 0);
  }
  request.input.pass_empty_files();
  take_files(result, request);
  bool const damaged = request.check && request.check->has_mismatches();
  if (damaged && outputs.resumption() != nullptr) outputs.resumption()->give_up();  // it was made of what is damaged
  if (request.check) request.check->throw_mismatches();
  result.result = request.run->finish(result.bytes / element_size(request.element));
  outputs.commit(request);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

}  // namespace unimem
