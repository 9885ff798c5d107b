#pragma once

#include <unimem/core/byte_ranges.hpp>

#include <algorithm>

namespace unimem::detail {

/// Whether every byte of `range` is in at least one of several sets. `for_each_set` calls what it is given with each of
/// them. Unites nothing: the common answers, "one set has it all" and "the first byte is nowhere", cost one search per
/// set.
template <class ForEachSet>
[[nodiscard]] bool covered(ByteRange range, ForEachSet&& for_each_set) {
  bool one_has_all = range.empty();
  for_each_set([&](ByteRanges const& set) { one_has_all = one_has_all || set.contains(range); });
  if (one_has_all) return true;
  auto here = range.begin;
  while (here < range.end) {
    auto reached = here;
    for_each_set([&](ByteRanges const& set) {
      if (auto const found = set.find(here); found && found->begin <= here) reached = std::max(reached, found->end);
    });
    if (reached == here) return false;
    here = reached;
  }
  return true;
}

}  // namespace unimem::detail
