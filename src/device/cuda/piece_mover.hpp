#pragma once

#include <unimem/device/memory.hpp>

#include "device/cuda/command.hpp"
#include "device/cuda/pinned_stock.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

namespace unimem::detail::cuda {

class CudaDevice;
class CudaProgram;

/// Many pieces that are to be copied at once between the host and a GPU, or within one.
struct PieceLoad {
  std::size_t count = 0;
  std::size_t bytes = 0;  ///< all together
  Moves moves = Moves::upload;
  bool pageable = false;        ///< the host's memory
  bool rectangle = false;       ///< they are the rows of one that the driver takes
  bool driver_batches = false;  ///< cuMemcpyBatchAsync is there, and takes the stream
};

/// Which way they go best.
struct PieceWay {
  enum class By : std::uint8_t { rectangle, kernel, batch, single_copies };
  By by = By::single_copies;
  By otherwise = By::single_copies;  ///< where there turns out to be no kernel
};

/// docs/decisions/small-pieces-and-rectangles.md has the reasons and where the numbers come from.
[[nodiscard]] PieceWay way_of_pieces(PieceLoad const& load) noexcept;

/// Moves pieces between pinned memory of the host and one GPU's by a kernel, a warp to a piece: copy engines take a
/// microsecond for each, however small, where the GPU's own threads keep the bus full. The host's side is read and
/// written where it is, across the bus, so that nothing is copied twice and no memory of the GPU is needed.
///
/// The list of pieces lies in pinned memory too. Thread-safe.
class PieceMover {
 public:
  PieceMover(ContextRef const& gpu, Health& health) noexcept
      : health_(health), tables_(gpu, health, parts_in_a_table, 1) {}

  /// The kernel, compiled when it is first asked for. Null where it cannot be had: without NVRTC, or where a GPU does
  /// not reach pinned memory by the host's addresses. That is found out once.
  [[nodiscard]] std::shared_ptr<CudaProgram const> kernel(CudaDevice& device);

  /// Enqueues the moves of `pieces`, relative to the two bases. The context is current. Throws DeviceError if nothing
  /// was enqueued; where only some was, the command fails. It keeps what must live until it has ended.
  void launch(Command& command, Stream stream, std::shared_ptr<CudaProgram const> kernel, DevicePointer to,
              DevicePointer from, std::span<const CopyPiece> pieces);

 private:
  /// What the kernel reads: one for each warp.
  struct Part {
    std::uint64_t to, from, bytes;
  };
  using Tables = PinnedStock<Part>;
  struct Kept;

  /// Of 64 KiB: more pieces take several launches.
  static constexpr std::size_t parts_in_a_table = (std::size_t{64} << 10) / sizeof(Part);
  /// What one warp takes: a larger piece is several parts, so that no warp is still at work when all others are done.
  static constexpr std::size_t largest_part = std::size_t{8} << 10;

  Health& health_;
  std::mutex kernel_mutex_;
  bool sought_ = false;
  std::shared_ptr<CudaProgram const> kernel_;
  Tables tables_;
};

}  // namespace unimem::detail::cuda
