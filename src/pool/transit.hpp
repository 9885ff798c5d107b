#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>

namespace unimem::detail {

/// Memory of a pool between its driver, or its extents, and its lists, while a thread sees to it without the pool's
/// lock: it counts against the limit, so that the limit is exact under threads. A thread that finds no room waits for
/// it first, so that memory another thread is giving back is not reported as missing.
///
/// A thread that gives memory back may wait for its work to end first, and a kernel that waits for that memory while
/// such a thread waits for the kernel's own queue would wait for ever: by the list of these threads it is found out
/// (`BlockingWait`).
///
/// Under the pool's lock.
class Transit {
 public:
  /// Some memory on its way, on the stack of the thread that sees to it.
  class Passage {
    friend class Transit;
    std::thread::id thread_ = std::this_thread::get_id();
    Passage* next_ = nullptr;  ///< of those that return
    std::size_t bytes_ = 0;
    std::size_t behind_work_ = 0;  ///< all of them, or none
  };

  /// Whether what returns has work to wait for first.
  enum class Comes : bool { soon, behind_work };

  /// Memory begins to come, or to go, and has arrived: its bytes are no longer in transit then.
  void begin_growing(Passage& passage, std::size_t bytes) noexcept;
  void end_growing(Passage& passage) noexcept;
  void begin_returning(Passage& passage, std::size_t bytes, Comes comes) noexcept;
  void end_returning(Passage& passage) noexcept;

  [[nodiscard]] std::size_t growing() const noexcept { return growing_; }
  [[nodiscard]] std::size_t returning() const noexcept { return returning_; }
  [[nodiscard]] bool is_empty() const noexcept { return growing_ == 0 && returning_ == 0; }
  /// Whether some of it has work to wait for first.
  [[nodiscard]] bool is_behind_work() const noexcept { return behind_work_ != 0; }

  /// Something has changed that a thread without memory may be waiting for. And how often that was.
  void changed() noexcept;
  [[nodiscard]] std::uint64_t changes() const noexcept { return changes_; }

  /// Waits until something has changed if anything is in transit; false if nothing is, or if that would never end,
  /// since the thread that gives it back waits for the kernel that called this. Drops the lock meanwhile. In a watched
  /// thread it may end with WaitInterrupted, without the lock and with nothing changed.
  bool await(std::unique_lock<std::mutex>& lock);

 private:
  void tell_newest() noexcept;

  std::size_t growing_ = 0;                ///< bytes from the driver, or from the extents
  std::size_t returning_ = 0;              ///< bytes on their way back
  std::size_t behind_work_ = 0;            ///< those of them that have work to wait for
  Passage* returns_ = nullptr;             ///< that are under way, the newest first
  std::atomic<std::thread::id> newest_{};  ///< whose that is, for readers without the lock; no thread if there is none
  std::condition_variable changed_;
  std::uint64_t changes_ = 0;
  unsigned waiting_ = 0;  ///< for a change
};

}  // namespace unimem::detail
