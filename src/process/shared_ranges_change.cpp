#include "process/shared_ranges_change.hpp"

#include <unimem/core/error.hpp>

#include "process/futex.hpp"
#include "process/steps.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <optional>
#include <span>
#include <utility>

namespace unimem::detail {

SharedRanges::Locked::Locked(SharedRanges const& table, std::chrono::milliseconds longest)
    : table_(table), memory_(*table.memory_) {
  auto const taken = memory_.lock.take(longest);
  if (taken == SharedLock::Taken::no) {
    throw IoError(table.name_, ETIMEDOUT,
                  fmt::format("another process has kept its lock for {} ms: was it stopped?", longest.count()));
  }
  if (taken == SharedLock::Taken::after_death) {
    // What that one was changing is not in force, or is, and others may not have been told.
    memory_.change_count.fetch_add(1);
    changed_ = true;
  }
  try {
    state_ = memory_.state.load(std::memory_order_relaxed);  // the lock orders it
    check();
  } catch (...) {
    release();
    throw;
  }
  at_step(Step::lock_taken);
}

void SharedRanges::Locked::release() noexcept {
  if (std::exchange(released_, true)) return;
  memory_.lock.release();
  // Sequentially consistent, as the count is: a waiter is seen here, or sees the count.
  if (changed_ && memory_.waiting.load() != 0) wake_all(memory_.change_count);
}

void SharedRanges::Locked::check() const {
  if (memory_.copies[copy(Part::ranges)].ranges.count > Ranges::capacity ||
      memory_.copies[copy(Part::writes)].writes.count > most_writes ||
      memory_.copies[copy(Part::reads)].reads.count > most_reads ||
      memory_.copies[copy(Part::holders)].holders.count > most_holders) {
    table_.throw_damaged("counts");
  }
}

std::span<SharedRanges::Range const> SharedRanges::Locked::ranges() const {
  auto const all = memory_.copies[copy(Part::ranges)].ranges.used();
  std::uint64_t end = 0;
  for (auto const& one : all) {
    if (one.begin < end || one.end <= one.begin) table_.throw_damaged("ranges");
    end = one.end;
  }
  if (end > memory_.size) table_.throw_damaged("ranges");
  return all;
}

ByteRange SharedRanges::Locked::range_of(Claimed const& claim) const {
  if (claim.end <= claim.begin || claim.end > memory_.size) table_.throw_damaged("claims");
  return {claim.begin, claim.end};
}

std::optional<SharedRanges::Claim> SharedRanges::Locked::in_the_way(Holder self, ByteRange range,
                                                                    Claim::Kind kind) const {
  auto const find = [&](std::span<Claimed const> claims, Claim::Kind of) -> std::optional<Claim> {
    for (auto const& one : claims) {
      if (one.holder != self && one.range().meets(range)) return Claim{one.holder, range_of(one), of};
    }
    return std::nullopt;
  };
  auto found = find(writes(), Claim::Kind::write);
  if (!found && kind == Claim::Kind::write) found = find(reads(), Claim::Kind::read);
  return found;
}

void SharedRanges::Change::settle_writes(Holder holder) {
  auto& all = writes();
  auto const goes_on_in = [&](ByteRange range) {
    return std::ranges::any_of(all.used(), [&](Claimed const& one) {
      return one.holder == holder && one.count != 0 && one.range().meets(range);
    });
  };
  for (std::size_t i = 0; i < all.count;) {
    auto& one = all.all[i];
    if (one.holder != holder || one.count != 0 || (one.loses != 0 && goes_on_in(one.range()))) {
      ++i;
      continue;
    }
    if (one.loses != 0) lose(locked_.range_of(one));
    all.remove(one);
  }
}

bool SharedRanges::Change::drop(Holder holder) {
  if (process_of(holder).pid == 0) return false;
  auto& slots = holders();
  slots.all[holder - 1] = {};
  while (slots.count != 0 && slots.all[slots.count - 1].pid == 0) --slots.count;
  auto& reading = reads();
  for (std::size_t i = 0; i < reading.count;) {
    if (reading.all[i].holder == holder) {
      reading.remove(reading.all[i]);
    } else {
      ++i;
    }
  }
  for (auto& one : writes().used()) {
    if (one.holder != holder) continue;
    one.count = 0;
    one.loses = 1;
  }
  settle_writes(holder);
  forget_writer(holder);
  return true;
}

void SharedRanges::Change::note_death(Holder holder) {
  ByteRanges lost;
  for (auto const& one : now().writes()) {
    if (one.holder == holder) lost.add(now().range_of(one));
  }
  auto const& slot = now().slots()[holder - 1];
  if (slot.ends != 0 && lost.empty()) return;
  auto& deaths = memory_.copies[1 - locked_.copy(Part::deaths)].deaths;
  if (begins(Part::deaths)) deaths = now().deaths();
  deaths.latest[deaths.count++ % most_deaths] = {slot.started, slot.pid, lost.size_bytes()};
}

SharedRanges::Process SharedRanges::Change::process_of(Holder holder) const {
  auto const slots = now().slots();
  if (holder == 0 || holder > slots.size()) return {};
  return {slots[holder - 1].pid, slots[holder - 1].started};
}

void SharedRanges::Change::forget_writer(Holder holder) {
  for (auto one : take_ranges()) {
    if (one.last == holder) one.last = 0;
    append(one);
  }
}

void SharedRanges::Change::come_into_force() {
  if (changed_ == 0) return;
  auto const copies = (locked_.state() ^ changed_) & ((std::uint64_t{1} << Part::count) - 1);
  at_step(Step::change_prepared);
  // Release: with the state, what it stands for is seen.
  memory_.state.store((version_ << Part::count) | copies, std::memory_order_release);
  at_step(Step::change_in_force);
  memory_.change_count.fetch_add(1);
  locked_.has_changed();
  locked_.release();
}

std::span<SharedRanges::Range const> SharedRanges::Change::take_ranges() {
  auto& next = next_ranges();
  if (begins(Part::ranges)) {
    next.count = 0;
    return locked_.ranges();
  }
  auto const all = next.used();
  std::ranges::copy(all, before_.begin());
  next.count = 0;
  return std::span(before_).first(all.size());
}

void SharedRanges::Change::write_over(Range const& with) {
  auto const all = take_ranges();
  auto& next = next_ranges();
  if (all.size() + 2 > Ranges::capacity) locked_.throw_damaged("more lost ranges than there may be");
  auto const ends_by = [&](std::uint64_t edge) {
    return std::ranges::partition_point(all, [&](Range const& one) { return one.end <= edge; });
  };
  // All but those at its edges stay as they are.
  auto const first = ends_by(with.begin), last = ends_by(with.end);
  next.add(std::span(all.begin(), first));
  if (first != all.end() && first->begin < with.begin) {
    auto piece = *first;
    piece.end = with.begin;
    append(piece);
  }
  append(with);
  if (last != all.end()) {
    auto piece = *last;
    piece.begin = std::max(piece.begin, with.end);
    append(piece);
    next.add(std::span(last + 1, all.end()));
  }
  while (next.count > most_ranges && join_closest()) continue;
}

void SharedRanges::Change::append(Range const& one) {
  auto& next = next_ranges();
  if (next.count != 0) {
    auto& before = next.all[next.count - 1];
    bool const both_lost = before.lost != 0 && one.lost != 0;
    bool const alike = before.lost == one.lost && before.version == one.version && before.last == one.last;
    if (before.end == one.begin && (both_lost || alike)) {
      before.end = one.end;
      before.version = std::max(before.version, one.version);
      return;
    }
  }
  next.add(one);
}

bool SharedRanges::Change::join_closest() {
  auto& next = next_ranges();
  auto const all = next.used();
  auto best = all.end();
  for (auto one = all.begin(); one + 1 != all.end(); ++one) {
    if (one->lost != 0 || one[1].lost != 0) continue;
    if (best == all.end() || one[1].end - one->begin < best[1].end - best->begin) best = one;
  }
  if (best == all.end()) return false;
  best->end = best[1].end;
  best->version = std::max(best->version, best[1].version);
  if (best->last != best[1].last) best->last = 0;
  std::copy(best + 2, all.end(), best + 1);
  --next.count;
  return true;
}

}  // namespace unimem::detail
