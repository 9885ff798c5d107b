#pragma once

#include <unimem/core/error.hpp>
#include <unimem/pool/memory_pool.hpp>

#include <cstddef>
#include <memory>
#include <optional>

namespace unimem {
class Device;
class MemoryManager;
}  // namespace unimem

namespace unimem::detail {

class AccessContext;

/// Memory that there is none of until room is made for it, or until work has ended.
struct RoomRequest {
  MemoryManager* manager = nullptr;
  Device* device = nullptr;
  Location location = Location::device;
  std::size_t bytes = 0;
  AcquireOptions options{};
  std::optional<OutOfMemory::Facts> refusal{};  ///< none: it has not been refused, but would have to be waited for
};

/// Room that one operation has requested, and that is made for it with its operands released. The memory, or why there
/// is none, is kept for the operation's next try. Allocates nothing until room is requested: most operations find
/// memory.
class RequestedRoom {
 public:
  RequestedRoom() noexcept;
  RequestedRoom(RequestedRoom const&) = delete;
  RequestedRoom& operator=(RequestedRoom const&) = delete;
  ~RequestedRoom();

  /// Whether room may be requested: not while some is being made, nor when it was made in vain again and again, because
  /// the operation needed something else each time.
  [[nodiscard]] bool may_be_requested() const noexcept { return state_ == nullptr || may_be_requested_again(); }
  void request(RoomRequest room);
  [[nodiscard]] bool is_requested() const noexcept { return state_ != nullptr && awaits_making(); }

  /// Makes it, for the operation of `context`. False if other operations have to be waited for.
  [[nodiscard]] bool make(AccessContext& context);
  /// Memory that the operation has, and uses only with what it has requested room for: it is kept for the next try with
  /// that. For nothing where no room is requested.
  void keep(MemoryPool& pool, Allocation block);
  /// The memory that room was made for, or that was kept, if it is of this pool and size, or else nothing. Throws
  /// OutOfMemory if the room could not be made.
  [[nodiscard]] Allocation take(MemoryPool const& pool, std::size_t bytes) {
    return state_ == nullptr ? Allocation{} : take_made(pool, bytes);
  }
  /// Gives back what was made and not taken.
  void give_back() noexcept {
    if (state_ != nullptr) give_back_made();
  }
  /// Others have been waited for: what could not be made may be possible now.
  void forget_refusals() noexcept;

 private:
  struct State;

  [[nodiscard]] bool may_be_requested_again() const noexcept;
  [[nodiscard]] bool awaits_making() const noexcept;
  [[nodiscard]] Allocation take_made(MemoryPool const& pool, std::size_t bytes);
  void give_back_made() noexcept;

  std::unique_ptr<State> state_;
};

}  // namespace unimem::detail
