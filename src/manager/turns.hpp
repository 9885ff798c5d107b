#pragma once

#include <unimem/core/error.hpp>
#include <unimem/core/export.hpp>

#include "core/held_over_fork.hpp"
#include "device/current_task.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace unimem {
class Device;
class MemoryManager;
}  // namespace unimem

namespace unimem::detail {

class Turns;
class WatchedWait;

/// Operations end, and turns with them; what does not within this is not waited for.
inline constexpr std::chrono::seconds longest_wait{10};

/// What operations in progress have taken of a device's memory: whose it is may not be known yet, so that nobody can be
/// asked for it, and there may be some when they have ended. Thread-safe.
class TakenMemory {
 public:
  void add(std::size_t bytes) noexcept {
    bytes_.fetch_add(bytes, std::memory_order_relaxed);
    times_.fetch_add(1, std::memory_order_release);
  }
  /// Release: that it is known whose the memory is can be seen by who sees the sum fall.
  void subtract(std::size_t bytes) noexcept { bytes_.fetch_sub(bytes, std::memory_order_release); }

  /// An attempt to take some. It counts from before the pool has given it: between the two it is in use, and nobody's.
  class Attempt {
   public:
    Attempt(TakenMemory* on, std::size_t bytes) noexcept : on_(on), bytes_(bytes) {
      if (on_ != nullptr) on_->bytes_.fetch_add(bytes_, std::memory_order_acq_rel);
    }
    Attempt(Attempt const&) = delete;
    Attempt& operator=(Attempt const&) = delete;
    ~Attempt() {
      if (on_ != nullptr) on_->subtract(bytes_);
    }

   private:
    TakenMemory* on_;
    std::size_t bytes_;
  };

  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_.load(std::memory_order_acquire); }
  /// How often some was taken: another number tells that it may have come and gone.
  [[nodiscard]] std::uint64_t times() const noexcept { return times_.load(std::memory_order_acquire); }

 private:
  std::atomic<std::size_t> bytes_{0};
  std::atomic<std::uint64_t> times_{0};
};

/// Out of memory because of operations in progress: after them there may be some. `MemoryManager::in_turn` tries again;
/// whoever does not ask it is told what it is otherwise.
class UNIMEM_API Crowded final : public OutOfMemory {
 public:
  Crowded(MemoryManager& manager, Device& device, Facts facts)
      : OutOfMemory(std::move(facts)), manager_(&manager), device_(&device) {}
  Crowded(Crowded const&) = default;
  Crowded& operator=(Crowded const&) = default;
  ~Crowded() override;

  /// Whose memory it is, and who has divided it.
  [[nodiscard]] Device& device() const noexcept { return *device_; }
  [[nodiscard]] MemoryManager& manager() const noexcept { return *manager_; }

 private:
  MemoryManager* manager_;
  Device* device_;
};

/// An operation of this thread that works with memory of a device. Operations may nest, where a user's code is called
/// by one: the outer one's operands are in use meanwhile, so an inner one waits for nobody, who might wait for them.
/// Nor does one in the middle of work of the host's, which others may wait for while they make room.
class UNIMEM_API Operation {
 public:
  enum class Waiting : bool { allowed, never };

  explicit Operation(Waiting waiting = Waiting::allowed) noexcept
      : outer_(current()),
        waits_(outer_ == nullptr && waiting == Waiting::allowed && CurrentTask::of_this_thread() == nullptr) {
    current() = this;
  }
  Operation(Operation const&) = delete;
  Operation& operator=(Operation const&) = delete;
  ~Operation();

  [[nodiscard]] static Operation* innermost() noexcept { return current(); }
  /// Whether it may wait for others, and be begun again after them.
  [[nodiscard]] bool waits() const noexcept { return waits_; }

  /// It has been begun before, and others were in its way. Having begun again for as long as one may, it insists.
  void begin_again() noexcept;
  [[nodiscard]] bool again() const noexcept { return again_; }

