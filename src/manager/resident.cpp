#include <unimem/manager/detail/resident.hpp>

namespace unimem {

Resident::~Resident() = default;

std::shared_ptr<void> Resident::hold() noexcept {
  return {std::shared_ptr<void>{}, this};
}

Resident::Evictable Resident::evictable_beside(std::span<const ByteRange> /*used*/, MemoryPlace /*place*/) noexcept {
  return {};
}

std::size_t Resident::evict_beside(std::span<const ByteRange> /*used*/, MemoryPlace /*place*/) {
  return 0;
}

Resident::Relocation Resident::try_relocate(Queue&, std::size_t) {
  return {};
}

OptimizationStep Resident::try_optimize(Device& /*device*/, Optimization what, OptimizationTerms const& /*terms*/) {
  OptimizationStep nothing;
  nothing.what = what;
  return nothing;
}

}  // namespace unimem
