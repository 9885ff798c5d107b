#pragma once

#include <chrono>
#include <thread>

namespace unimem::detail {

/// Whose work a thread is in the middle of. It matters where that work would wait for its own end (`BlockingWait`),
/// and where it calls `std::exit`: the thread then destroys static objects, and whatever waits there for the end of
/// that very work would wait for ever.
///
/// A thread is in the middle of work of its own, and, as a helper with a piece of another thread's loop, of that
/// thread's as well, and so on. One lives on the stack of each thread that is, for as long.
class CurrentTask {
 public:
  /// This thread's own, or, with `helped`, which lives as long, a piece of another thread's.
  explicit CurrentTask(CurrentTask const* helped = nullptr) noexcept;
  CurrentTask(CurrentTask const&) = delete;
  CurrentTask& operator=(CurrentTask const&) = delete;
  ~CurrentTask();

  /// What this thread is in the middle of; null for nothing.
  [[nodiscard]] static CurrentTask const* of_this_thread() noexcept;

  /// Whether this thread is in the middle of work that `thread` is in the middle of.
  [[nodiscard]] static bool is_in_work_of(std::thread::id thread) noexcept;

  /// Whether this thread has called `exit` from work that `thread` is in the middle of, which will not end any more.
  [[nodiscard]] static bool is_ending_in_work_of(std::thread::id thread) noexcept;

  /// Whether this thread has called `exit` from any work.
  [[nodiscard]] static bool is_ending() noexcept;

  /// Whether this thread may wait for work whatever it is: it is in the middle of none that the other could come
  /// behind, or has called `exit`, and then its patience ends.
  [[nodiscard]] static bool may_wait_for_any() noexcept { return of_this_thread() == nullptr || is_ending(); }

  /// How long a thread that has called `exit` from work waits for other work, all in all: the thread that carries it
  /// out may be one that waits for this thread's in its turn. For other threads: the end of time.
  [[nodiscard]] static std::chrono::steady_clock::time_point patience_ends() noexcept;

 private:
  [[nodiscard]] bool is_of(std::thread::id thread) const noexcept;

  std::thread::id const thread_;
  CurrentTask const* const helped_;
  CurrentTask const* const outer_;  ///< of this thread
};

}  // namespace unimem::detail
