#include "manager/requested_room.hpp"

#include <unimem/device/queue.hpp>
#include <unimem/manager/memory_manager.hpp>

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

namespace unimem::detail {

struct RequestedRoom::State {
  struct Made {
    MemoryPool* pool;
    std::size_t bytes;
    Queue* queue;  ///< in whose order the block was taken; null: it is ready for any use
    Allocation block;
    bool kept;  ///< until room has been made for what it is used with
  };
  struct Refusal {
    MemoryPool* pool;
    std::size_t bytes;
    std::exception_ptr why;
  };

  enum class Which : bool { all, not_kept };

  /// For nothing: what the operation needs has changed meanwhile.
  void give_back(Which which) noexcept {
    for (auto& one : made) {
      if (which == Which::not_kept && one.kept) continue;
      one.block.release(one.queue == nullptr ? Event{} : one.queue->record());
      ++in_vain;
    }
    std::erase_if(made, [](Made const& one) { return one.block.empty(); });
  }

  std::optional<RoomRequest> wanted;
  bool being_made = false;
  unsigned in_vain = 0;
  std::vector<Made> made;
  std::vector<Refusal> refusals;  ///< until others have been waited for
};

RequestedRoom::RequestedRoom() noexcept = default;

RequestedRoom::~RequestedRoom() {
  give_back();
}

bool RequestedRoom::may_be_requested_again() const noexcept {
  constexpr unsigned most_in_vain = 32;
  return !state_->being_made && state_->in_vain < most_in_vain;
}

bool RequestedRoom::awaits_making() const noexcept {
  return state_->wanted.has_value();
}

void RequestedRoom::request(RoomRequest room) {
  if (state_ == nullptr) state_ = std::make_unique<State>();
  state_->wanted = std::move(room);
}

bool RequestedRoom::make(AccessContext& context) {
  auto const wanted = *std::exchange(state_->wanted, std::nullopt);
  auto& pool = wanted.manager->pool(*wanted.device, wanted.location);
  state_->give_back(State::Which::not_kept);
  for (auto& one : state_->made) one.kept = false;
  state_->made.reserve(state_->made.size() + 1);
  state_->being_made = true;
  try {
    auto block = wanted.manager->make_room(context, wanted);
    state_->being_made = false;
    if (!block) return false;
    state_->made.push_back({&pool, wanted.bytes, wanted.options.queue, *std::move(block), false});
  } catch (OutOfMemory const&) {
    state_->being_made = false;
    state_->refusals.push_back({&pool, wanted.bytes, std::current_exception()});
  }
  return true;
}

Allocation RequestedRoom::take_made(MemoryPool const& pool, std::size_t bytes) {
  for (auto const& refusal : state_->refusals) {
    if (refusal.pool == &pool && refusal.bytes == bytes) std::rethrow_exception(refusal.why);
  }
  auto& made = state_->made;
  auto const found =
      std::ranges::find_if(made, [&](State::Made const& one) { return one.pool == &pool && one.bytes == bytes; });
  if (found == made.end()) return {};
  auto block = std::move(found->block);
  made.erase(found);
  return block;
}

void RequestedRoom::give_back_made() noexcept {
  state_->give_back(State::Which::all);
}

void RequestedRoom::keep(MemoryPool& pool, Allocation block) {
  if (!is_requested()) return;
  auto const bytes = block.size();
  state_->made.push_back({&pool, bytes, nullptr, std::move(block), true});
}

void RequestedRoom::forget_refusals() noexcept {
  if (state_ != nullptr) state_->refusals.clear();
}

}  // namespace unimem::detail
