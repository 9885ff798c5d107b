#include "manager/access_context.hpp"

#include <unimem/device/detail/blocking_wait.hpp>

#include "device/watched_wait.hpp"
#include "manager/admission_queue.hpp"

#include <utility>

namespace unimem::detail {
namespace {

/// To tell that operations nest; nothing is passed along by it.
constinit thread_local AccessContext* innermost = nullptr;

}  // namespace

AccessContext::AccessContext(Waiting waiting, Evicts evicts) noexcept
    : outer_(innermost),
      waits_(outer_ == nullptr && waiting == Waiting::allowed && !is_in_work()),
      unlocks_(waiting != Waiting::never),
      evicts_(evicts == Evicts::yes) {
  innermost = this;
}

AccessContext::~AccessContext() {
  innermost = outer_;
  let_go();
  end_turn();
}

bool AccessContext::make_room() {
  again_ = true;
  taken_.clear();
  return room_.make(*this);
}

void AccessContext::try_again() noexcept {
  again_ = true;
  let_go();
  room_.forget_refusals();
}

void AccessContext::await_work() {
  again_ = true;
  if (auto const other = std::exchange(must_wait_.other, nullptr)) return other();
  ++work_waits_;
  auto const work = std::exchange(must_wait_.work, {});
  for (auto const event : work) await_end(event);
}

void AccessContext::end_turn() noexcept {
  if (auto* const turn = std::exchange(turn_, nullptr)) turn->end();
}

}  // namespace unimem::detail
