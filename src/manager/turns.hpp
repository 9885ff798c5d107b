#pragma once

#include <unimem/core/error.hpp>
#include <unimem/core/export.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <thread>
#include <utility>

namespace unimem {
class Device;
class MemoryManager;
}  // namespace unimem

namespace unimem::detail {

class Turns;

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
class UNIMEM_API Operation {
 public:
  enum class Waiting : bool { allowed, never };

  explicit Operation(Waiting waiting = Waiting::allowed) noexcept
      : outer_(current()), waits_(outer_ == nullptr && waiting == Waiting::allowed) {
    current() = this;
  }
  Operation(Operation const&) = delete;
  Operation& operator=(Operation const&) = delete;
  ~Operation() { current() = outer_; }

  [[nodiscard]] static Operation* innermost() noexcept { return current(); }
  /// Whether it may wait for others, and be begun again after them.
  [[nodiscard]] bool waits() const noexcept { return waits_; }

  /// It has been begun before, and others were in its way.
  void begin_again() noexcept { again_ = true; }
  [[nodiscard]] bool again() const noexcept { return again_; }

  /// It has waited as long as one may: it takes what there is, whosever turn it is.
  void insist() noexcept { insists_ = true; }
  [[nodiscard]] bool insists() const noexcept { return insists_; }

  /// Whether it may look once more, though what it has seen of others is no reason to wait: a few times.
  [[nodiscard]] bool looks_again() noexcept { return looks_++ < 8; }

  /// It runs in this turn.
  void hold(Turns& turn) noexcept { turn_ = &turn; }
  /// It has all its memory: others may make room while it goes on.
  void end_turn() noexcept;

  /// Device memory that it has yet to take, and that all its operands need together; 0: not said.
  void needs(std::size_t outstanding, std::size_t together) noexcept {
    outstanding_ = outstanding;
    together_ = together;
  }
  void took(std::size_t bytes) noexcept { outstanding_ -= bytes < outstanding_ ? bytes : outstanding_; }
  [[nodiscard]] std::size_t outstanding() const noexcept { return outstanding_; }
  [[nodiscard]] std::size_t together() const noexcept { return together_; }

 private:
  [[nodiscard]] static Operation*& current() noexcept;

  Operation* outer_;
  bool waits_;
  bool again_ = false;
  bool insists_ = false;
  unsigned looks_ = 0;
  Turns* turn_ = nullptr;
  std::size_t outstanding_ = 0;
  std::size_t together_ = 0;
};

/// Whose turn it is to make room on a device: one thread's at a time. Two that each take memory from the other's
/// operands would never end, and so would two that each hold what they have and wait for the rest.
///
/// A thread waits for its turn, and in its turn for others' operations to end, with no operand in use; so everybody
/// else ends. Newcomers that find a full device, or somebody's turn, queue for theirs.
///
/// Thread-safe.
class Turns {
 public:
  /// Takes the turn if nobody has it or waits for it.
  [[nodiscard]] bool try_take();
  /// Waits for it until then; whether it came.
  [[nodiscard]] bool take_before(std::chrono::steady_clock::time_point deadline);
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
  std::mutex mutex_;
  std::condition_variable ended_;
  std::size_t waiting_ = 0;
  std::atomic<std::size_t> wanted_{0};
  std::atomic<std::thread::id> owner_{};  ///< changed under the lock; a thread knows its own for sure
};

}  // namespace unimem::detail
