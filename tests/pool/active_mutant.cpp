#include "mutants.hpp"

#include <cstdio>
#include <cstdlib>
#include <string_view>

// The fault that this run of the suite is to find, as UNIMEM_POOL_MUTANT names it; `list` names them all.

namespace unimem::detail {
namespace {

Mutant chosen() {
  auto const* const wanted = std::getenv("UNIMEM_POOL_MUTANT");
  if (wanted == nullptr) return Mutant::none;
  bool const list = std::string_view(wanted) == "list";
  for (auto const& one : all_mutants) {
    if (list) std::printf("%s\t%s\n", one.name, one.fault);
    if (std::string_view(wanted) == one.name) return one.mutant;
  }
  if (list) std::exit(0);
  std::fprintf(stderr, "no such fault: %s\n", wanted);
  std::exit(2);
}

}  // namespace

Mutant active_mutant = chosen();

}  // namespace unimem::detail
