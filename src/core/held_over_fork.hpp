#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

namespace unimem::detail {

/// Something behind locks that is whole and free in a forked child, whatever other threads were doing with it: the
/// forking thread takes the locks first, as any thread would, so that no thread is in the middle of anything, and lets
/// go of them on both sides. What belongs to threads that are not in the child is put right there before.
///
/// For locks that are held briefly, and never over code that may fork itself: drivers that compile do, and so does the
/// user's code. A thread that forks holding one would wait for itself, for ten seconds in all.
/// What cannot be had by then is left as it is.
///
/// The last member of what it guards: it is enlisted when the rest is there, and gone before the rest goes. Under
/// ThreadSanitizer, which takes no thread to hold more than 64 locks, only what is last in order is held.
class HeldOverFork {
 public:
  /// Taken in this order, and within one in the order in which they were made: outer locks first.
  enum class Order : std::uint8_t { buffers, manager, records, pool, device, pages, memory, last };

  using Deadline = std::chrono::steady_clock::time_point;

  struct Acts {
    /// Whether all is held; nothing is if it cannot be had by then.
    std::function<bool(Deadline)> hold;
    /// Called if it was, on either side of the fork.
    std::function<void(bool in_child)> let_go;
  };

  /// Throws std::bad_alloc.
  HeldOverFork(Order order, Acts acts);
  /// One mutex. `in_child` is called there while it is held.
  HeldOverFork(Order order, std::mutex& mutex, std::function<void()> in_child = {});
  HeldOverFork(HeldOverFork const&) = delete;
  HeldOverFork& operator=(HeldOverFork const&) = delete;
  /// Waits for a fork that is going on.
  ~HeldOverFork();

  /// What stays until the process ends, in a static variable, so that it is enlisted once: always true.
  [[nodiscard]] static bool for_good(Order order, Acts acts);
  [[nodiscard]] static bool for_good(Order order, std::mutex& mutex);

  /// How many forks this process has come from since something was first enlisted: locks taken in another are never
  /// given back here.
  [[nodiscard]] static unsigned forks() noexcept { return forks_so_far.load(std::memory_order_relaxed); }

  /// Locks a mutex, if it can be had by then.
  [[nodiscard]] static bool lock_by(Deadline deadline, std::mutex& mutex) noexcept;
  /// Waits until `is_so()`, a moment at a time; false if it is not by then.
  template <class Condition>
  [[nodiscard]] static bool wait_by(Deadline deadline, Condition const& is_so) noexcept {
    for (unsigned looks = 0; !is_so(); ++looks) {
      if (!pause(deadline, looks)) return false;
    }
    return true;
  }

  /// In a child: a lock or condition as new, where threads that are not here may hold it or wait at it. Destroying it
  /// would wait for them.
  template <class T>
  static void renew(T& object) {
    std::construct_at(&object);
  }

 private:
  struct Entry;
  class Registry;

  [[nodiscard]] static Acts hold_mutex(std::mutex& mutex, std::function<void()> in_child);
  static bool pause(Deadline deadline, unsigned looks) noexcept;

  /// Changes in a child that has one thread.
  static inline std::atomic<unsigned> forks_so_far{0};

  std::shared_ptr<Entry> entry_;
};

}  // namespace unimem::detail
