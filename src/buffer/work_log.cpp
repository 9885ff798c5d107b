#include "buffer/work_log.hpp"

#include <unimem/device/device.hpp>

#include "buffer/holds.hpp"
#include "device/queue_control.hpp"
#include "device/watched_wait.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

namespace unimem::detail {
namespace {

/// Whatever the replica's size.
constexpr ByteRange everything{0, std::numeric_limits<std::size_t>::max()};

void add_once(std::vector<Event>& events, Event event) {
  if (std::ranges::find(events, event) == events.end()) events.push_back(event);
}

}  // namespace

Region::Region(std::shared_ptr<ByteRanges const> parts) : parts_(std::move(parts)) {
  if (!parts_->empty()) hull_ = {parts_->ranges().front().begin, parts_->ranges().back().end};
}

bool Region::parts_meet(Region const& other) const noexcept {
  if (parts_ && other.parts_) return parts_->intersects(*other.parts_);
  if (parts_) return parts_->intersects(other.hull_);
  return !other.parts_ || other.parts_->intersects(hull_);
}

bool Region::lies_in_parts_of(Region const& other) const noexcept {
  if (!parts_) return other.parts_->contains(hull_);
  return std::ranges::all_of(parts_->ranges(), [&](ByteRange part) { return other.parts_->contains(part); });
}

void WorkLog::reserve(std::size_t works) {
  auto const needed = uses_.size() + works;
  // At least doubling: exact steps would copy the vector for every piece of work.
  if (needed > uses_.capacity()) uses_.reserve(std::max(needed, 2 * uses_.size()));
}

void WorkLog::read_by(Region region, Event event) {
  if (region.empty()) return;
  // Of one queue the later read ends last.
  auto const* const queue = QueueControl::of(event);
  auto const is_older = [&](Use const& use) {
    return use.kind == Kind::read && QueueControl::of(use.event) == queue && use.region.lies_in(region);
  };
  auto const older = std::ranges::find_if(uses_, is_older);
  if (older == uses_.end()) return add({std::move(region), event, Kind::read});
  uses_.erase(std::remove_if(std::next(older), uses_.end(), is_older), uses_.end());
  *older = {std::move(region), event, Kind::read};
}

void WorkLog::written_by(Region region, Event event) {
  if (region.empty()) return;
  std::erase_if(uses_, [&](Use const& use) { return use.region.lies_in(region); });
  add({std::move(region), event, Kind::write});
}

void WorkLog::written_elsewhere_by(ByteRange range, Event event) {
  if (!range.empty()) add({range, event, Kind::write});
}

void WorkLog::perhaps_written_by(ByteRange range, Event event) {
  std::erase_if(uses_, [&](Use const& use) {
    return use.kind == Kind::foreign && use.event.queue_id() == event.queue_id() && use.region.lies_in(range);
  });
  add({range, event, Kind::foreign});
}

void WorkLog::not_needed(std::span<const Event> events) noexcept {
  for (auto& use : uses_) {
    bool const named = std::ranges::find(events, use.event) != events.end();
    if (named && use.kind == Kind::write) use.kind = Kind::foreign;
  }
}

void WorkLog::add(Use use) {
  if (uses_.size() >= look_at_) {
    std::erase_if(uses_,
                  [](Use const& old) { return old.event.ready() && !(old.kind == Kind::write && old.event.error()); });
    // Asking costs a driver's call: no sooner again than after as many more as are still there.
    look_at_ = std::max<std::size_t>(32, 2 * uses_.size());
  }
  uses_.push_back(std::move(use));
}

void WorkLog::used_by_others(Device& device, Queue const* queue) {
  // Two sets of strangers at once are strangers anywhere on their devices.
  auto const id = queue == nullptr ? 0 : queue->id();
  bool const elsewhere = others_on_ != nullptr && others_on_ != &device;
  if (elsewhere) {
    if (std::ranges::find(also_on_, &device) == also_on_.end()) also_on_.push_back(&device);
    others_queue_ = 0;
    return;
  }
  others_queue_ = others_on_ == nullptr || others_queue_ == id ? id : 0;
  others_on_ = &device;
}

bool WorkLog::used_by_others_on(Device const& device, std::uint64_t queue_id) const noexcept {
  return others_on_ == &device && also_on_.empty() && others_queue_ == queue_id;
}

void WorkLog::note_others() {
  if (others_on_ == nullptr) return;
  // Before looking for their work: a lease that ends in between has submitted what that look may have missed.
  bool const others_stay = holds_->leased();
  for (auto const event : others_on_->unfinished()) {
    if (others_queue_ == 0 || event.queue_id() == others_queue_) perhaps_written_by(everything, event);
  }
  for (auto* const further : also_on_) {
    for (auto const event : further->unfinished()) perhaps_written_by(everything, event);
  }
  if (others_stay) return;
  others_on_ = nullptr;
  also_on_.clear();
}

void WorkLog::order(Queue& queue, Region const& region, bool behind_reads) const {
  auto const own = queue.id();  // whose work ends in order anyway
  for (auto const& use : uses_) {
    auto const* const of = QueueControl::of(use.event);
    if (of == nullptr || of->id() == own || (use.kind == Kind::read && !behind_reads)) continue;
    if (use.region.meets(region)) queue.wait(use.event);
  }
}

void WorkLog::order_read(Queue& queue, Region const& region) {
  if (others_on_ != nullptr && others_queue_ != queue.id()) note_others();
  order(queue, region, false);
}

void WorkLog::order_write(Queue& queue, Region const& region) {
  if (others_on_ != nullptr && others_queue_ != queue.id()) note_others();
  order(queue, region, true);
}

std::vector<Event> WorkLog::before_host_access(ByteRange range, bool writes) {
  if (empty()) return {};
  note_others();
  if (writes) return unfinished_on(range, true);
  return unfinished_on(range, false);
}

void WorkLog::wait_for_host_access(ByteRange range, bool writes) {
  for (auto const event : before_host_access(range, writes)) await_end(event);
}

std::vector<Event> WorkLog::unfinished_on(ByteRange range, bool readers_too) const {
  std::vector<Event> events;
  for (auto const& use : uses_) {
    if ((readers_too || use.kind != Kind::read) && use.region.meets(range) && !use.event.ready()) {
      add_once(events, use.event);
    }
  }
  return events;
}

void WorkLog::add_writers(Region const& region, std::vector<Event>& events) const {
  for (auto const& use : uses_) {
    if (use.kind != Kind::write || !use.region.meets(region)) continue;
    if (!QueueControl::knows_good_end_of(use.event)) add_once(events, use.event);
  }
}

std::vector<Event> WorkLog::unfinished() const {
  std::vector<Event> latest;
  for (auto const& use : uses_) {
    if (use.event.ready()) continue;
    auto const same = std::ranges::find(latest, use.event.queue_id(), &Event::queue_id);
    if (same == latest.end()) {
      latest.push_back(use.event);
    } else if (same->ticket() < use.event.ticket()) {
      *same = use.event;
    }
  }
  return latest;
}

bool WorkLog::writes_ended_well(ByteRange range) const noexcept {
  return std::ranges::all_of(uses_, [&](Use const& use) {
    if (use.kind == Kind::read || !use.region.meets(range)) return true;
    return use.event.ready() && (use.kind == Kind::foreign || !use.event.error());
  });
}

bool WorkLog::arrived(ByteRange range) const noexcept {
  return others_on_ == nullptr && writes_ended_well(range);
}

bool WorkLog::idle() const noexcept {
  return others_on_ == nullptr && std::ranges::all_of(uses_, [](Use const& use) { return use.event.ready(); });
}

bool WorkLog::at_rest() {
  note_others();
  return idle();
}

void WorkLog::forget_ended() noexcept {
  std::erase_if(uses_, [](Use const& use) { return use.event.ready(); });
}

void WorkLog::hand_over(ByteRange whole) {
  note_others();
  auto const pending = unfinished();
  if (pending.empty()) return forget_ended();
  std::vector<Use> behind;
  behind.reserve(pending.size());
  for (auto const event : pending) {
    behind.push_back({whole, event, Kind::foreign});
  }
  uses_ = std::move(behind);
}

}  // namespace unimem::detail
