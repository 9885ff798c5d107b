#pragma once

#include <unimem/device/event.hpp>

#include "manager/memory_demand.hpp"
#include "manager/requested_room.hpp"
#include "manager/taken_memory.hpp"

#include <functional>
#include <utility>
#include <vector>

namespace unimem {
class Device;
class MemoryManager;
}  // namespace unimem

namespace unimem::detail {

class AdmissionQueue;

/// What an operation has to wait for before it is tried again, with none of its operands locked: work under way, or
/// else the memory that other operations on a device hold, or another thread's turn to make room there; or something
/// else, which knows itself how to wait.
struct MustWait {
  MemoryManager* manager = nullptr;
  Device* device = nullptr;
  std::vector<Event> work{};
  std::function<void()> other{};
};

/// One operation of this thread on device memory: what it needs, what it has taken, and whether it may wait. It is
/// passed along to every function that takes memory for it.
///
/// An operation that finds no memory releases its operands, makes room, and is tried again with the memory at hand
/// (`RequestedRoom`): the evictions may wait for work, which may look at the operands.
///
/// Operations may nest, where an operation calls a user's code. The outer one's operands are in use meanwhile, so an
/// inner one does not wait for others, which might wait for them. Nor does one in the middle of work of the host's, for
/// which others may wait while they make room.
class AccessContext {
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
  /// Something that no event tells of: `wait` returns once it may have come, or throws, as in a watched thread.
  void wait_for(std::function<void()> wait) noexcept { must_wait_ = {nullptr, nullptr, {}, std::move(wait)}; }
  [[nodiscard]] MustWait const& must_wait() const noexcept { return must_wait_; }
  [[nodiscard]] bool awaits_work() const noexcept { return !must_wait_.work.empty() || must_wait_.other; }
  /// Whether it may wait for work so. One that others are always ahead of, with ever more work, waits for the last of
  /// it with its operands locked.
  [[nodiscard]] bool may_await_work() const noexcept { return work_waits_ < most_work_waits; }
  /// Waits for that work, whose errors stick to its tickets, or for what it is else. Throws UnsupportedOperation in the
  /// middle of work that it comes behind, and WaitInterrupted in a watched thread.
  void await_work();

  /// Room that it has requested, because there was no memory for it, or none that no work is at: it is to release its
  /// operands, have the room made, and be tried again.
  [[nodiscard]] RequestedRoom& room() noexcept { return room_; }
  /// Whether room is made for it with its operands released; if not, with them locked.
  [[nodiscard]] bool releases_for_room() const noexcept { return unlocks_ && room_.may_be_requested(); }
  /// Makes that room. False if other operations have to be waited for.
  [[nodiscard]] bool make_room();

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

  [[nodiscard]] MemoryDemand& demand() noexcept { return demand_; }
  [[nodiscard]] TakenByOperation& taken() noexcept { return taken_; }

 private:
  static constexpr unsigned most_work_waits = 32;

  /// It holds no operand any more: what it took is known to be its buffers', or goes back. Counted on, it would be what
  /// operations hold that wait for their turn, and the one that has the turn would wait for them.
  void let_go() noexcept {
    room_.give_back();
    taken_.clear();
  }

  AccessContext* outer_;
  bool waits_;
  bool unlocks_;
  bool evicts_;
  bool again_ = false;
  bool insists_ = false;
  unsigned work_waits_ = 0;
  MustWait must_wait_{};
  AdmissionQueue* turn_ = nullptr;
  MemoryDemand demand_;
  TakenByOperation taken_;
  RequestedRoom room_;
};

}  // namespace unimem::detail
