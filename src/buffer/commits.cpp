#include "buffer/commits.hpp"

#include <unimem/core/error.hpp>
#include <unimem/device/detail/blocking_wait.hpp>

#include "buffer/buffer_parts.hpp"
#include "device/watched_wait.hpp"
#include "device/worker_threads.hpp"

#include <utility>

namespace unimem::detail {

void Commits::commit(Plan plan, std::vector<Event> const& events, Events what) const {
  auto& replicas = parts_->replicas;
  if (events.empty() && replicas.pending.empty()) {
    replicas.coherence.commit_certain(plan);
    return parts_->watch.wrote(plan);
  }
  WorkEvents ends(events.begin(), events.end());
  replicas.pending.reserve(1);
  auto undo = replicas.coherence.prepare(plan);
  TentativeChange change(std::move(plan), std::move(undo));
  change.record(replicas.coherence);
  Plan none;
  parts_->watch.wrote(change.plan(none));
  replicas.pending.add(std::move(ends), what == Events::of_all, std::move(change));
}

TentativeChange Commits::plan_write(Place place, ByteRange range, std::size_t together) const {
  auto& replicas = parts_->replicas;
  auto& coherence = replicas.coherence;
  auto const change = [&]() -> TentativeChange {
    if (coherence.is_rewrite(place, range)) return {place, range, coherence.data()};
    auto plan = coherence.plan_access(place, range, Intent::write, replicas.places.cost());
    auto undo = coherence.prepare(plan, together);
    return {std::move(plan), std::move(undo)};
  };
  auto write = change();
  replicas.pending.reserve(together);
  if (auto* const writes = parts_->watch.writes()) writes->reserve(together);
  parts_->watch.wrote(range);
  return write;
}

void Commits::commit(TentativeChange&& write, Event event, Events what) const noexcept {
  auto& replicas = parts_->replicas;
  auto const place = write.place();
  auto* const writes = parts_->watch.writes();
  if (writes != nullptr && place != host_place && replicas.places.in_host_memory(place)) {
    for (auto const range : write.touched()) writes->expect_device(range, event);
  }
  write.record(replicas.coherence);
  replicas.pending.add({event}, what == Events::of_all, std::move(write));
}

void Commits::commit_copies(Plan const& plan, std::span<const Event> events) const {
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
    commit(std::move(part), end);
  }
}

void Commits::commit_write(Place place, ByteRange range, Event event, Events what) const {
  commit(plan_write(place, range), event, what);
}

std::exception_ptr Commits::resolve(ByteRange range, bool wait, std::vector<Event>* unfinished, Tells tells) const {
  auto& replicas = parts_->replicas;
  if (replicas.pending.is_settled()) return nullptr;
  if (is_forked_child()) return resolve_in_child(range);
  if (wait) {
    // Where that may end with an error, before anything has changed.
    std::vector<Event> work;
    replicas.pending.add_unfinished(range, work);
    for (auto const event : work) await_end(event);
  }
  if (auto failure = replicas.pending.resolve(replicas.coherence, range, wait, unfinished)) {
    replicas.forget_ended();
    if (!replicas.coherence.has_data()) parts_->watch.forget(replicas.bytes());
    replicas.last_failure = failure;
  }
  bool const looks_again = unfinished != nullptr && !unfinished->empty();
  return tells == Tells::no || looks_again ? nullptr : replicas.pending.tell(range);
}

std::exception_ptr Commits::resolve_in_child(ByteRange range) const {
  // An upload that never arrives takes nothing from the host. Nothing is taken back: the copy that the host would have
  // again is not what the parent will have.
  auto const& replicas = parts_->replicas;
  return replicas.holds(host_place, range) ? replicas.pending.failure_at(host_place, range)
                                           : replicas.pending.failure(range);
}

bool Commits::would_wait_in_work() const {
  if (!is_in_work() || parts_->replicas.pending.empty()) return false;
  std::vector<Event> events;
  parts_->replicas.pending.add_unfinished(parts_->replicas.whole(), events);
  return !events.empty();
}

}  // namespace unimem::detail
