#include <unimem/manager/detail/resident.hpp>

namespace unimem {

Resident::~Resident() = default;

std::shared_ptr<void> Resident::hold() noexcept {
  return {std::shared_ptr<void>{}, this};
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
