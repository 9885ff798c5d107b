#include "buffer/transfer_engine.hpp"

#include <unimem/core/error.hpp>
#include <unimem/device/detail/blocking_wait.hpp>

#include "buffer/buffer_parts.hpp"
#include "buffer/commits.hpp"
#include "buffer/replica_allocator.hpp"
#include "buffer/replica_copy.hpp"
#include "buffer/staging.hpp"
#include "manager/access_context.hpp"

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

namespace unimem::detail {

Plan TransferEngine::plan_read(Place place, ByteRange range) const {
  return plan_access(place, range, Intent::read);
}

Plan TransferEngine::plan_access(Place place, ByteRange range, Intent intent) const {
  auto plan = parts_->replicas.coherence.plan_access(place, range, intent, parts_->replicas.places.cost());
  if (parts_->is_mapped()) read_the_file(plan);
  spare_good_bytes(plan);
  part_into_rows(plan);
  return plan;
}

void TransferEngine::read_the_file(Plan& plan) const {
  auto const file = parts_->replicas.places.users_file();
  for (auto& copy : plan.copies) {
    if (!copy.fence && file && is_on_host_side(copy.from)) copy.from = *file;
  }
}

void TransferEngine::spare_good_bytes(Plan& plan) const {
  auto const goes_across = [&](PlannedCopy const& copy) {
    if (copy.fence || !parts_->replicas.coherence.valid(copy.to).intersects(copy.range)) return false;
    bool const uncertain = !parts_->replicas.at(copy.from)->work().arrived(copy.range);
    auto const& to = parts_->replicas.at(copy.to);
    bool const others_write = parts_->shared && parts_->replicas.places.in_host_memory(copy.to);
    return uncertain || others_write || (to && to->holds().may_be_written_by_address());
  };
  if (std::ranges::none_of(plan.copies, goes_across)) return;
  std::vector<PlannedCopy> copies;
  for (auto const& copy : plan.copies) {
    if (!goes_across(copy)) {
      copies.push_back(copy);
      continue;
    }
    for (auto const missing : parts_->replicas.coherence.valid(copy.to).missing(copy.range)) {
      copies.push_back({copy.from, copy.to, missing, false});
    }
  }
  plan.copies = std::move(copies);
}

void TransferEngine::part_into_rows(Plan& plan) const {
  if (plan.copies.empty()) return;
  auto const costs = parts_->replicas.places.cost();
  std::vector<PlannedCopy> copies;
  for (auto const& copy : plan.copies) {
    auto const rows = rows_in(copy, costs);
    for (auto const row : rows) copies.push_back({copy.from, copy.to, row, false});
    if (rows.empty()) copies.push_back(copy);
  }
  plan.copies = std::move(copies);
}

/// The rows that a copy is cheaper as; none if it is not.
std::vector<ByteRange> TransferEngine::rows_in(PlannedCopy const& copy, CopyCost const& costs) const {
  constexpr std::size_t most_in_a_row = 16;
  if (copy.fence || (copy.from == host_place) == (copy.to == host_place)) return {};
  auto const missing = parts_->replicas.coherence.valid(copy.to).missing(copy.range);
  if (missing.size() < 2) return {};
  auto const place = copy.from == host_place ? copy.to : copy.from;
  auto const link = parts_->replicas.places[place].device->link_cost();
  if (!link.row_seconds) return {};
  auto const seconds_as = [&](std::span<const ByteRange> rows) {
    double seconds = 0;
    while (!rows.empty()) {
      auto const count = rows_at_front(rows);
      seconds +=
          costs(copy.from, copy.to, count * rows.front().size()) + static_cast<double>(count - 1) * *link.row_seconds;
      rows = rows.subspan(count);
    }
    return seconds;
  };
  std::vector<ByteRange> best;
  auto best_cost = costs(copy.from, copy.to, copy.range.size());
  // A row may be of several pieces, with what lies between them.
  for (std::size_t in_a_row = 1; in_a_row <= std::min(most_in_a_row, missing.size() / 2); ++in_a_row) {
    std::vector<ByteRange> rows;
    for (std::size_t i = 0; i < missing.size(); i += in_a_row) {
      rows.push_back({missing[i].begin, missing[std::min(i + in_a_row, missing.size()) - 1].end});
    }
    auto const seconds = seconds_as(rows);
    if (seconds >= best_cost) continue;
    best_cost = seconds;
    best = std::move(rows);
  }
  return best;
}

/// What of a plan, which has one target, goes as one piece of work from one place.
auto TransferEngine::batches_of(Plan const& plan) const -> std::vector<Batch> {
  std::vector<Batch> batches;
  if (plan.copies.size() < 2) return batches;
  std::vector<Batch> by_source;
  for (std::size_t i = 0; i < plan.copies.size(); ++i) {
    auto const& copy = plan.copies[i];
    if (copy.fence) continue;
    auto all = std::ranges::find(by_source, copy.from, &Batch::from);
    if (all == by_source.end()) all = by_source.insert(by_source.end(), {copy.from, {}, {}});
    all->copies.push_back(i);
    all->ranges.add(copy.range);
  }
  auto const& to = *parts_->replicas.at(plan.copies.front().to);
  for (auto& all : by_source) {
    auto const& from = *parts_->replicas.at(all.from);
    if (gains_from_batching(from, to, all.ranges)) {
      batches.push_back(std::move(all));
      continue;
    }
    std::vector<ByteRange> ranges;
    ranges.reserve(all.copies.size());
    for (auto const i : all.copies) ranges.push_back(plan.copies[i].range);
    for (std::size_t i = 0, rows = 0; i < ranges.size(); i += rows) {
      rows = rows_at_front(std::span(ranges).subspan(i));
      if (rows < 2 || !takes_rows(from, to, ranges[i].size())) continue;
      Batch& rectangle = batches.emplace_back(Batch{all.from, {}, {}});
      for (auto row = i; row < i + rows; ++row) {
        rectangle.copies.push_back(all.copies[row]);
        rectangle.ranges.add(ranges[row]);
      }
    }
  }
  return batches;
}

void TransferEngine::start_copies(Plan const& plan, Queue* queue, std::vector<Event>& events) {
  auto const& terms = parts_->terms;
  auto const batches = batches_of(plan);
  std::vector<Batch const*> batch_of(plan.copies.size(), nullptr);
  for (auto const& batch : batches) {
    for (auto const i : batch.copies) batch_of[i] = &batch;
  }
  std::vector<Event> of_batches(batches.size());
  events.reserve(plan.copies.size());
  try {
    for (std::size_t i = 0; i < plan.copies.size(); ++i) {
      auto const& copy = plan.copies[i];
      if (copy.fence) continue;
      auto const* const batch = batch_of[i];
      if (batch != nullptr && batch->copies.front() != i) {
        events.push_back(of_batches[static_cast<std::size_t>(batch - batches.data())]);
        continue;
      }
      auto const& from = parts_->replicas.at(copy.from);
      auto const& to = parts_->replicas.at(copy.to);
      auto const copy_time = meter(copy.from, copy.to);
      if (batch == nullptr) {
        auto const [event, path] = copy_between(*terms.manager, terms.named(), *from, copy.range, *to, copy.range,
                                                queue, copy_time, {}, staging_ ? &*staging_ : nullptr);
        events.push_back(event);
        count(copy.from, copy.to, copy.range.size(), path);
        continue;
      }
      auto const ranges = std::make_shared<ByteRanges const>(batch->ranges);
      auto const [event, path] = copy_between(*terms.manager, terms.named(), *from, *to, ranges, queue, copy_time);
      of_batches[static_cast<std::size_t>(batch - batches.data())] = event;
      events.push_back(event);
      count(copy.from, copy.to, batch->ranges.size_bytes(), path, batch->ranges.ranges().size());
    }
  } catch (...) {
    give_up(plan, events);
    throw;
  }
}

bool TransferEngine::make_ready(AccessContext& context, Plan const& plan) {
  std::size_t most = 0;
  for (auto const& copy : plan.copies) {
    auto const &from = parts_->replicas.at(copy.from), &to = parts_->replicas.at(copy.to);
    if (copy.fence || !from || !to || !goes_by_the_host(*from, *to)) continue;
    most = std::max(most, copy.range.size());
  }
  if (most == 0) return true;
  auto blocks = Staging::between_devices(context, *parts_->terms.manager, parts_->terms.named(), most);
  if (!blocks) return false;
  staging_.emplace(*std::move(blocks));
  return true;
}

std::vector<Event> TransferEngine::bring(Plan const& plan, Queue* queue) {
  std::vector<Event> events;
  start_copies(plan, queue, events);
  try {
    Commits(*parts_).commit_copies(plan, events);
  } catch (...) {
    give_up(plan, events);
    throw;
  }
  return events;
}

bool TransferEngine::bring_or_wait(AccessContext& context, Plan const& plan) {
  if (!make_ready(context, plan)) return false;
  bool const moves = std::ranges::any_of(plan.copies, [](PlannedCopy const& copy) { return !copy.fence; });
  // Bytes that arrive later could not be told from a user's, where those are looked for.
  if (!moves || parts_->watch.writes() != nullptr || !context.may_await_work()) {
    carry_out(plan);
    return true;
  }
  context.wait_for(bring(plan, nullptr));
  return false;
}

bool TransferEngine::carry_out_or_wait(AccessContext& context, Plan const& plan, std::optional<CarriedOut>& carried) {
  if (auto const done = std::exchange(carried, std::nullopt)) {
    end_copies(done->plan, done->events);
    // Or what was to be saved has become more: a window went that had it, too.
    if (done->operations + 1 == parts_->operations && done->plan.copies == plan.copies) return true;
  }
  if (!make_ready(context, plan)) return false;
  if (plan.copies.empty() || parts_->watch.writes() != nullptr || !context.may_await_work()) {
    carry_out(plan);
    return true;
  }
  carried.emplace(CarriedOut{plan, {}, parts_->operations});
  start_copies(plan, nullptr, carried->events);
  if (carried->events.empty()) {
    carried.reset();
    return true;
  }
  // A failure of theirs is this operation's alone.
  parts_->replicas.for_each([&](Replica& replica) { replica.work().not_needed(carried->events); });
  context.wait_for(carried->events);
  return false;
}

void TransferEngine::give_up(Plan const& plan, std::span<const Event> events) const {
  for (auto const event : events) static_cast<void>(event.wait_for_error());
  parts_->replicas.forget_ended();
  note_arrivals(plan);
}

Direction TransferEngine::direction(Place from, Place to) const noexcept {
  if (is_on_host_side(from)) return Direction::upload;
  return is_on_host_side(to) ? Direction::download : Direction::between;
}

bool TransferEngine::is_on_host_side(Place place) const noexcept {
  auto const& places = parts_->replicas.places;
  return places.is_file(place) || places.in_host_memory(place);
}

bool TransferEngine::goes_over_no_link(Place from, Place to) const noexcept {
  return (is_on_host_side(from) && is_on_host_side(to)) || parts_->replicas.places.on_one_device(from, to);
}

SharedMeter TransferEngine::meter(Place from, Place to) const {
  if (goes_over_no_link(from, to)) return {};
  return parts_->counters.meter(direction(from, to));
}

void TransferEngine::count(Place from, Place to, std::size_t moved, CopyPath path, std::size_t copies) const {
  auto const& replicas = parts_->replicas;
  if (goes_over_no_link(from, to)) return;  // the files count what goes there and comes back
  parts_->counters.count(direction(from, to), moved, path, copies);
  if (auto const& replica = replicas.at(from)) replica->usage().note_copies_out(copies, moved);
  if (auto const& replica = replicas.at(to)) replica->usage().note_copies_in(copies, moved);
  parts_->counters.count_on_link(replicas.places.name(from), replicas.places.name(to), moved, copies);
}

/// Whatever became of them, what these copies left on the host is no user's write.
void TransferEngine::note_arrivals(Plan const& plan) const {
  auto* const writes = parts_->watch.writes();
  if (writes == nullptr) return;
  for (auto const& copy : plan.copies) {
    if (parts_->replicas.places.in_host_memory(copy.to) && !copy.fence) writes->wrote(copy.range);
  }
}

/// The same of copies that go on unattended; there is room for that.
void TransferEngine::expect_arrivals(Plan const& plan, std::span<const Event> events) const {
  auto* const writes = parts_->watch.writes();
  if (writes == nullptr) return;
  auto event = events.begin();
  for (auto const& copy : plan.copies) {
    if (copy.fence) continue;
    if (parts_->replicas.places.in_host_memory(copy.to)) writes->expect_copy(copy.range, *event);
    ++event;
  }
}

void TransferEngine::carry_out(Plan const& plan) {
  if (auto* const writes = parts_->watch.writes()) writes->reserve(plan.copies.size());
  std::vector<Event> events;
  start_copies(plan, nullptr, events);
  // All must have ended before one's error may be told: a copy still running writes into memory we are responsible for.
  try {
    for (auto const event : events) await_end(event, Watched::no);
  } catch (...) {  // in the middle of work that they come behind
    expect_arrivals(plan, events);
    throw;
  }
  end_copies(plan, events);
}

void TransferEngine::end_copies(Plan const& plan, std::span<const Event> events) const {
  std::exception_ptr failure;
  for (auto const event : events) {
    if (auto error = event.wait_for_error(); error && !failure) failure = std::move(error);
  }
  note_arrivals(plan);
  if (!failure) return;
  // Told here and now: another try inherits nothing of it.
  parts_->replicas.forget_ended();
  std::rethrow_exception(failure);
}

std::vector<Event> TransferEngine::arriving(Place place, ByteRange range) const {
  std::vector<Event> events;
  if (auto const& replica = parts_->replicas.at(place)) replica->work().add_writers(range, events);
  return events;
}

Event TransferEngine::arrival(Place place, ByteRange range, Queue& queue) const {
  if (!parts_->replicas.at(place)) return {};
  return queue.join(arriving(place, range));
}

Event TransferEngine::download_directly(Place place, ByteRange part, std::byte* to) const {
  auto& from = *parts_->replicas.at(place);
  auto& queue = parts_->replicas.places[place].device->default_queue();
  std::vector<Event> needs;
  from.work().order_read(queue, part);
  from.work().add_writers(part, needs);
  from.work().reserve(1);
  auto const event = queue.download(to, from.window(part), part.size(), needs, meter(place, host_place));
  from.work().read_by(part, event);
  count(place, host_place, part.size());
  return event;
}

}  // namespace unimem::detail
