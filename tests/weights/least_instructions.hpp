#pragma once

#include "core/instruction_count.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>

namespace unimem::testing {

/// The least of some: the heap tidies up now and then. Nothing where no thread can be traced.
template <class Work>
std::optional<std::uint64_t> least_instructions(Work const& work) {
  std::optional<std::uint64_t> least;
  for (int i = 0; i < 5; ++i) {
    auto const counted = InstructionCounter::count(work);
    if (!counted) return std::nullopt;
    least = std::min(least.value_or(*counted), *counted);
  }
  return least;
}

}  // namespace unimem::testing
