#include <unimem/core/error.hpp>
#include <unimem/device/timed_wait.hpp>

#include "buffer/inside.hpp"
#include "buffer/mutants.hpp"
#include "core/check_level.hpp"
#include "device/current_task.hpp"
#include "device/page_watch.hpp"
#include "device/watched_wait.hpp"
#include "device/worker_threads.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <new>
#include <optional>
#include <utility>
#include <vector>

namespace unimem {
namespace {

bool wants_check() {
  return detail::check_level() > 0;
}

}  // namespace

bool BufferCore::Inside::watches_host() const {
  return tracking == Tracking::pages || wants_check();
}

std::unique_ptr<detail::HostWrites> BufferCore::Inside::watched(std::shared_ptr<detail::Storage> const& memory,
                                                                std::size_t size) const {
  if (tracking == Tracking::pages) return detail::track_pages(memory, size);
  if (!wants_check()) return nullptr;
  auto checked = detail::check_host(memory, size, display_name(), last_marks);
  bool const own_pages = stale_views && memory->pooled() && memory->pageable();
  return own_pages ? detail::guard_host(std::move(checked), stale_views, memory, size) : std::move(checked);
}

void BufferCore::Inside::watch_host() {
  collected = true;  // no address of this memory was given away: what this operation leaves there is known
  // Devices that share it may have come first, and are writing to it.
  if (tracking == Tracking::pages) host->wait_to_write(whole());
  host_writes = watched(host, bytes);
  if (!host_writes) return;
  pending.for_each_touch([this](Place place, ByteRange range, std::vector<Event> const& events) {
    if (place == host_place || !in_host_memory(place)) return;
    for (auto const event : events) host_writes->expect_device(range, event);
  });
}

void BufferCore::Inside::collect_host_writes(bool decide, bool wait) {
  std::optional<detail::HostWriteConflict> conflict;
  if (host_writes) {
    // With what is pending: when failed work is taken back, these are not.
    conflict = host_writes->collect(
        coherence, [this](ByteRange range) { commit_write(host_place, range, {}, Events::of_all); }, wait);
    collected = true;
    counters.unmarked_writes.fetch_add(host_writes->take_unmarked(), std::memory_order_relaxed);
  }
  record_mapped_writes();
  if (!conflict || decide) return;
  throw CoherenceConflict(display_name(),
                          {place_name(conflict->device), conflict->on_device.begin, conflict->on_device.end},
                          {fmt::format("host (found by pages of {} bytes)", detail::PageWatch::page_bytes()),
                           conflict->host.begin, conflict->host.end});
}

void BufferCore::Inside::expect_mapped_write() {
  unrecorded.reserve(unrecorded.size() + mapped_writes + 1);
  ++mapped_writes;
}

void BufferCore::Inside::try_to_record_writes() {
  try {
    collect_host_writes(true);
  } catch (std::bad_alloc const&) {  // NOLINT(bugprone-empty-catch)
    // The bytes have been written, and too late to refuse it: the next operation records them first, or is refused.
  }
}

void BufferCore::Inside::record_mapped_writes() {
  while (!unrecorded.empty()) {
    record_mapped_write(unrecorded.back());
    unrecorded.pop_back();
  }
}

void BufferCore::Inside::record_mapped_write(MappedWrite const& write) {
  auto const raise_later = [this](std::exception_ptr failure) {
    if (failure && !deferred) deferred = std::move(failure);
  };
  ensure_host_now();
  raise_later(resolve_work(write.range, true));
  auto rest = write.parts.empty() ? ByteRanges{write.range} : write.parts;
  // The bytes have been written, whatever else went wrong meanwhile: those that no device wrote count.
  while (!rest.empty()) {
    try {
      mark_there(coherence.plan_mark(host_place, rest, cost()), {});
      return;
    } catch (CoherenceConflict const& conflict) {
      auto before = rest;
      before.remove({conflict.earlier.begin, bytes});
      if (!before.empty()) mark_there(coherence.plan_mark(host_place, before, cost()), {});
      raise_later(std::current_exception());
      rest.remove({0, conflict.earlier.end});
    } catch (std::bad_alloc const&) {
      throw;
    } catch (...) {
      raise_later(std::current_exception());
      return;
    }
  }
}

void BufferCore::Inside::note(std::string_view what, ByteRange range) {
  if (wants_check()) last_marks = fmt::format("last declared: {} of bytes [{}, {})", what, range.begin, range.end);
}

void BufferCore::Inside::resolve_pending(ByteRange range, bool wait, bool decide) {
  check_not_captured();
  collect_host_writes(decide);
  if (deferred) std::rethrow_exception(std::exchange(deferred, nullptr));
  if (auto const failure = resolve_work(range, wait)) std::rethrow_exception(failure);
}

std::exception_ptr BufferCore::Inside::resolve_work(ByteRange range, bool wait) {
  if (pending.empty()) return nullptr;
  if (wait) await_pending(range);
  bool const child_had_it = detail::is_forked_child() && holds(host_place, range);
  auto failure = pending.resolve_pending(coherence, range, wait);
  if (!failure) return nullptr;
  forget_ended();
  if (written_map && !coherence.has_data()) written_map->forget(bytes);
  last_failure = "what wrote them failed";
  try {
    std::rethrow_exception(failure);
  } catch (UnsupportedOperation const& error) {
    // The parent's work, which is not carried out here: an upload that never arrives takes nothing from the host.
    // What it was to write is another matter: the copy that the host has again is not what the parent will have.
    if (child_had_it && holds(host_place, range)) return nullptr;
    last_failure = error.what();
  } catch (std::exception const& error) {
    last_failure = error.what();
  }
  return failure;
}

void BufferCore::Inside::await_pending(ByteRange range) const {
  bool const in_work = detail::CurrentTask::of_this_thread() != nullptr;
  if (pending.empty() || !(in_work || detail::is_watched())) return;
  std::vector<Event> events;
  pending.add_unfinished(range, events);
  for (auto const event : events) in_work ? wait_unless_endless(event) : detail::wait_watched(event);
}

bool BufferCore::Inside::would_wait_in_work() const {
  if (detail::CurrentTask::of_this_thread() == nullptr || pending.empty()) return false;
  std::vector<Event> events;
  pending.add_unfinished(whole(), events);
  return !events.empty();
}

void BufferCore::Inside::resolve_for_eviction(bool wait) {
  if (wait) await_pending(whole());  // an end to that is no failure of the owner's
  auto told = std::exchange(deferred, nullptr);
  try {
    resolve_pending(whole(), wait);
  } catch (std::exception const&) {
    if (!told) told = std::current_exception();
  }
  deferred = std::move(told);
}

void BufferCore::Inside::forget_ended() noexcept {
  if (UNIMEM_MUTANT(failures_not_forgotten)) return;
  if (host) host->hazards().forget_ended();
  for (auto const& other : sides) {
    if (other.storage) other.storage->hazards().forget_ended();
  }
}

void BufferCore::Inside::commit_copies(Plan const& plan, std::span<const Event> events) {
  if (plan.copies.empty()) return commit(plan, {});
  // Neighbours that go as one piece of work are committed as one.
  auto event = events.begin();
  for (auto copy = plan.copies.begin(); copy != plan.copies.end();) {
    Plan part;
    part.place = plan.place;
    part.range = copy->range;
    std::vector<Event> end;
    if (!copy->fence) end.push_back(*event);
    do {
      part.copies.push_back(*copy);
      if (!copy->fence) ++event;
      ++copy;
    } while (!end.empty() && copy != plan.copies.end() && !copy->fence && *event == end.front());
    commit(std::move(part), std::move(end));
  }
}

void BufferCore::Inside::commit(Plan plan, std::vector<Event> events, Events what) {
  pending.reserve(1);
  auto undo = coherence.commit(plan);
  bool const writes = plan.kind == Plan::Kind::mark || plan.intent != Intent::read;
  if (writes && written_map) {
    if (plan.parts.empty()) written_map->wrote(plan.range);
    for (auto const part : plan.parts.ranges()) written_map->wrote(part);
  }
  pending.add(std::move(events), what == Events::of_all, std::move(plan), std::move(undo));
}

BufferCore::Inside::PlannedWrite BufferCore::Inside::plan_write(Place place, ByteRange range, std::size_t together) {
  PlannedWrite write{coherence.plan_access(place, range, Intent::write, cost()), {}, {Event{}}};
  write.undo = coherence.prepare(write.plan, together);
  pending.reserve(together);
  if (host_writes) host_writes->reserve(together);
  if (written_map) written_map->wrote(range);
  return write;
}

void BufferCore::Inside::commit(PlannedWrite write, Event event, Events what) noexcept {
  auto const place = write.plan.place;
  if (host_writes && place != host_place && in_host_memory(place)) {
    host_writes->expect_device(write.plan.range, event);
  }
  coherence.record(write.plan, write.undo);
  write.end.front() = event;
  pending.add(std::move(write.end), what == Events::of_all, std::move(write.plan), std::move(write.undo));
}

void BufferCore::Inside::commit_write(Place place, ByteRange range, Event event, Events what) {
  commit(plan_write(place, range), event, what);
}

}  // namespace unimem
