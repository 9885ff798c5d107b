#include <unimem/core/error.hpp>
#include <unimem/device/timed_wait.hpp>

#include "buffer/inside.hpp"
#include "buffer/mutants.hpp"
#include "buffer/staging.hpp"
#include "core/nvtx.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

namespace unimem {
namespace {

Queue& queue_on(Device& owner, Queue* wanted) {
  return wanted != nullptr && &wanted->device() == &owner ? *wanted : owner.default_queue();
}

/// Within one device, by way of a block of its own: what has not been read must not be overwritten.
Event copied_by(Allocation aside, Queue& on, DeviceMemory target, DeviceMemory source, std::span<const Event> needs) {
  auto const there = on.copy(aside.memory(), source, source.bytes, needs);
  try {
    auto const back = on.copy(target, aside.memory(), source.bytes, {{there}});
    aside.release(back);
    return back;
  } catch (...) {
    static_cast<void>(there.wait_for_error());  // it is at both memories, and not on record
    throw;
  }
}

}  // namespace

bool detail::overlap(Storage const& from, ByteRange source, Storage const& to, ByteRange target) noexcept {
  return &from == &to && source.begin < target.end && target.begin < source.end;
}

detail::Transfer detail::transfer(MemoryManager& manager, AcquireOptions const& staging, Storage& from,
                                  ByteRange source_range, Storage& to, ByteRange target_range, Queue* queue,
                                  SharedMeter const& meter, Allocation aside) {
  auto const count = source_range.size();
  auto const source = from.window(source_range);
  auto const target = to.window(target_range);
  bool const from_host = from.serves_host();
  bool const to_host = to.serves_host();
  bool const downwards = to_host && !from_host;
  bool const upwards = from_host && !to_host;
  auto& on = queue_on(downwards ? from.device() : to.device(), queue);
  NvtxRange const shown{[&] {
    auto const place = [](Storage const& storage, bool host) {
      return host ? std::string_view{"host"} : storage.device().id();
    };
    return fmt::format("{}: {} to {}", staging.name.empty() ? "a buffer" : staging.name.view(), place(from, from_host),
                       place(to, to_host));
  }};

  auto way = CopyPath::direct;
  if ((downwards || upwards) && gains_from_staging(downwards ? to : from, on.device(), count)) {
    auto& beside = on.host_side();
    if (auto blocks = Staging::pinned(manager, staging, beside, count, on.device().staging_depth())) {
      auto &first = upwards ? beside : on, &second = upwards ? on : beside;
      CopyPiece const piece{target_range.begin, source_range.begin, count};
      return {copy_staged(*blocks, from, to, {&piece, 1}, first, second, on, meter), CopyPath::staged};
    }
    way = CopyPath::unstaged;
  }
  bool const within_one = &from.device() == &to.device();
  if (!from_host && !to_host && !within_one && !to.device().copies_from(from.device())) {
    Staging blocks(manager, staging, count);
    CopyPiece const piece{target_range.begin, source_range.begin, count};
    return {copy_staged(blocks, from, to, {&piece, 1}, from.device().default_queue(), on, on, meter)};
  }

  std::vector<Event> needs;
  from.order_read(on, source_range);
  to.order_write(on, target_range);
  from.hazards().add_writers(source_range, needs);
  from.hazards().reserve(2);  // two for one storage that is both
  to.hazards().reserve(2);

  Event event;
  if (downwards) {
    event = on.download(host_address(to.host_window(target_range)), source, count, needs, meter);
  } else if (upwards) {
    event = on.upload(target, host_address(from.host_window(source_range)), count, needs, meter);
  } else {
    event = aside ? copied_by(std::move(aside), on, target, source, needs)
                  : on.copy(target, from.device(), source, count, needs, meter);
  }
  from.hazards().read_by(source_range, event);
  to.hazards().written_by(target_range, event);
  return {event, way};
}

detail::Transfer detail::transfer(MemoryManager& manager, AcquireOptions const& staging, Storage& from, Storage& to,
                                  ByteRanges const& ranges, Queue* queue, SharedMeter const& meter) {
  bool const upwards = from.serves_host();
  auto& on = queue_on(upwards ? to.device() : from.device(), queue);
  auto const pieces = in_place(ranges);

  auto way = CopyPath::direct;
  if (gains_from_gathering(upwards ? from : to, on.device(), ranges)) {
    auto& pool = manager.pool(host_device(), Location::pinned);
    if (upwards) {
      if (auto const sent = gathered_at_once(pool, staging.name, from, to, ranges, on, meter)) {
        return {*sent, CopyPath::staged};
      }
    }
    auto& beside = on.host_side();
    if (auto blocks = Staging::pinned(manager, staging, beside, ranges.size_bytes(), on.device().staging_depth())) {
      auto &first = upwards ? beside : on, &second = upwards ? on : beside;
      return {copy_staged(*blocks, from, to, pieces, first, second, on, meter), CopyPath::staged};
    }
    way = CopyPath::unstaged;
  }
  std::vector<Event> needs;
  from.order_read(on, ranges);
  to.order_write(on, ranges);
  from.hazards().add_writers(ranges, needs);
  auto const parts = std::make_shared<ByteRanges const>(ranges);
  from.hazards().reserve(2);  // two for one storage that is both
  to.hazards().reserve(2);
  auto const event = upwards ? on.upload(to.memory(), from.host_address(), pieces, needs, meter)
                             : on.download(to.host_address(), from.memory(), pieces, needs, meter);
  from.hazards().read_by(parts, event);
  to.hazards().written_by(parts, event);
  return {event, way};
}

Plan BufferCore::Inside::plan_read(Place place, ByteRange range) {
  auto plan = coherence.plan_access(place, range, Intent::read, cost());
  spare_good_bytes(plan);
  part_into_rows(plan);
  return plan;
}

void BufferCore::Inside::spare_good_bytes(Plan& plan) const {
  auto const goes_across = [&](PlannedCopy const& copy) {
    if (copy.fence || !coherence.valid(copy.to).intersects(copy.range)) return false;
    bool const uncertain = !UNIMEM_MUTANT(good_copies_overwritten) && !storage_at(copy.from)->arrived(copy.range);
    auto const& to = storage_at(copy.to);
    return uncertain || (to && to->may_be_written_by_address() && !UNIMEM_MUTANT(kept_addresses_overwritten));
  };
  if (std::ranges::none_of(plan.copies, goes_across)) return;
  std::vector<PlannedCopy> copies;
  for (auto const& copy : plan.copies) {
    if (!goes_across(copy)) {
      copies.push_back(copy);
      continue;
    }
    for (auto const missing : coherence.valid(copy.to).missing(copy.range)) {
      copies.push_back({copy.from, copy.to, missing, false});
    }
  }
  plan.copies = std::move(copies);
}

void BufferCore::Inside::part_into_rows(Plan& plan) const {
  if (plan.copies.empty()) return;
  auto const costs = cost();
  std::vector<PlannedCopy> copies;
  for (auto const& copy : plan.copies) {
    auto const rows = rows_in(copy, costs);
    for (auto const row : rows) copies.push_back({copy.from, copy.to, row, false});
    if (rows.empty()) copies.push_back(copy);
  }
  plan.copies = std::move(copies);
}

/// The rows that a copy is cheaper as; none if it is not.
std::vector<ByteRange> BufferCore::Inside::rows_in(PlannedCopy const& copy, CopyCost const& costs) const {
  constexpr std::size_t most_in_a_row = 16;
  if (copy.fence || (copy.from == host_place) == (copy.to == host_place)) return {};
  auto const missing = coherence.valid(copy.to).missing(copy.range);
  if (missing.size() < 2) return {};
  auto const place = copy.from == host_place ? copy.to : copy.from;
  auto const link = sides[place - 1].device->link_cost();
  if (!link.row_seconds) return {};
  auto const seconds_as = [&](std::span<const ByteRange> rows) {
    double seconds = 0;
    while (!rows.empty()) {
      auto const count = detail::rows_at_front(rows);
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
auto BufferCore::Inside::batches_of(Plan const& plan) const -> std::vector<Batch> {
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
  auto const& to = *storage_at(plan.copies.front().to);
  for (auto& all : by_source) {
    auto const& from = *storage_at(all.from);
    if (detail::gains_from_batching(from, to, all.ranges)) {
      batches.push_back(std::move(all));
      continue;
    }
    std::vector<ByteRange> ranges;
    ranges.reserve(all.copies.size());
    for (auto const i : all.copies) ranges.push_back(plan.copies[i].range);
    for (std::size_t i = 0, rows = 0; i < ranges.size(); i += rows) {
      rows = detail::rows_at_front(std::span(ranges).subspan(i));
      if (rows < 2 || !detail::takes_rows(from, to, ranges[i].size())) continue;
      Batch& rectangle = batches.emplace_back(Batch{all.from, {}, {}});
      for (auto row = i; row < i + rows; ++row) {
        rectangle.copies.push_back(all.copies[row]);
        rectangle.ranges.add(ranges[row]);
      }
    }
  }
  return batches;
}

void BufferCore::Inside::start_copies(Plan const& plan, Queue* queue, std::vector<Event>& events) {
  auto const batches = batches_of(plan);
  std::vector<Batch const*> batch_of(plan.copies.size(), nullptr);
  for (auto const& batch : batches) {
    for (auto const i : batch.copies) batch_of[i] = &batch;
  }
  std::vector<Event> of_batches(batches.size());
  events.reserve(plan.copies.size());
  try {
    for (auto const& copy : plan.copies) {
      if (spill_files == nullptr || copy.fence) continue;
      for (auto const place : {copy.from, copy.to}) {
        if (auto const& storage = storage_at(place)) ensure_resident(*storage);
      }
    }
    for (std::size_t i = 0; i < plan.copies.size(); ++i) {
      auto const& copy = plan.copies[i];
      if (copy.fence) continue;
      auto const* const batch = batch_of[i];
      if (batch != nullptr && batch->copies.front() != i) {
        events.push_back(of_batches[static_cast<std::size_t>(batch - batches.data())]);
        continue;
      }
      auto const& from = storage_at(copy.from);
      auto const& to = storage_at(copy.to);
      auto const copy_time = meter(copy.from, copy.to);
      if (batch == nullptr) {
        auto const [event, way] =
            detail::transfer(*manager, named(), *from, copy.range, *to, copy.range, queue, copy_time);
        events.push_back(event);
        count(copy.from, copy.to, copy.range.size(), way);
        continue;
      }
      auto const [event, way] = detail::transfer(*manager, named(), *from, *to, batch->ranges, queue, copy_time);
      of_batches[static_cast<std::size_t>(batch - batches.data())] = event;
      events.push_back(event);
      count(copy.from, copy.to, batch->ranges.size_bytes(), way, batch->ranges.ranges().size());
    }
  } catch (...) {
    give_up(plan, events);
    throw;
  }
}

void BufferCore::Inside::bring(Plan const& plan, Queue* queue) {
  std::vector<Event> events;
  start_copies(plan, queue, events);
  try {
    commit_copies(plan, events);
  } catch (...) {
    give_up(plan, events);
    throw;
  }
}

void BufferCore::Inside::give_up(Plan const& plan, std::span<const Event> events) {
  for (auto const event : events) static_cast<void>(event.wait_for_error());
  forget_ended();
  note_arrivals(plan);
}

SharedMeter BufferCore::Inside::meter(Place from, Place to) {
  if (!meters) {
    auto made = std::make_shared<Meters>();
    detail::SpinGuard const held{meters_lock};
    meters = std::move(made);
  }
  auto& one = in_host_memory(from) ? meters->uploads : in_host_memory(to) ? meters->downloads : meters->between;
  return {meters, &one};
}

void BufferCore::Inside::count(Place from, Place to, std::size_t moved, detail::CopyPath way, std::size_t copies) {
  if (way == detail::CopyPath::staged) counters.staged.fetch_add(copies, std::memory_order_relaxed);
  if (way == detail::CopyPath::unstaged) counters.unstaged.fetch_add(copies, std::memory_order_relaxed);
  if (in_host_memory(from)) {
    counters.upload_bytes.fetch_add(moved, std::memory_order_relaxed);
    counters.uploads.fetch_add(copies, std::memory_order_relaxed);
  } else if (in_host_memory(to)) {
    counters.download_bytes.fetch_add(moved, std::memory_order_relaxed);
    counters.downloads.fetch_add(copies, std::memory_order_relaxed);
  } else {
    counters.between_bytes.fetch_add(moved, std::memory_order_relaxed);
    counters.between.fetch_add(copies, std::memory_order_relaxed);
  }
  if (auto const& storage = storage_at(from)) storage->usage().note_copies_out(copies, moved);
  if (auto const& storage = storage_at(to)) storage->usage().note_copies_in(copies, moved);
  auto const from_name = place_name(from), to_name = place_name(to);
  auto link = std::ranges::find_if(links, [&](auto const& l) { return l.from == from_name && l.to == to_name; });
  if (link == links.end()) link = links.insert(links.end(), {from_name, to_name, 0, 0});
  link->copies += copies;
  link->bytes += moved;
}

/// Whatever became of them, what these copies left on the host is no user's write.
void BufferCore::Inside::note_arrivals(Plan const& plan) {
  if (!host_writes) return;
  for (auto const& copy : plan.copies) {
    if (in_host_memory(copy.to) && !copy.fence) host_writes->wrote(copy.range);
  }
}

void BufferCore::Inside::carry_out(Plan const& plan) {
  std::vector<Event> events;
  start_copies(plan, nullptr, events);
  // All must have ended before one's error may be told: a copy still running writes into memory we are responsible for.
  std::exception_ptr failure;
  for (auto const event : events) wait_unless_endless(event);  // throws in the middle of work that they come behind
  for (auto const event : events) {
    if (auto error = event.wait_for_error(); error && !failure) failure = std::move(error);
  }
  note_arrivals(plan);
  if (!failure) return;
  // Told here and now: another try inherits nothing of it.
  forget_ended();
  std::rethrow_exception(failure);
}

Event BufferCore::Inside::arrival(Place place, ByteRange range, Queue& queue) {
  auto const& storage = storage_at(place);
  if (!storage) return {};
  std::vector<Event> arriving;
  storage->hazards().add_writers(range, arriving);
  return queue.join(arriving);
}

bool BufferCore::Inside::prepare(detail::AccessContext& context, BufferCore& self, Place place, ByteRange range,
                                 Intent intent, Queue& queue) {
  if (!ensure_device(context, self, place, queue)) return false;
  bool const waits = host_writes && in_host_memory(place);  // as `fetch` does
  if (waits && intent != Intent::write) resolve_pending(range, true);
  // Where every byte is current there is nothing to plan, and nothing to record of a read.
  if (intent != Intent::write && !holds(place, range)) {
    auto plan = plan_read(place, range);
    check_lost(plan);
    if (waits) {
      carry_out(plan);
      commit(std::move(plan), {});
    } else {
      bring(plan, &queue);
    }
  }
  if (auto const& storage = storage_at(place)) {
    intent == Intent::read ? storage->order_read(queue, range) : storage->order_write(queue, range);
  }
  return true;
}

}  // namespace unimem
