#pragma once

// Faults of the CUDA backend that its tests can switch on, one at a time; see src/coherence/mutants.hpp. The library is
// compiled without UNIMEM_CUDA_MUTANTS_ON, where every fault point is `false`.

#define UNIMEM_CUDA_MUTANTS(FAULT)                                                    \
  FAULT(wrong_stream, "uploads in another stream than the event behind it")           \
  FAULT(event_too_early, "records the event before the work")                         \
  FAULT(wait_forgotten, "does not let a stream wait for another's event")             \
  FAULT(host_wait_forgotten, "does not let a stream wait for another backend's work") \
  FAULT(context_left, "leaves its context behind on the calling thread")              \
  FAULT(wrong_context, "allocates wherever the caller happens to be")                 \
  FAULT(memory_kept, "does not give memory back to the driver")                       \
  FAULT(account_forgotten, "does not take back what was counted as used")             \
  FAULT(program_dropped, "lets a kernel's code go while it is waiting to run")        \
  FAULT(pinned_for_good, "leaves memory registered that goes back to the system")     \
  FAULT(access_forgotten, "maps pages that nobody may touch")                         \
  FAULT(pages_kept, "does not give pages back to the driver")                         \
  FAULT(fill_too_short, "leaves the last piece of a long pattern out")                \
  FAULT(last_piece_misplaced, "puts the last of many pieces where another belongs")   \
  FAULT(last_row_left_out, "copies a rectangle but for its last row")                 \
  FAULT(batch_not_awaited, "takes a batch for done before it has begun")              \
  FAULT(table_recycled_early, "reuses a table of pieces that is still being read")    \
  FAULT(loss_overlooked, "takes a lost device for a healthy one")

#ifdef UNIMEM_CUDA_MUTANTS_ON

namespace unimem::detail::cuda {

#define UNIMEM_MUTANT_NAME(name, fault) name,
enum class Mutant { none, UNIMEM_CUDA_MUTANTS(UNIMEM_MUTANT_NAME) };
#undef UNIMEM_MUTANT_NAME

extern Mutant active_mutant;

}  // namespace unimem::detail::cuda

#define UNIMEM_MUTANT(name) (::unimem::detail::cuda::active_mutant == ::unimem::detail::cuda::Mutant::name)

#else

#define UNIMEM_MUTANT(name) false

#endif
