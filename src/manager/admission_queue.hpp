#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <thread>

namespace unimem::detail {

class WatchedWait;

/// The turn to make room on a device, which one thread has at a time. Two that each take memory from the other's
/// operands would never end, and so would two that each hold what they have and wait for the rest.
///
/// A thread waits for its turn, and in its turn for others' operations to end, with no operand in use; so all others
/// end. Threads that find a full device, or another one's turn, queue for theirs, and get it in the order in which they
/// came.
///
/// Thread-safe.
class AdmissionQueue {
 public:
  /// Takes the turn if no thread has it or waits for it.
  [[nodiscard]] bool try_take();
  /// Waits for it as long as others have theirs one after the other: false when none has ended for so long. Throws
  /// WaitInterrupted where the process's WaitWatch ends it.
  [[nodiscard]] bool take(std::chrono::steady_clock::duration patience);
  void end() noexcept;

  // Relaxed: the turn itself changes under the lock. A thread knows its own for sure, and of others' a moment ago.

  /// How much the thread that has the turn still needs: others may have what there is beyond that.
  void want(std::size_t bytes) noexcept { wanted_.store(bytes, std::memory_order_relaxed); }
  [[nodiscard]] std::size_t wanted() const noexcept { return wanted_.load(std::memory_order_relaxed); }

  [[nodiscard]] bool mine() const noexcept {
    return owner_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }
  [[nodiscard]] bool others() const noexcept {
    auto const owner = owner_.load(std::memory_order_relaxed);
    return owner != std::thread::id{} && owner != std::this_thread::get_id();
  }

 private:
  using Position = std::list<std::uint64_t>::const_iterator;

  /// Whether it is the turn of `position` in the end. Leaves the lock open when it throws.
  [[nodiscard]] bool await_turn(std::unique_lock<std::mutex>& lock, Position position,
                                std::chrono::steady_clock::duration patience, WatchedWait& watch);
  void leave(Position position);

  std::mutex mutex_;
  std::condition_variable ended_;
  std::uint64_t ends_ = 0;
  std::uint64_t comers_ = 0;
  std::list<std::uint64_t> waiting_;  ///< in the order in which they came
  std::atomic<std::size_t> wanted_{0};
  std::atomic<std::thread::id> owner_{};  ///< changed under the lock; a thread knows its own for sure
};

}  // namespace unimem::detail
