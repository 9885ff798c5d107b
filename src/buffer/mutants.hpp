#pragma once

// Faults of the buffer floor that its tests can switch on, one at a time; see src/coherence/mutants.hpp, which does the
// same for the floor below. The library is compiled without UNIMEM_BUFFER_MUTANTS, where every fault point is `false`.

#define UNIMEM_BUFFER_MUTANTS(FAULT)                                                          \
  FAULT(reads_not_recorded, "forgets who reads, so that a writer may overtake")               \
  FAULT(writes_not_recorded, "forgets who writes")                                            \
  FAULT(reads_not_ordered, "lets a read overtake the write it needs")                         \
  FAULT(writes_not_ordered, "lets a write overtake what it conflicts with")                   \
  FAULT(writes_overtake_reads, "lets a write overtake reads")                                 \
  FAULT(host_reads_at_once, "lets the host read what is still arriving")                      \
  FAULT(host_writes_at_once, "lets the host write under work in flight")                      \
  FAULT(needs_forgotten, "lets work go on with what failed work left")                        \
  FAULT(ticket_dropped, "hands memory back without the ticket of its last work")              \
  FAULT(fresh_block_not_ordered, "uses a recycled block on another queue at once")            \
  FAULT(commit_not_tentative, "keeps what failed work was to write")                          \
  FAULT(good_work_forgotten, "takes back what succeeded behind a failure")                    \
  FAULT(ruins_revived, "takes for good what failed work has written over")                    \
  FAULT(skipped_work_ruins, "takes for lost what work that never began did not touch")        \
  FAULT(good_copies_overwritten, "brings uncertain bytes over the last good copy")            \
  FAULT(kept_addresses_overwritten, "brings bytes over those that somebody may be writing")   \
  FAULT(changes_forgotten, "takes what succeeded in changing bytes for ruined")               \
  FAULT(failures_arrive, "takes what failed to arrive on the host for current")               \
  FAULT(failures_not_forgotten, "lets a failure that was told poison later work")             \
  FAULT(maps_write_at_once, "lets a mapping write under work in flight")                      \
  FAULT(leases_overlooked, "overlooks leases that were taken without the lock")               \
  FAULT(doors_left_open, "lets leases in while the buffer changes")                           \
  FAULT(strangers_forgotten, "does not wait for work on a leased address")                    \
  FAULT(staging_recycled_early, "reuses a staging block before it has been sent on")          \
  FAULT(staging_returned_early, "gives staging blocks back before their last chunk has gone") \
  FAULT(evicted_unsaved, "takes memory back with bytes that nobody else has")                 \
  FAULT(uses_forgotten, "does not know what was used when")                                   \
  FAULT(hints_ignored, "does not listen to what is going to be used")                         \
  FAULT(priorities_ignored, "takes memory back from who has priority")                        \
  FAULT(sums_unannounced, "makes room for one operand where all of them will never fit")      \
  FAULT(spilled_though_exposed, "takes host memory from under an address")                    \
  FAULT(spilled_though_leased, "takes host memory from under a mapping")                      \
  FAULT(spilled_under_work, "takes host memory before it has been read")                      \
  FAULT(spilled_and_not_read, "leaves in a file what was there")                              \
  FAULT(recycled_dirty, "leaves the next owner of a buffer what was dirty before")            \
  FAULT(recycled_work_forgotten, "does not order the next owner behind pending work")         \
  FAULT(recycled_failures_kept, "tells the next owner of failures before his time")           \
  FAULT(recycled_though_held, "lends memory again that a lease still holds")                  \
  FAULT(recycled_though_shared, "lends a buffer again that a slice still shares")             \
  FAULT(zeros_on_the_host_alone, "leaves on a device what was to be overwritten")             \
  FAULT(taken_back_twice, "takes a pooled buffer back from who no longer has it")             \
  FAULT(taken_for_one_that_is_gone, "takes back what lies where a lent buffer was")           \
  FAULT(shelf_overfull, "keeps more than the limits allow")

#ifdef UNIMEM_BUFFER_MUTANTS_ON

namespace unimem::detail {

#define UNIMEM_MUTANT_NAME(name, fault) name,
enum class BufferMutant { none, UNIMEM_BUFFER_MUTANTS(UNIMEM_MUTANT_NAME) };
#undef UNIMEM_MUTANT_NAME

extern BufferMutant active_buffer_mutant;

}  // namespace unimem::detail

#define UNIMEM_MUTANT(name) (::unimem::detail::active_buffer_mutant == ::unimem::detail::BufferMutant::name)

#else

#define UNIMEM_MUTANT(name) false

#endif
