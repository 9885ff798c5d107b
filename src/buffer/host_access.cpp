#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/timed_wait.hpp>

#include "buffer/inside.hpp"
#include "buffer/mutants.hpp"
#include "device/current_task.hpp"

#include <algorithm>
#include <exception>
#include <iterator>
#include <new>
#include <optional>
#include <utility>

namespace unimem {

BufferCore::HostUse BufferCore::use_host(ByteRange range, Intent intent) {
  // With the lock even where all is ready: without a lease another thread may let go of the memory meanwhile.
  HostUse use;
  use.address = host_slow(range, intent, &use.lease, false);
  return use;
}

BufferCore::HostUse BufferCore::use_host_to_write(ByteRange range) {
  Guard(*this)->expect_mapped_write();
  try {
    return use_host(range, Intent::write);
  } catch (...) {
    nothing_written_through_map();
    throw;
  }
}

void BufferCore::written_on_host(ByteRange range, HostUse const& use) {
  Guard inside(*this, Inside::Watched::no);
  --inside->mapped_writes;
  if (range.empty() || !inside->host || inside->host->host_window(range) != use.lease.memory()) return;
  auto const places = static_cast<Place>(inside->sides.size() + 1);
  for (Place place = host_place + 1; place < places; ++place) {
    if (inside->in_host_memory(place) || !inside->coherence.valid(place).intersects(range)) continue;
    inside->unrecorded.push_back({range, {}});  // into the room that was made before
    return inside->try_to_record_writes();
  }
}

void BufferCore::note_read(ByteRange range) const {
  if (inside_->written_map) inside_->written_map->read(range, "on the host");
}

void BufferCore::await_in_work(ByteRange range, Intent intent) {
  if (detail::CurrentTask::of_this_thread() == nullptr || host_ready(intent)) return;
  for (auto const event : work_on(range, intent)) wait_unless_endless(event);
  // Where pages tell what is written, a copy to the host is waited for with the buffer locked.
  bool const copies = intent != Intent::write && tracking() != Tracking::pages && is_allocated();
  if (copies && !host_ready(intent)) wait_unless_endless(fetch(range));
}

void* BufferCore::host_slow(ByteRange range, Intent intent, DeviceLease* hold, bool looks) {
  await_in_work(range, intent);
  Guard inside(*this);
  bool const for_writing = intent != Intent::read;
  looks = looks && !for_writing;
  inside->check_access("host access");
  inside->check_range(range);
  // Manual tracking: a read-write view is a read until it is marked.
  // So it is where pages tell what was really written.
  bool const in_place = inside->tracking != Tracking::access && intent == Intent::read_write;
  if (in_place) intent = Intent::read;
  inside->resolve_pending(range, true);
  if (intent != Intent::read) inside->note("a host view that may be written", range);
  bool const there = intent == Intent::read && inside->holds(host_place, range);
  if (!there) {
    inside->ensure_host_now(intent == Intent::write ? range : ByteRange{});
    auto plan = inside->coherence.plan_access(host_place, range, intent, inside->cost());
    inside->spare_good_bytes(plan);
    inside->part_into_rows(plan);
    if (intent != Intent::write) inside->check_lost(plan);
    inside->carry_out(plan);
    if (inside->host && intent != Intent::read) inside->host->wait_to_write(range);
    inside->commit(std::move(plan), {});
  } else if (inside->host) {
    inside->ensure_resident(*inside->host);
  }
  if (inside->host) inside->host->usage().note_host(intent != Intent::write, intent != Intent::read);
  if (inside->host) in_place ? inside->host->wait_to_write(range) : inside->host->wait_to_read(range);
  if (looks) note_read(range);
  if (!inside->host) return nullptr;
  if (hold == nullptr) {
    inside->host->mark_exported(for_writing);
  } else {
    *hold = {inside->host, inside->host->host_window(range)};
  }
  return inside->host->host_address();
}

std::vector<Event> BufferCore::work_on(ByteRange range, Intent intent, Device const* device) {
  std::vector<Event> events;
  Guard inside(*this);
  inside->pending.add_unfinished(range, events);
  auto const add = [&](Place place, bool readers_too) {
    auto const& storage = inside->storage_at(place);
    if (storage && !storage->at_rest()) storage->hazards().add_unfinished(range, readers_too, events);
  };
  auto const known = device == nullptr ? std::optional{host_place} : inside->find_place(*device);
  if (known) add(*known, intent != Intent::read);
  if (intent == Intent::write || (known && inside->holds(*known, range))) return events;
  // What is lacking comes from elsewhere.
  for (std::size_t i = 0; i <= inside->sides.size(); ++i) add(static_cast<Place>(i), false);
  return events;
}

std::vector<Event> BufferCore::work_under_way() {
  std::vector<Event> events;
  Guard inside(*this);
  auto const add = [&](std::shared_ptr<detail::Storage> const& storage) {
    if (storage && !storage->at_rest()) std::ranges::copy(storage->hazards().unfinished(), std::back_inserter(events));
  };
  add(inside->host);
  for (auto const& side : inside->sides) add(side.storage);
  return events;
}

void BufferCore::bring_to_host_slow(std::span<const ByteRange> ranges) {
  for (auto const range : ranges) await_in_work(range, Intent::read);
  Guard inside(*this);
  inside->check_access("host access");
  for (auto const range : ranges) inside->check_range(range);
  for (auto const range : ranges) inside->resolve_pending(range, true);
  inside->ensure_host_now();
  std::vector<Plan> plans;
  Plan all;
  all.place = host_place;
  for (auto const range : ranges) {
    auto plan = inside->plan_read(host_place, range);
    inside->check_lost(plan);
    all.copies.insert(all.copies.end(), plan.copies.begin(), plan.copies.end());
    plans.push_back(std::move(plan));
  }
  inside->carry_out(all);
  if (inside->host) inside->host->usage().note_host(true, false);
  for (auto& plan : plans) inside->commit(std::move(plan), {});
}

Event BufferCore::fetch(ByteRange range) {
  Guard inside(*this);
  return inside->fetch(range);
}

Event BufferCore::Inside::fetch(ByteRange range) {
  check_access("host access");
  check_range(range);
  // Bytes that arrive later could not be told from a user's: so tracked buffers wait, and resolve what is pending
  // first.
  resolve_pending(range, watches_host());
  ensure_host_now();
  auto plan = plan_read(host_place, range);
  check_lost(plan);
  if (host_writes) {
    carry_out(plan);
    commit(std::move(plan), {});
    return {};
  }
  bring(plan, nullptr);
  return arrival(host_place, range, detail::host_device().default_queue());
}

Event BufferCore::sync_to_host_async(ByteRange range) {
  {
    Guard inside(*this);
    inside->check_allocated("sync_to_host");
  }
  return fetch(range);
}

void BufferCore::sync_to_host_slow(ByteRange range) {
  {
    Guard inside(*this);
    inside->check_allocated("sync_to_host");
  }
  static_cast<void>(use_host(range, Intent::read));
}

void BufferCore::mark_host_dirty(ByteRange range) {
  Guard inside(*this);
  inside->check_allocated("mark_host_dirty");
  inside->check_range(range);
  if (inside->host_writes) inside->host_writes->declared(range);
  inside->resolve_pending(range, true, true);
  inside->note("mark_host_dirty", range);
  detail::AccessContext context{detail::AccessContext::Waiting::never};  // with the lock held
  static_cast<void>(inside->mark(context, *this, host_place, range, {}));
}

void BufferCore::mark_device_dirty(Device* device, ByteRange range, Event event) {
  detail::run_admitted([&](detail::AccessContext& context) {
    Guard inside(*this);
    inside->check_allocated("mark_device_dirty");
    inside->check_range(range);
    inside->resolve_pending(range, true, true);
    inside->note("mark_device_dirty", range);
    auto const place = inside->place_of(device == nullptr ? inside->default_device() : *device);
    if (!inside->mark(context, *this, place, range, event)) return false;
    if (inside->host_writes) inside->host_writes->overrule(range);
    return true;
  });
}

DeviceLease BufferCore::map(ByteRange range, MapMode mode, bool looks) {
  if (mode == MapMode::read) {
    auto mapped = map_to_read(range);
    if (looks) note_read(range);
    return mapped;
  }
  await_in_work(range, mode == MapMode::discard ? Intent::write : Intent::read_write);
  Guard(*this)->expect_mapped_write();
  try {
    return map_to_write(range, mode);
  } catch (...) {
    nothing_written_through_map();
    throw;
  }
}

void BufferCore::nothing_written_through_map() noexcept {
  try {
    --Guard(*this, Inside::Watched::no)->mapped_writes;
  } catch (std::exception const&) {  // NOLINT(bugprone-empty-catch): a forked child's, where no thread writes any more
  }
}

DeviceLease BufferCore::map_to_read(ByteRange range) {
  return std::move(use_host(range, Intent::read).lease);
}

DeviceLease BufferCore::map_to_write(ByteRange range, MapMode mode) {
  auto held = use_host(range, mode == MapMode::discard ? Intent::write : Intent::read);
  Guard inside(*this);
  // If it has been freed since, what is written is not missed.
  if (!inside->host || inside->host->host_window(range) != held.lease.memory()) return std::move(held.lease);
  if (inside->host_writes) inside->host_writes->expect(range);
  if (!UNIMEM_MUTANT(maps_write_at_once)) {
    // Old failures are told now: once code has written in place it is too late to refuse.
    inside->resolve_pending(range, true);
    // What was submitted before must not see what is about to be written.
    inside->host->wait_to_write(range);
  }
  return std::move(held.lease);
}

void BufferCore::written_through_map(ByteRange range, DeviceLease const& mapped, ByteRanges parts) {
  Guard inside(*this, Inside::Watched::no);
  --inside->mapped_writes;
  // The lease holds the memory it was made for, so no other memory can have come to lie at its address.
  if (!inside->host || inside->host->host_window(range) != mapped.memory()) return;
  if (!range.empty()) inside->unrecorded.push_back({range, std::move(parts)});  // into the room that `map` has made
  if (inside->host_writes) inside->host_writes->not_expected(range);
  try {
    inside->note("unmapping a mapping that may be written", range);
  } catch (std::bad_alloc const&) {  // NOLINT(bugprone-empty-catch): a note for messages alone
  }
  inside->try_to_record_writes();
  if (inside->deferred) std::rethrow_exception(std::exchange(inside->deferred, nullptr));
  inside->check_not_captured();
}

}  // namespace unimem
