#include <unimem/core/error.hpp>

#include "process/shared_ranges.hpp"
#include "process/shared_ranges_change.hpp"
#include "process/steps.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// What a process is about to do with a range, and what has become of it.

namespace unimem::detail {
namespace {

/// How many ranges, and whose: whoever cannot have one more looks there.
struct Share {
  std::uint32_t pid = 0;  ///< 0: lost ones
  std::size_t ranges = 0;
};

std::string text_of(std::vector<Share> shares) {
  constexpr std::size_t most = 4;
  std::ranges::stable_sort(shares, std::greater{}, &Share::ranges);
  std::string text;
  std::size_t others = 0;
  for (std::size_t at = 0; at < shares.size(); ++at) {
    auto const& [pid, ranges] = shares[at];
    if (at >= most) {
      others += ranges;
      continue;
    }
    auto const whose = pid == 0 ? std::string("lost") : fmt::format("process {}'s", pid);
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", ranges, whose);
  }
  return others == 0 ? text : text + fmt::format(", {} of others", others);
}

/// `claims`: of SharedRanges::Claimed; `pid_of` a holder of theirs.
template <class Claims, class PidOf>
std::vector<Share> shares_of(Claims const& claims, PidOf const& pid_of) {
  std::vector<Share> shares;
  for (auto const& one : claims) {
    auto const pid = pid_of(one.holder);
    auto const same = std::ranges::find(shares, pid, &Share::pid);
    if (same == shares.end()) {
      shares.push_back({pid, 1});
    } else {
      ++same->ranges;
    }
  }
  return shares;
}

}  // namespace

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
    throw InvalidArgument(
        "range", fmt::format("[{}, {})", range.begin, range.end),
        fmt::format("one of at most {} that are being read: {}", most_reads,
                    text_of(shares_of(change.now().reads(), [&](Holder one) { return change.process_of(one).pid; }))));
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
    auto shares = shares_of(change.now().writes(), [&](Holder one) { return change.process_of(one).pid; });
    if (lost != 0) shares.push_back({0, lost});
    throw InvalidArgument("range", fmt::format("[{}, {})", range.begin, range.end),
                          fmt::format("one of at most {} that are being written to or lost: {}", most_writes,
                                      text_of(std::move(shares))));
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