  /// It has waited as long as one may: it takes what there is, whosever turn it is.
  void insist() noexcept { insists_ = true; }
  [[nodiscard]] bool insists() const noexcept { return insists_; }

  /// It runs in this turn.
  void hold(Turns& turn) noexcept { turn_ = &turn; }
  /// It has all its memory: others may make room while it goes on.
  void end_turn() noexcept;

  /// One of its operands has yet to take so much device memory of this manager, and needs so much of it with what it
  /// has: 0 of either until somebody says so.
  void needs(MemoryManager const& of, std::size_t outstanding, std::size_t together);
  void needs_nothing() noexcept { needs_.clear(); }
  void took(MemoryManager const& of, std::size_t bytes) noexcept;
  [[nodiscard]] std::size_t outstanding(MemoryManager const& of) const noexcept { return need(of).outstanding; }
  [[nodiscard]] std::size_t together(MemoryManager const& of) const noexcept { return need(of).together; }

  /// It has taken so much of that memory. Until it ends, or lets go of all, nobody else can say whose it is.
  void count_taken(TakenMemory& on, std::size_t bytes);
  /// Others were in its way, and it holds no operand any more: what it took is known to be its buffers', or has gone
  /// back. Counted on, it would be what operations hold that wait for their turn: the one that has the turn would wait
  /// for them.
  void let_go() noexcept;
  [[nodiscard]] std::size_t taken(TakenMemory const& on) const noexcept;

 private:
  [[nodiscard]] static Operation*& current() noexcept;

  Operation* outer_;
  bool waits_;
  bool again_ = false;
  bool insists_ = false;
  Turns* turn_ = nullptr;
  std::chrono::steady_clock::time_point insists_at_{};  ///< known when it has begun again
  struct Need {
    MemoryManager const* of;
    std::size_t outstanding, together;
  };
  [[nodiscard]] Need need(MemoryManager const& of) const noexcept;
  std::vector<Need> needs_;
  struct Taken {
    TakenMemory* on = nullptr;
    std::size_t bytes = 0;
  };
  Taken taken_;                ///< on the device it works with
  std::vector<Taken> beside_;  ///< on others
};

/// Whose turn it is to make room on a device: one thread's at a time. Two that each take memory from the other's
/// operands would never end, and so would two that each hold what they have and wait for the rest.
///
/// A thread waits for its turn, and in its turn for others' operations to end, with no operand in use; so everybody
/// else ends. Newcomers that find a full device, or somebody's turn, queue for theirs, and get it in the order in which
/// they came.
///
/// Thread-safe.
class Turns {
 public:
  /// Takes the turn if nobody has it or waits for it.
  [[nodiscard]] bool try_take();
  /// Waits for it as long as others have theirs one after the other: false when none has ended for so long. Throws
  /// WaitInterrupted where the process's WaitWatch ends it.
  [[nodiscard]] bool take(std::chrono::steady_clock::duration patience);
  void end() noexcept;

  /// How much whoever has the turn still needs: others may have what there is beyond that.
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
  using Place = std::list<std::uint64_t>::const_iterator;

  /// Whether it is the turn of `place` in the end. Leaves the lock open when it throws.
  [[nodiscard]] bool await_turn(std::unique_lock<std::mutex>& lock, Place place,
                                std::chrono::steady_clock::duration patience, WatchedWait& watch);
  void leave(Place place);

  /// In a forked child: the parent's other threads neither end their turn nor wait for one.
  void forget_others() noexcept;

  std::mutex mutex_;
  std::condition_variable ended_;
  std::uint64_t ends_ = 0;
  std::uint64_t comers_ = 0;
  std::list<std::uint64_t> waiting_;  ///< in the order in which they came
  std::atomic<std::size_t> wanted_{0};
  std::atomic<std::thread::id> owner_{};  ///< changed under the lock; a thread knows its own for sure
  HeldOverFork held_{HeldOverFork::Order::records, mutex_, [this] { forget_others(); }};
};

}  // namespace unimem::detail
