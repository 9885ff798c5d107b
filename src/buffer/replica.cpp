#include "buffer/replica.hpp"

#include <unimem/core/log.hpp>
#include <unimem/device/detail/blocking_wait.hpp>
#include <unimem/device/timed_wait.hpp>

#include "buffer/fast_lease.hpp"
#include "buffer/host_device.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace unimem::detail {

bool Holds::leased() const noexcept {
  if (leases_.load(std::memory_order_acquire) != 0) return true;
  auto const* const fast_lease = fast_lease_.load(std::memory_order_acquire);
  return fast_lease != nullptr && fast_lease->entered();
}

Replica::~Replica() {
  try {
    apply_advice({});                // the memory's next owner has given no such advice
  } catch (std::bad_alloc const&) {  // NOLINT(bugprone-empty-catch): hints that were not taken back are hints still
  }
  if (zero_at_end_ && pooled()) zero_before_the_end();
  let_go(last_work());
}

void Replica::mark_exported(ByteRange part, bool for_writing) noexcept {
  holds_.mark_exported(for_writing);
  if (auto* const in_parts = reserved()) in_parts->hold(part);  // for good
}

void Replica::zero_before_the_end() noexcept {
  try {
    zero();
  } catch (std::exception const& error) {
    log(LogLevel::error, "memory that was to be overwritten with zeros goes back to its pool as it is:");
    log(LogLevel::error, error.what());
  }
}

void Replica::apply_advice_slow(AdviceBook const& advice) {
  for (auto const& [what, place, range] : told_.beyond(advice)) {
    device().advise(window(range), location(), what, place, false);
  }
  for (auto const& [what, place, range] : advice.beyond(told_)) {
    device().advise(window(range), location(), what, place, true);
  }
  told_ = advice;
}

void Replica::read_into(std::span<std::byte> target, std::size_t offset) {
  work_.wait_for_host_access({offset, offset + target.size()}, false);
  if (in_file()) return read_file(target, offset);
  std::memcpy(target.data(), static_cast<std::byte const*>(host_address()) + offset, target.size());
}

/// One event for all work here: a block takes one ticket.
Event Replica::last_work() noexcept {
  if (work_.empty()) return {};
  std::vector<Event> events;
  for (bool listed = false; !listed;) {
    try {
      static_cast<void>(work_.at_rest());  // others' work goes on record
      events = work_.unfinished();
      listed = true;
    } catch (std::bad_alloc const&) {
      if (work_.idle()) return {};
      std::this_thread::sleep_for(std::chrono::milliseconds{1});  // until it has ended, or there is memory to list it
    }
  }
  if (events.empty()) return {};  // it is the next owner's at once
  try {
    // Where the host works too, by the host, whose queues wait for any work without holding up other work.
    return (serves_host() || in_file() ? host_device() : device()).waiting_queue().join(events);
  } catch (std::exception const&) {
    // No memory for that, or no queue any more: then here and now.
    for (auto const event : events) {
      BlockingWait{event}.run([&](BlockingWait::Clock::time_point until) { return wait_until(event, until); });
    }
    return {};
  }
}

void Replica::zero() {
  static constexpr std::array<std::byte, 1> zero{};
  auto& queue = (serves_host() ? host_device() : device()).default_queue();
  work_.order_write(queue, whole());
  work_.reserve(1);
  work_.written_by(whole(), queue.fill(serves_host() ? host_window(whole()) : memory(), zero));
}

void Replica::hand_over() {
  holds_.forget_exports();
  work_.hand_over(whole());
}

}  // namespace unimem::detail
