#pragma once

#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/device/program.hpp>
#include <unimem/device/queue.hpp>
#include <unimem/kernel/graph.hpp>

#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace unimem::detail {

/// What a buffer is to a graph: memory that stays, and which of its bytes the launches read before they write them.
struct CapturedBuffer {
  BufferCore* buffer = nullptr;
  std::weak_ptr<void const> life;
  DeviceLease lease;  ///< of all of it
  ByteRanges read;    ///< before it is written, if it is
  ByteRanges written;
};

/// A capture in progress: what the launches of one thread become meanwhile. A launch finds it by its thread, so that
/// the user's code needs to know nothing of it. Ends what it began with the buffers when it goes, however that is.
class Recording {
 public:
  /// Throws UnsupportedOperation if this thread captures already.
  explicit Recording(Queue& queue);
  Recording(Recording const&) = delete;
  Recording& operator=(Recording const&) = delete;
  ~Recording();

  [[nodiscard]] static Recording* of_this_thread() noexcept;

  /// One launch: `run` makes it, of the memory of its operands. Remembers what it throws, for `finish`.
  void add(Queue& queue, std::span<const Operand> operands,
           std::function<ProgramRun(std::span<const DeviceMemory>)> const& run);

  /// All of it as a graph. Throws what `add` has thrown first.
  [[nodiscard]] Graph finish();

 private:
  [[nodiscard]] DeviceMemory take(Operand const& operand);

  Queue& queue_;
  std::vector<ProgramRun> runs_;
  std::vector<CapturedBuffer> buffers_;
  std::exception_ptr failure_;
};

}  // namespace unimem::detail
