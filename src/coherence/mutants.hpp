#pragma once

// Faults that the tests can switch on, one at a time, to see that a model which passes would have noticed. The library
// is compiled without UNIMEM_MUTANTS, where every fault point is the constant `false`; tests/coherence compiles this
// folder once more with it, and says which fault is active.

#define UNIMEM_COHERENCE_MUTANTS(FAULT)                                                             \
  FAULT(stale_source, "copies from a place that once held the bytes")                               \
  FAULT(dearest_source, "copies from the dearest place")                                            \
  FAULT(sharing_source_ignored, "copies from afar what lies in the same storage")                   \
  FAULT(fence_without_sharing, "orders the work where bytes would have to move")                    \
  FAULT(copy_end_off_by_one, "copies one byte too few")                                             \
  FAULT(joined_over_stale_gap, "joins two copies over bytes the source has stale")                  \
  FAULT(joined_at_any_price, "joins two copies although one is dearer")                             \
  FAULT(written_bytes_brought_in, "copies what will be overwritten anyway")                         \
  FAULT(lost_bytes_read, "lets lost bytes be read")                                                 \
  FAULT(mark_joins_over_held, "copies over what the mark says was written")                         \
  FAULT(mark_trusts_garbage, "does not bring in what the place never held")                         \
  FAULT(mark_sees_no_conflict, "lets a mark run into an unsynchronized write")                      \
  FAULT(mark_overrules_a_part, "lets a mark overrule that covers the overlap alone")                \
  FAULT(mark_never_overrules, "calls a mark that covers everything a conflict")                     \
  FAULT(release_saves_written_only, "saves what waits for the other side, not all that is sole")    \
  FAULT(release_saves_too_much, "saves what other places hold too")                                 \
  FAULT(release_forgets_shared, "forgets what lies in memory that stays")                           \
  FAULT(copies_not_recorded, "commits without recording the copies")                                \
  FAULT(parts_taken_for_all, "marks what lies between the parts of a mark as well")                 \
  FAULT(held_forgotten, "does not remember that a copy arrived")                                    \
  FAULT(sync_leaves_written, "leaves bytes the other side has seen as waiting")                     \
  FAULT(sync_between_devices, "takes a copy between two devices for a synchronization")             \
  FAULT(adopted_range_only, "adopts the bytes accessed, not the buffer")                            \
  FAULT(write_not_invalidating, "leaves other copies valid after a write")                          \
  FAULT(write_end_off_by_one, "leaves the last byte of a write valid elsewhere")                    \
  FAULT(write_spares_sharing_places, "leaves a write unnoticed where the storage is shared")        \
  FAULT(write_not_recorded, "forgets that a written range waits")                                   \
  FAULT(write_leaves_lost, "leaves bytes written anew as lost")                                     \
  FAULT(roll_back_keeps_touched, "trusts what a failed operation left")                             \
  FAULT(roll_back_spares_sharing_places, "restores bytes that were ruined through a sharing place") \
  FAULT(roll_back_trusts_memory, "restores bytes that the storage no longer holds")                 \
  FAULT(roll_back_outlives_discard, "takes back what was done to discarded data")                   \
  FAULT(roll_back_loses_nothing, "does not list what is valid nowhere after a failure")             \
  FAULT(removal_loses_nothing, "does not list what went with the storage")                          \
  FAULT(removal_forgets_write, "forgets that another device still holds an unsynchronized write")   \
  FAULT(discard_keeps_held, "trusts discarded bytes")                                               \
  FAULT(clean_state_dirty, "calls a side dirty when it alone has the data")                         \
  FAULT(mixed_state_host_dirty, "calls a buffer host-dirty where each side has newer bytes")

#ifdef UNIMEM_MUTANTS

namespace unimem::detail {

#define UNIMEM_MUTANT_NAME(name, fault) name,
enum class Mutant { none, UNIMEM_COHERENCE_MUTANTS(UNIMEM_MUTANT_NAME) };
#undef UNIMEM_MUTANT_NAME

extern Mutant active_mutant;

}  // namespace unimem::detail

#define UNIMEM_MUTANT(name) (::unimem::detail::active_mutant == ::unimem::detail::Mutant::name)

#else

#define UNIMEM_MUTANT(name) false

#endif
