#pragma once

#include <unimem/core/export.hpp>
#include <unimem/device/queue.hpp>

#include <cstddef>
#include <functional>
#include <memory>

namespace unimem {

namespace detail {
class Recording;
}

/// Launches that were captured once and run again, all of them, with one call:
///
///     x.sync_to_device();
///     auto step = capture(queue, [&] {
///       launch(queue, scale, Range{n}, readwrite(x), 0.5f);
///       launch(queue, accumulate, Range{n}, read(x), readwrite(sum));
///     });
///     for (int i = 0; i < 1000; ++i) step.launch(queue);
///
/// On CUDA it is a CUDA graph, and one call of the driver submits it; under OpenCL the driver gets launches whose
/// arguments are set already, as one piece of work; elsewhere the launches are submitted one by one. What they do to
/// the bytes, and when, is the same everywhere. When it pays: docs/kernels.md.
///
/// Scalars are as they were when they were captured. The buffers' device memory is leased as long as the graph lives:
/// neither evicted nor moved, nor given back when a buffer goes. A graph may outlive its buffers, and can then no
/// longer be launched. Move-only; launching is thread-safe; using a moved-from graph throws InvalidArgument.
class UNIMEM_API Graph {
 public:
  Graph(Graph&&) noexcept;
  Graph& operator=(Graph&&) noexcept;
  /// Does not wait for launches in flight.
  ~Graph();

  /// Runs all of it, asynchronously, in `queue`'s order: as one launch that reads what its launches read before they
  /// write it, and writes all they write. What is read and lacks on the device, since the host or another device wrote
  /// it in between, is brought in first; later accesses wait for it by themselves. If any launch of it fails, all has
  /// failed.
  ///
  /// Throws UnsupportedOperation for a queue of another device, and if a buffer is gone or its memory is no longer what
  /// it was (freed, reset); and whatever making the buffers ready can throw. Nothing was written then.
  Event launch(Queue& queue) const;

  [[nodiscard]] Device& device() const;

  /// How many launches it has.
  [[nodiscard]] std::size_t size() const noexcept;

 private:
  friend class detail::Recording;
  struct State;
  explicit Graph(std::unique_ptr<State> state) noexcept;
  [[nodiscard]] State const& state() const;

  std::unique_ptr<State> state_;
};

/// Calls `launches` once, now, and captures what it launches on `queue` (`launch`, on this thread) instead of running
/// it; a captured launch returns an event that stands for nothing and is done.
///
/// The buffers must be synchronized: a launch that reads bytes which are not up to date on the device, and which no
/// captured launch before it writes, is UnsupportedOperation, since copies are not captured. So is every other use of a
/// captured buffer until `capture` returns, by whomever; a launch on another queue; `with_native`; and a capture inside
/// of another. Whatever else `launches` does, happens at once.
///
/// If a captured launch throws, or `launches` itself, that comes out of here, also where `launches` has caught the
/// former; nothing was captured then, and nothing has changed. Throws UnsupportedOperation as well while the driver's
/// own stream is being captured by another library.
[[nodiscard]] UNIMEM_API Graph capture(Queue& queue, std::function<void()> const& launches);

}  // namespace unimem
