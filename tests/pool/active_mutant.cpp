#include "pool/mutants.hpp"

#include <cstdio>
#include <cstdlib>
#include <string_view>

// The fault that this run of the suite is to find, as UNIMEM_POOL_MUTANT names it; `list` names them all.

namespace unimem::detail {
namespace {

PoolMutant chosen() {
  auto const* const wanted = std::getenv("UNIMEM_POOL_MUTANT");
  if (wanted == nullptr) return PoolMutant::none;
  if (std::string_view(wanted) == "list") {
#define UNIMEM_SAY(name, fault) std::puts(#name "\t" fault);
    UNIMEM_POOL_MUTANTS(UNIMEM_SAY)
#undef UNIMEM_SAY
    std::exit(0);
  }
#define UNIMEM_CHOOSE(name, fault) \
  if (std::string_view(wanted) == #name) return PoolMutant::name;
  UNIMEM_POOL_MUTANTS(UNIMEM_CHOOSE)
#undef UNIMEM_CHOOSE
  std::fprintf(stderr, "no such fault: %s\n", wanted);
  std::exit(2);
}

}  // namespace

PoolMutant active_pool_mutant = chosen();

}  // namespace unimem::detail
