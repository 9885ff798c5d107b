#pragma once

// Faults of the pool floor that its tests can switch on, one at a time; see src/coherence/mutants.hpp, which does the
// same for the floor below. The library is compiled without UNIMEM_POOL_MUTANTS_ON, where every fault point is `false`.

#define UNIMEM_POOL_MUTANTS(FAULT)                                                       \
  FAULT(tickets_ignored, "takes a cached block for ready whatever is pending on it")     \
  FAULT(queues_not_ordered, "lets a queue overtake the work of a block's last owner")    \
  FAULT(parked_for_anybody, "keeps a block with pending work as one that is done")       \
  FAULT(earlier_work_forgotten, "knows only of a block's last owner's work")             \
  FAULT(returned_at_once, "gives blocks back to the driver under work in flight")        \
  FAULT(threads_overlooked, "reports as missing what other threads keep")                \
  FAULT(depots_overlooked, "leaves what lies between threads where it is")               \
  FAULT(large_overlooked, "leaves large blocks parked that memory is taken in place of") \
  FAULT(transit_overlooked, "takes memory in transit for memory in use")                 \
  FAULT(limit_of_pages_ignored, "reserves pages beyond the limit")                       \
  FAULT(lowered_limit_forgotten, "takes pages by the limit that the pool was made with") \
  FAULT(slack_miscounted, "forgets what is free in slabs")                               \
  FAULT(neighbours_kept_apart, "does not unite a free span with the one behind it")      \
  FAULT(shared_pages_moved, "takes a page that is free in part for one that may move")   \
  FAULT(holes_served, "forgets that a moved page has left a hole")                       \
  FAULT(slab_blocks_twice, "does not mark a slab's block as taken")                      \
  FAULT(empty_slabs_kept, "keeps every empty slab")                                      \
  FAULT(allocations_miscounted, "forgets allocations beside the pages")                  \
  FAULT(hits_miscounted, "counts memory that was never in use before as a hit")          \
  FAULT(upstream_trusted, "hands on whatever an upstream gives")                         \
  FAULT(owners_data_left, "leaves in a block what its owner wrote")                      \
  FAULT(erased_under_work, "overwrites a block before its work has ended")               \
  FAULT(failed_erasure_missed, "takes a block for overwritten when that has failed")     \
  FAULT(budget_ignored, "keeps every allocation until a limit is reached")               \
  FAULT(peaks_miscounted, "counts what is on its way to the core as in use")             \
  FAULT(moves_beyond_budget, "moves more free pages than it may")                        \
  FAULT(objects_beyond_share, "takes objects without regard to a limit that is shared")  \
  FAULT(pages_beyond_share, "takes pages without regard to a limit that is shared")      \
  FAULT(others_not_asked, "does without what pools that share a limit have cached")      \
  FAULT(moves_without_gain, "has blocks moved to places that are no better")

#ifdef UNIMEM_POOL_MUTANTS_ON

namespace unimem::detail {

#define UNIMEM_MUTANT_NAME(name, fault) name,
enum class PoolMutant { none, UNIMEM_POOL_MUTANTS(UNIMEM_MUTANT_NAME) };
#undef UNIMEM_MUTANT_NAME

extern PoolMutant active_pool_mutant;

}  // namespace unimem::detail

#define UNIMEM_MUTANT(name) (::unimem::detail::active_pool_mutant == ::unimem::detail::PoolMutant::name)

#else

#define UNIMEM_MUTANT(name) false

#endif
