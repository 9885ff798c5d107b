#include "buffer/tentative_work.hpp"

#include "device/queue_control.hpp"
#include "device/worker_threads.hpp"

#include <algorithm>
#include <limits>
#include <ranges>
#include <utility>

namespace unimem::detail {
namespace {

/// What failed in its turn: nothing it touched is what earlier work left there.
void ruin(Coherence& coherence, TentativeChange const& change) {
  for (auto const range : change.touched()) {
    Plan plan;
    plan.place = change.place();
    plan.range = range;
    plan.intent = Intent::write;
    if (coherence.can_commit(plan)) coherence.roll_back(coherence.commit(plan));
  }
}

}  // namespace

Plan const& TentativeChange::plan(Plan& room) const {
  if (known_) return known_->plan;
  room.place = place_;
  room.range = rewritten_;
  room.intent = Intent::write;
  return room;
}

ByteRanges TentativeChange::concerned() const {
  if (known_ == nullptr) return ByteRanges(rewritten_);
  if (known_->undo.adopted) return ByteRanges({0, std::numeric_limits<std::size_t>::max()});
  auto all = known_->undo.touched;
  all.add(known_->undo.changed);
  return all;
}

Coherence::Undo TentativeChange::undo() const {
  return known_ ? known_->undo : Coherence::undo_of_rewrite(place_, rewritten_, data_);
}

bool TentativeWork::Entry::ended() const noexcept {
  return std::ranges::all_of(events, &QueueControl::knows_end_of);
}

bool TentativeWork::Entry::ended_if_asked() const noexcept {
  return std::ranges::all_of(events, &Event::ready);
}

std::exception_ptr TentativeWork::Entry::failure() const noexcept {
  std::exception_ptr first;
  for (auto const event : events) {
    if (auto failure = event.wait_for_error(); failure && !first) first = std::move(failure);
  }
  return first;
}

bool TentativeWork::Entry::never_began() const noexcept {
  return may_be_untouched && std::ranges::all_of(events, &Event::never_began);
}

void TentativeWork::reserve(std::size_t works) {
  auto const needed = all_.size() + works;
  if (needed > all_.capacity()) all_.reserve(std::max(needed, 2 * all_.size()));
}

void TentativeWork::add(WorkEvents&& events, bool nothing_else, TentativeChange&& change) noexcept {
  // Work that changed nothing has nothing to take back; kept, it would hold up all that comes behind it.
  if (change.is_nothing()) return;
  auto const left = std::ranges::remove_if(events, &QueueControl::knows_good_end_of);
  bool const some_is_done = !left.empty();
  events.erase(left.begin(), left.end());
  // Behind unfinished work even a finished commit is kept: to take the one back, the other must be taken back first. A
  // forked child takes nothing back.
  if (events.empty() && (entries().empty() || is_forked_child())) return;
  auto const queue = events.size() == 1 ? events.front().queue_id() : 0;
  bool const behind = entries().empty() || (queue == queue_ && queue != 0 &&
                                            entries().back().events.front().ticket() <= events.front().ticket());
  queue_ = behind ? queue : 0;
  all_.push_back({std::move(events), std::move(change), nothing_else && !some_is_done});
}

bool TentativeWork::drop_ended_well() noexcept {
  if (!all_told()) return false;
  if (empty()) return true;
  if (is_forked_child()) return false;
  if (queue_ != 0 && !entries().front().ended()) return true;  // nor has what is behind it
  drop_what_is_certain();
  if (queue_ != 0) return entries().empty() || !entries().front().ended();
  return std::ranges::none_of(entries(), &Entry::ended);
}

std::exception_ptr TentativeWork::tell(ByteRange range) {
  if (all_told()) return nullptr;
  auto failure = untold_->tell(range);
  if (untold_->empty()) untold_.reset();
  return failure;
}

std::exception_ptr TentativeWork::resolve(Coherence& coherence, ByteRange range, bool wait,
                                          std::vector<Event>* unfinished) {
  for (auto const& entry : entries()) {
    if (!entry.change.reaches(range) || !(wait || entry.ended())) continue;
    if (!entry.failure()) continue;
    if (unfinished != nullptr && add_unfinished(*unfinished)) return nullptr;
    return take_failures_back(coherence);
  }
  drop_what_is_certain();
  return nullptr;
}

std::exception_ptr TentativeWork::failure(ByteRange range) const noexcept {
  for (auto const& entry : entries()) {
    if (!entry.change.reaches(range)) continue;
    if (auto failure = entry.failure()) return failure;
  }
  return nullptr;
}

std::exception_ptr TentativeWork::failure_at(Place place, ByteRange range) const noexcept {
  for (auto const& entry : entries()) {
    auto const in_range = [&](ByteRange touched) { return touched.meets(range); };
    if (entry.change.place() != place || std::ranges::none_of(entry.change.touched(), in_range)) continue;
    if (auto failure = entry.failure()) return failure;
  }
  return nullptr;
}

void TentativeWork::Entry::add_unfinished(std::vector<Event>& to) const {
  for (auto const event : events) {
    if (!event.ready() && std::ranges::find(to, event) == to.end()) to.push_back(event);
  }
}

void TentativeWork::add_unfinished(ByteRange range, std::vector<Event>& events) const {
  bool failed = false;
  for (auto const& entry : entries()) {
    if (!entry.change.reaches(range)) continue;
    entry.add_unfinished(events);
    failed = failed || (entry.ended() && entry.failure() != nullptr);
  }
  if (failed) static_cast<void>(add_unfinished(events));
}

bool TentativeWork::add_unfinished(std::vector<Event>& events) const {
  for (auto const& entry : entries()) entry.add_unfinished(events);
  return !events.empty();
}

std::exception_ptr TentativeWork::take_failures_back(Coherence& coherence) {
  // Once all of it has stopped moving.
  std::vector<std::exception_ptr> failures;
  failures.reserve(entries().size());
  for (auto const& entry : entries()) failures.push_back(entry.failure());
  auto untold = all_told() ? std::make_unique<UntoldFailures>() : std::make_unique<UntoldFailures>(*untold_);
  for (std::size_t i = 0; i < failures.size(); ++i) {
    if (failures[i]) untold->add(entries()[i].change.concerned(), failures[i]);
  }
  redo(coherence, failures);
  forget_all();
  untold_ = std::move(untold);
  return *std::ranges::find_if(failures, [](auto const& failure) { return failure != nullptr; });
}

void TentativeWork::redo(Coherence& coherence, std::span<const std::exception_ptr> failures) const {
  // Back to where things stood before all of it: what each piece wrote over counts when its turn comes again.
  for (auto const& entry : entries() | std::views::reverse) {
    auto undo = entry.change.undo();
    undo.touched = {};
    coherence.roll_back(undo);
  }
  auto failure = failures.begin();
  for (auto const& entry : entries()) {
    bool const failed = *failure++ != nullptr;
    Plan room;
    auto const& plan = entry.change.plan(room);
    if (!failed && coherence.can_commit(plan)) {
      coherence.commit_certain(plan);
    } else if (!failed || !entry.never_began()) {
      ruin(coherence, entry.change);
    }
  }
}

void TentativeWork::drop_what_is_certain() noexcept {
  auto const left = entries();
  // A queue that is at work here learns what has ended by itself; another may not be asked for long.
  auto const has_ended = queue_ != 0 ? &Entry::ended : &Entry::ended_if_asked;
  auto const uncertain = std::ranges::find_if(
      left, [&](Entry const& entry) { return !(entry.*has_ended)() || entry.failure() != nullptr; });
  forgotten_ += static_cast<std::size_t>(uncertain - left.begin());
  // Together: moving those behind them up each time would take as long as there are many.
  if (2 * forgotten_ < all_.size()) return;
  all_.erase(all_.begin(), all_.begin() + static_cast<std::ptrdiff_t>(forgotten_));
  forgotten_ = 0;
}

}  // namespace unimem::detail
