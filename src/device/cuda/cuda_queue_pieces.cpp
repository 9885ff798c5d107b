#include "device/cuda/cuda_queue.hpp"

#include <unimem/core/error.hpp>

#include "device/cuda/cuda_device.hpp"
#include "device/cuda/cuda_program.hpp"
#include "device/cuda/piece_mover.hpp"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

// How copies of many pieces go: as a rectangle, by a kernel, in batches, or one by one.

namespace unimem::detail::cuda {

using Pieces = std::span<const CopyPiece>;

unimem::Event CudaQueue::upload_pieces(DeviceMemory to, void const* from, std::span<const CopyPiece> pieces,
                                       CopyTerms const& terms) {
  wait_to_read(static_cast<std::byte const*>(from) + pieces.front().from, terms.needs);
  if (auto const skipped = skipped_behind(terms.needs)) return *skipped;
  return move_pieces(Moves::upload, pointer(to), reinterpret_cast<DevicePointer>(from), pieces, terms.meter);
}

unimem::Event CudaQueue::download_pieces(void* to, DeviceMemory from, std::span<const CopyPiece> pieces,
                                         CopyTerms const& terms) {
  if (auto const skipped = skipped_behind(terms.needs)) return *skipped;
  return move_pieces(Moves::download, reinterpret_cast<DevicePointer>(to), pointer(from), pieces, terms.meter);
}

unimem::Event CudaQueue::copy_pieces(DeviceMemory to, DeviceMemory from, std::span<const CopyPiece> pieces,
                                     CopyTerms const& terms) {
  if (auto const skipped = skipped_behind(terms.needs)) return *skipped;
  return move_pieces(Moves::copy, pointer(to), pointer(from), pieces, terms.meter);
}

unimem::Event CudaQueue::move_pieces(Moves moves, DevicePointer to, DevicePointer from,
                                     std::span<const CopyPiece> pieces, SharedMeter meter) {
  check_alive("copying pieces");
  std::size_t bytes = 0;
  for (auto const& piece : pieces) bytes += piece.bytes;
  auto const& first = pieces.front();
  bool const pageable = (moves == Moves::upload && !is_pinned(from + first.from)) ||
                        (moves == Moves::download && !is_pinned(to + first.to));
  auto grid = grid_of(pieces);
  if (grid && moves == Moves::copy) {
    // Rows that lie between each other do not overlap; whether the driver sees that is not documented.
    auto const there = to + grid->first.to, here = from + grid->first.from;
    if (there < here + grid->from_span() && here < there + grid->to_span()) grid.reset();
  }
  auto const into = target();
  // A batch must not go to the legacy default stream.
  bool const batches = device_.has_batches() && into.stream != reinterpret_cast<Stream>(legacy_stream);
  auto way = way_of_pieces({
      .count = pieces.size(),
      .bytes = bytes,
      .moves = moves,
      .pageable = pageable,
      .rectangle = grid && std::max(grid->to_pitch, grid->from_pitch) <= device_.max_pitch(),
      .driver_batches = batches,
  });
  std::shared_ptr<CudaProgram const> kernel;
  auto to_seen = to, from_seen = from;
  if (way.by == PieceWay::By::kernel) {
    kernel = device_.mover().kernel(device_);
    auto& host = moves == Moves::upload ? from_seen : to_seen;
    auto const seen = !kernel || moves == Moves::copy
                          ? host
                          : seen_by_kernels(host, pieces, moves == Moves::upload ? &CopyPiece::from : &CopyPiece::to);
    if (!kernel || !seen) way.by = way.otherwise;
    host = seen.value_or(host);
  }
  Load const load{moves, bytes, std::move(meter), pieces.size()};
  switch (way.by) {
    case PieceWay::By::rectangle:
      return submit(
          "cuMemcpy2DAsync", load,
          [into, moves, to, from, grid, batches](Command& command, Pieces list) {
            try {
              copy_rectangle(into, moves, to, from, *grid);
            } catch (DeviceError const& error) {
              // Within a device the driver may refuse distances between rows that it has not chosen itself.
              if (moves != Moves::copy || error.code != static_cast<std::int64_t>(Result::invalid_value)) throw;
              batches ? copy_batches(into, command, to, from, list) : copy_each(into, command, moves, to, from, list);
            }
          },
          pieces);
    case PieceWay::By::kernel:
      return submit(
          "cuLaunchKernel", load,
          [into, kernel = std::move(kernel), to_seen, from_seen](Command& command, Pieces list) {
            into.device.mover().launch(command, into.stream, kernel, to_seen, from_seen, list);
          },
          pieces);
    case PieceWay::By::batch:
      return submit(
          "cuMemcpyBatchAsync", load,
          [into, to, from](Command& command, Pieces list) { copy_batches(into, command, to, from, list); }, pieces);
    case PieceWay::By::single_copies:
      break;
  }
  return submit(
      "copying pieces", load,
      [into, moves, to, from](Command& command, Pieces list) { copy_each(into, command, moves, to, from, list); },
      pieces);
}

std::optional<DevicePointer> CudaQueue::seen_by_kernels(DevicePointer host, std::span<const CopyPiece> pieces,
                                                        std::size_t CopyPiece::* offset) const {
  auto const [lowest, highest] = std::ranges::minmax(pieces, {}, offset);
  auto const begin = lowest.*offset, last = highest.*offset + highest.bytes - 1;
  CurrentContext const current{device_.gpu()};
  DevicePointer first_seen = 0, last_seen = 0;
  for (auto const& [at, seen] : {std::pair{begin, &first_seen}, {last, &last_seen}}) {
    if (driver_.cuMemHostGetDevicePointer(seen, reinterpret_cast<void*>(host + at), 0) != Result::success) {
      return std::nullopt;
    }
  }
  if (last_seen - first_seen != last - begin) return std::nullopt;
  return first_seen - begin;
}

void CudaQueue::copy_rectangle(Target const& target, Moves moves, DevicePointer to, DevicePointer from,
                               PieceGrid const& grid) {
  Copy2D what;
  auto const there = to + grid.first.to, here = from + grid.first.from;
  what.source_type = moves == Moves::upload ? MemoryType::host : MemoryType::device;
  what.target_type = moves == Moves::download ? MemoryType::host : MemoryType::device;
  if (moves == Moves::upload) {
    what.source_host = reinterpret_cast<void const*>(here);
  } else {
    what.source_device = here;
  }
  if (moves == Moves::download) {
    what.target_host = reinterpret_cast<void*>(there);
  } else {
    what.target_device = there;
  }
  what.source_pitch = grid.from_pitch;
  what.target_pitch = grid.to_pitch;
  what.width_bytes = grid.first.bytes;
  what.height = grid.rows;
  target.check(target.driver.cuMemcpy2DAsync(&what, target.stream), "cuMemcpy2DAsync");
}

void CudaQueue::copy_batches(Target const& target, Command& command, DevicePointer to, DevicePointer from,
                             std::span<const CopyPiece> pieces) {
  // Others have had drivers hang and crash over tens of thousands of copies in one batch.
  constexpr std::size_t most = 4096;
  std::vector<DevicePointer> targets, sources;
  std::vector<std::size_t> bytes;
  for (auto* list : {&targets, &sources}) list->reserve(std::min(pieces.size(), most));
  bytes.reserve(std::min(pieces.size(), most));
  bool begun = false;
  while (!pieces.empty()) {
    auto const batch = pieces.first(std::min(pieces.size(), most));
    pieces = pieces.subspan(batch.size());
    targets.clear(), sources.clear(), bytes.clear();
    for (auto const& piece : batch) {
      targets.push_back(to + piece.to);
      sources.push_back(from + piece.from);
      bytes.push_back(piece.bytes);
    }
    BatchAttributes attributes;
    std::size_t begin = 0, failed = 0;
    try {
      target.check(target.driver.cuMemcpyBatchAsync(targets.data(), sources.data(), bytes.data(), batch.size(),
                                                    &attributes, &begin, 1, &failed, target.stream),
                   "cuMemcpyBatchAsync");
    } catch (DeviceError const&) {
      if (!begun) throw;
      return command.fail(std::current_exception());  // some of it is on its way
    }
    begun = true;
  }
}

void CudaQueue::copy_each(Target const& target, Command& command, Moves moves, DevicePointer to, DevicePointer from,
                          std::span<const CopyPiece> pieces) {
  for (auto const& piece : pieces) {
    try {
      copy_one(target, moves, to + piece.to, from + piece.from, piece.bytes);
    } catch (DeviceError const&) {
      if (&piece == pieces.data()) throw;
      return command.fail(std::current_exception());  // some of it is on its way
    }
  }
}

void CudaQueue::copy_one(Target const& target, Moves moves, DevicePointer to, DevicePointer from, std::size_t bytes) {
  auto const& driver = target.driver;
  auto* const stream = target.stream;
  if (moves == Moves::upload) {
    auto const* const host = reinterpret_cast<void const*>(from);
    target.check(driver.cuMemcpyHtoDAsync(to, host, bytes, stream), "cuMemcpyHtoDAsync");
  } else if (moves == Moves::download) {
    auto* const host = reinterpret_cast<void*>(to);
    target.check(driver.cuMemcpyDtoHAsync(host, from, bytes, stream), "cuMemcpyDtoHAsync");
  } else {
    target.check(driver.cuMemcpyDtoDAsync(to, from, bytes, stream), "cuMemcpyDtoDAsync");
  }
}

}  // namespace unimem::detail::cuda
