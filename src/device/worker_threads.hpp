#pragma once

#include <chrono>

namespace unimem::detail {

/// Something with a thread in the background that must be still while static objects are destroyed.
///
/// Devices live as long as the process, so the threads of their queues are never joined. What must not happen is that
/// such a thread is in the middle of memory while `exit` tears that memory down, or that a forked child waits for a
/// thread that stayed in its parent. Both are decided here, for all queues at once.
class BackgroundWorker {
 public:
  BackgroundWorker() = default;
  BackgroundWorker(BackgroundWorker const&) = delete;
  BackgroundWorker& operator=(BackgroundWorker const&) = delete;

  /// The process is ending: what runs in the background may end, nothing more begins there. Called once.
  virtual void shut_down() noexcept = 0;

  /// Returns when nothing runs in the background any more, or at `until`. Called after `shut_down`.
  virtual void await_quiet(std::chrono::steady_clock::time_point until) noexcept = 0;

 protected:
  ~BackgroundWorker() = default;
};

/// From now on `worker` is shut down at exit. Returns false when the process is ending already: it must start no
/// thread.
[[nodiscard]] bool enlist(BackgroundWorker& worker);

/// Forgets `worker`, which may then be destroyed.
void discharge(BackgroundWorker& worker) noexcept;

/// Whether this process is a child forked after background work had begun in its parent: its threads and the state of
/// its locks are lost, so every queue refuses to work. A load.
[[nodiscard]] bool is_forked_child() noexcept;

}  // namespace unimem::detail
