#pragma once

#include <unimem/core/error.hpp>
#include <unimem/core/export.hpp>
#include <unimem/device/event.hpp>
#include <unimem/pool/memory_pool.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace unimem {
class Device;
class MemoryManager;
}  // namespace unimem

namespace unimem::detail {

class AdmissionQueue;

/// What operations in progress have taken of a device's memory. Its holder may not be known yet, so that it cannot be
/// asked back, and there may be some when they have ended. Thread-safe.
class TakenMemory {
 public:
  void add(std::size_t bytes) noexcept {
    bytes_.fetch_add(bytes, std::memory_order_relaxed);
    times_.fetch_add(1, std::memory_order_release);
  }
  /// Release: a thread that sees the sum fall also sees the memory's holder.
  void subtract(std::size_t bytes) noexcept { bytes_.fetch_sub(bytes, std::memory_order_release); }

  /// An attempt to take some. It counts from before the pool has given it: between the two it is in use and has no
  /// holder.
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

/// Memory that there is none of until room is made for it.
struct RoomRequest {
  MemoryManager* manager = nullptr;
  Device* device = nullptr;
  Location location = Location::device;
  std::size_t bytes = 0;
  AcquireOptions options{};
  OutOfMemory::Facts refusal{};
};

/// What an operation has to wait for before it is tried again, with none of its operands locked: work under way, or
/// else the memory that other operations on a device hold, or another thread's turn to make room there.
struct MustWait {
  MemoryManager* manager = nullptr;
  Device* device = nullptr;
  std::vector<Event> work{};
};

/// One operation of this thread on device memory: what it needs, what it has taken, and whether it may wait. It is
/// passed along to every function that takes memory for it.
///
/// An operation that finds no memory releases its operands, makes room, and is tried again with the memory at hand
/// (`take_room`): the evictions may wait for work, which may look at the operands.
///
/// Operations may nest, where an operation calls a user's code. The outer one's operands are in use meanwhile, so an
/// inner one does not wait for others, which might wait for them. Nor does one in the middle of work of the host's, for
/// which others may wait while they make room.
class UNIMEM_API AccessContext {
 public:
  enum class Waiting : unsigned char {
    allowed,   ///< for whatever it needs
    for_work,  ///< for its own work, and while it makes room, but for no other operation
    never,     ///< it keeps its operands locked
  };

  /// Whether what it takes memory for is the eviction of a resident, on behalf of a request that counts by itself.
  enum class Evicts : bool { no, yes };

  explicit AccessContext(Waiting waiting = Waiting::allowed, Evicts evicts = Evicts::no) noexcept;
  AccessContext(AccessContext const&) = delete;
  AccessContext& operator=(AccessContext const&) = delete;
  ~AccessContext();

  /// Whether it may wait for others, and be tried again after them. If not, requests for memory either succeed or
  /// throw.
  [[nodiscard]] bool waits() const noexcept { return waits_; }
  [[nodiscard]] bool evicts() const noexcept { return evicts_; }

  /// A request for memory was not granted, because of other operations: the operation is to release its operands, wait
  /// and be tried again.
  void wait_for(MemoryManager& manager, Device& device) noexcept { must_wait_ = {&manager, &device}; }
  /// Work that the operation comes behind has not ended: likewise.
  void wait_for(std::vector<Event> work) noexcept { must_wait_ = {nullptr, nullptr, std::move(work)}; }
  [[nodiscard]] MustWait const& must_wait() const noexcept { return must_wait_; }
  [[nodiscard]] bool awaits_work() const noexcept { return !must_wait_.work.empty(); }
  /// Whether it may wait for work so. One that others are always ahead of, with ever more work, waits for the last of
  /// it with its operands locked.
  [[nodiscard]] bool may_await_work() const noexcept { return work_waits_ < most_work_waits; }
  /// Waits for that work, whose errors stick to its tickets. Throws UnsupportedOperation in the middle of work that it
  /// comes behind, and WaitInterrupted in a watched thread.
  void await_work();

  /// Whether room is made for it with its operands released. One for which that was in vain again and again, because it
  /// needed something else each time, makes room with its operands locked.
  [[nodiscard]] bool releases_for_room() const noexcept {
    return unlocks_ && (rooms_ == nullptr || may_make_another());
  }
  /// There is no memory for it: it is to release its operands, have room made, and be tried again.
  void needs_room(RoomRequest room);
  [[nodiscard]] bool needs_room() const noexcept { return needs_room_; }
  /// Makes that room, whose memory, or why there is none, is kept for the next try. False if other operations have to
  /// be waited for.
  [[nodiscard]] bool make_room();
  /// The memory that room was made for, if it is of this pool and size, or else nothing. Throws OutOfMemory if it could
  /// not be made.
  [[nodiscard]] Allocation take_room(MemoryPool const& pool, std::size_t bytes) {
    return rooms_ == nullptr ? Allocation{} : take_room_made(pool, bytes);
  }

  /// It is tried again when others have moved on: meanwhile it holds nothing.
  void try_again() noexcept;
  [[nodiscard]] bool again() const noexcept { return again_; }

  /// It has waited as long as one may: it takes what there is, whichever thread has the turn.
  void insist() noexcept { insists_ = true; }
  [[nodiscard]] bool insists() const noexcept { return insists_; }

  /// It runs in this turn.
  void hold(AdmissionQueue& turn) noexcept { turn_ = &turn; }
  [[nodiscard]] AdmissionQueue* turn() const noexcept { return turn_; }
  /// It has all its memory, or waits for something else: others may make room while it goes on.
  void end_turn() noexcept;

  /// One of its operands has yet to take so much device memory of this manager, and needs so much of it with what it
  /// has: 0 of either until it is told.
  void needs(MemoryManager const& of, std::size_t outstanding, std::size_t together);
  void needs_nothing() noexcept { needs_.clear(); }
  void took(MemoryManager const& of, std::size_t bytes) noexcept;
  [[nodiscard]] std::size_t outstanding(MemoryManager const& of) const noexcept { return need(of).outstanding; }
  [[nodiscard]] std::size_t together(MemoryManager const& of) const noexcept { return need(of).together; }

  /// It has taken so much of that memory. Until it ends, or releases all, its holder is not known elsewhere.
  void count_taken(TakenMemory& on, std::size_t bytes);
  /// It holds no operand any more: what it took is known to be its buffers', or goes back. Counted on, it would be what
  /// operations hold that wait for their turn, and the one that has the turn would wait for them.
  void let_go() noexcept;
  [[nodiscard]] std::size_t taken(TakenMemory const& on) const noexcept;

 private:
  static constexpr unsigned most_work_waits = 32;

  /// To tell that operations nest; nothing is passed along by it.
  [[nodiscard]] static AccessContext*& innermost() noexcept;

  AccessContext* outer_;
  bool waits_;
  bool unlocks_;
  bool evicts_;
  bool needs_room_ = false;
  bool again_ = false;
  unsigned work_waits_ = 0;
  bool insists_ = false;
  MustWait must_wait_{};
  AdmissionQueue* turn_ = nullptr;
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
  struct Rooms;
  [[nodiscard]] bool may_make_another() const noexcept;
  [[nodiscard]] Allocation take_room_made(MemoryPool const& pool, std::size_t bytes);
  std::unique_ptr<Rooms> rooms_;  ///< made for it; null until some is needed
};

}  // namespace unimem::detail
