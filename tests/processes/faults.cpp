#include "mutants.hpp"

#include <cstdlib>
#include <string_view>

namespace unimem::detail {

/// That of the environment, which other processes that a test starts inherit.
Mutant active_mutant = [] {
  auto const* const wanted = std::getenv("UNIMEM_TEST_MUTANT");
  for (auto const& fault : all_mutants) {
    if (wanted != nullptr && fault.name == std::string_view(wanted)) return fault.mutant;
  }
  return Mutant::none;
}();

}  // namespace unimem::detail
