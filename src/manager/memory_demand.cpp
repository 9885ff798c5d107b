#include "manager/memory_demand.hpp"

#include <algorithm>

namespace unimem::detail {

void MemoryDemand::add(MemoryManager const& of, std::size_t outstanding, std::size_t together) {
  auto const known = std::ranges::find(managers_, &of, &Part::of);
  auto& sum = known != managers_.end() ? *known : managers_.emplace_back(Part{&of, 0, 0});
  sum.outstanding += outstanding;
  sum.together += together;
}

void MemoryDemand::took(MemoryManager const& of, std::size_t bytes) noexcept {
  auto const known = std::ranges::find(managers_, &of, &Part::of);
  if (known != managers_.end()) known->outstanding -= std::min(bytes, known->outstanding);
}

MemoryDemand::Part MemoryDemand::part(MemoryManager const& of) const noexcept {
  auto const known = std::ranges::find(managers_, &of, &Part::of);
  return known != managers_.end() ? *known : Part{&of, 0, 0};
}

}  // namespace unimem::detail
