#include "manager/access_context.hpp"

#include "device/watched_wait.hpp"
#include "manager/admission_queue.hpp"

#include <algorithm>
#include <utility>

namespace unimem::detail {

AccessContext*& AccessContext::innermost() noexcept {
  thread_local AccessContext* of_this_thread = nullptr;
  return of_this_thread;
}

AccessContext::~AccessContext() {
  innermost() = outer_;
  let_go();
}

void AccessContext::let_go() noexcept {
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

void AccessContext::try_again() noexcept {
  let_go();
  auto const now = std::chrono::steady_clock::now();
  if (!std::exchange(again_, true)) insists_at_ = now + longest_wait;
  insists_ = insists_ || now >= insists_at_;
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
