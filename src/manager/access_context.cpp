#include "manager/access_context.hpp"

#include <unimem/device/queue.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "device/current_task.hpp"
#include "device/watched_wait.hpp"
#include "manager/admission_queue.hpp"

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

namespace unimem::detail {

/// What was made room for on behalf of one operation, and what is to be.
struct AccessContext::Rooms {
  struct Room {
    MemoryPool* pool;
    std::size_t bytes;
    Queue* queue;  ///< in whose order the block was taken; null: it is ready for any use
    Allocation block;
  };
  struct Refusal {
    MemoryPool* pool;
    std::size_t bytes;
    std::exception_ptr why;
  };

  /// For nothing: what the operation needs has changed meanwhile.
  void give_back() noexcept {
    if (!made) return;
    made->block.release(made->queue == nullptr ? Event{} : made->queue->record());
    made.reset();
    ++in_vain;
  }

  std::optional<RoomRequest> wanted;
  bool being_made = false;
  unsigned in_vain = 0;
  std::optional<Room> made;
  std::vector<Refusal> refusals;  ///< until others have been waited for
};

AccessContext::AccessContext(Waiting waiting, Evicts evicts) noexcept
    : outer_(innermost()),
      waits_(outer_ == nullptr && waiting == Waiting::allowed && CurrentTask::of_this_thread() == nullptr),
      unlocks_(waiting != Waiting::never),
      evicts_(evicts == Evicts::yes) {
  innermost() = this;
}

AccessContext*& AccessContext::innermost() noexcept {
  thread_local AccessContext* of_this_thread = nullptr;
  return of_this_thread;
}

AccessContext::~AccessContext() {
  innermost() = outer_;
  let_go();
  end_turn();
}

void AccessContext::let_go() noexcept {
  if (rooms_ != nullptr) rooms_->give_back();
  if (taken_.on != nullptr) taken_.on->subtract(taken_.bytes);
  for (auto const& [on, bytes] : beside_) on->subtract(bytes);
  taken_ = {};
  beside_.clear();
}

void AccessContext::count_taken(TakenMemory& on, std::size_t bytes) {
  auto* entry = &taken_;
  if (taken_.on != nullptr && taken_.on != &on) {
    auto const found = std::ranges::find(beside_, &on, &Taken::on);
    entry = found != beside_.end() ? &*found : &beside_.emplace_back();
  }
  entry->on = &on;
  entry->bytes += bytes;
  on.add(bytes);
}

std::size_t AccessContext::taken(TakenMemory const& on) const noexcept {
  if (taken_.on == &on) return taken_.bytes;
  auto const found = std::ranges::find(beside_, &on, &Taken::on);
  return found != beside_.end() ? found->bytes : 0;
}

void AccessContext::needs_room(RoomRequest room) {
  if (rooms_ == nullptr) rooms_ = std::make_unique<Rooms>();
  rooms_->wanted = std::move(room);
  needs_room_ = true;
}

bool AccessContext::may_make_another() const noexcept {
  constexpr unsigned most_in_vain = 32;
  return !rooms_->being_made && rooms_->in_vain < most_in_vain;
}

bool AccessContext::make_room() {
  needs_room_ = false;
  again_ = true;
  let_go();
  auto const wanted = *std::exchange(rooms_->wanted, std::nullopt);
  auto& pool = wanted.manager->pool(*wanted.device, wanted.location);
  rooms_->being_made = true;
  try {
    auto block = wanted.manager->make_room(*this, wanted);
    rooms_->being_made = false;
    if (!block) return false;
    rooms_->made = Rooms::Room{&pool, wanted.bytes, wanted.options.queue, *std::move(block)};
  } catch (OutOfMemory const&) {
    rooms_->being_made = false;
    rooms_->refusals.push_back({&pool, wanted.bytes, std::current_exception()});
  }
  return true;
}

Allocation AccessContext::take_room_made(MemoryPool const& pool, std::size_t bytes) {
  for (auto const& refusal : rooms_->refusals) {
    if (refusal.pool == &pool && refusal.bytes == bytes) std::rethrow_exception(refusal.why);
  }
  auto& made = rooms_->made;
  if (!made || made->pool != &pool || made->bytes != bytes) return {};
  auto block = std::move(made->block);
  made.reset();
  return block;
}

void AccessContext::try_again() noexcept {
  again_ = true;
  let_go();
  if (rooms_ != nullptr) rooms_->refusals.clear();
}

void AccessContext::await_work() {
  ++work_waits_;
  again_ = true;
  auto const work = std::exchange(must_wait_.work, {});
  for (auto const event : work) await_end(event);
}

AccessContext::Need AccessContext::need(MemoryManager const& of) const noexcept {
  auto const found = std::ranges::find(needs_, &of, &Need::of);
  return found != needs_.end() ? *found : Need{&of, 0, 0};
}

void AccessContext::needs(MemoryManager const& of, std::size_t outstanding, std::size_t together) {
  auto const known = std::ranges::find(needs_, &of, &Need::of);
  auto& sum = known != needs_.end() ? *known : needs_.emplace_back(Need{&of, 0, 0});
  sum.outstanding += outstanding;
  sum.together += together;
}

void AccessContext::took(MemoryManager const& of, std::size_t bytes) noexcept {
  auto const known = std::ranges::find(needs_, &of, &Need::of);
  if (known != needs_.end()) known->outstanding -= std::min(bytes, known->outstanding);
}

void AccessContext::end_turn() noexcept {
  if (auto* const turn = std::exchange(turn_, nullptr)) turn->end();
}

}  // namespace unimem::detail
