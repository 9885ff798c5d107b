#include <unimem/core/error.hpp>

#include "process/shared_ranges.hpp"
#include "process/shared_ranges_change.hpp"
#include "process/steps.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>

// What a process is about to do with a range, and what has become of it.

namespace unimem::detail {

std::optional<SharedRanges::Claim> SharedRanges::begin_read(Holder self, ByteRange range) {
  require_inside(range);
  if (range.empty()) return std::nullopt;
  Change change(*this);
  if (auto const other = change.now().in_the_way(self, range, Claim::Kind::read)) return other;
  auto& reads = change.reads();
  if (auto* const same = Change::find(reads, self, range)) {
    ++same->count;
  } else if (reads.count < most_reads) {
    reads.add({range.begin, range.end, self, 1, 0});
  } else {
    throw InvalidArgument("range", fmt::format("[{}, {})", range.begin, range.end),
                          fmt::format("one of at most {} that are being read", most_reads));
  }
  change.come_into_force();
  at_step(Step::read_claimed);
  return std::nullopt;
}

void SharedRanges::end_read(Holder self, ByteRange range) {
  Change change(*this);
  auto& reads = change.reads();
  auto* const found = Change::find(reads, self, range);
  if (found == nullptr) return;
  --found->count;
  if (found->count == 0) reads.remove(*found);
  change.come_into_force();
  at_step(Step::read_ended);
}

std::optional<SharedRanges::Claim> SharedRanges::begin_write(Holder self, ByteRange range) {
  require_inside(range);
  if (range.empty()) return std::nullopt;
  Change change(*this);
  if (auto const other = change.now().in_the_way(self, range, Claim::Kind::write)) return other;
  auto& writes = change.writes();
  std::size_t lost = 0;
  bool repairs = false;
  for (auto const& one : change.now().ranges()) {
    if (one.lost == 0) continue;
    ++lost;
    repairs = repairs || range.contains({one.begin, one.end});
  }
  if (auto* const same = Change::find(writes, self, range)) {
    ++same->count;
  } else if (writes.count < most_writes && (repairs || writes.count + lost < most_writes)) {
    // Each of these may be a lost range one day, for which there has to be room then; one that takes the place of
    // another has it.
    writes.add({range.begin, range.end, self, 1, 0});
  } else {
    throw InvalidArgument("range", fmt::format("[{}, {})", range.begin, range.end),
                          fmt::format("one of at most {} that are being written to or lost", most_writes));
  }
  change.come_into_force();
  at_step(Step::write_claimed);
  return std::nullopt;
}

void SharedRanges::end_write(Holder self, ByteRange range, Outcome outcome) {
  Change change(*this);
  auto& writes = change.writes();
  auto* const found = Change::find(writes, self, range);
  if (found == nullptr || found->count == 0) return;
  --found->count;
  if (outcome == Outcome::lost) found->loses = 1;
  if (outcome == Outcome::written) change.write_over(range, self);
  change.settle_writes(self);
  change.come_into_force();
  at_step(Step::write_ended);
}

void SharedRanges::require_inside(ByteRange range) const {
  if (range.begin > range.end || range.end > memory_->size) {
    throw InvalidArgument("range", fmt::format("[{}, {})", range.begin, range.end),
                          fmt::format("inside the {} bytes of {}", memory_->size, name_));
  }
}

}  // namespace unimem::detail
