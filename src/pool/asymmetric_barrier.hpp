#pragma once

#include <atomic>

namespace unimem::detail {

// A store followed by a load of something else is the one order a processor does not keep by itself, and keeping it
// costs an owner that does it at every step more than all the rest of the step. Where one side does it all the time and
// the other hardly ever, the rare side can pay for both: `heavy_barrier` makes every thread of the process run a full
// barrier (membarrier(2), Linux 4.14), so that the frequent side needs to keep only the compiler from reordering.

/// Whether the kernel offers it; else neither side may be used. Asked once.
[[nodiscard]] bool barriers_are_asymmetric() noexcept;

/// The frequent side, between its store and its load.
inline void light_barrier() noexcept {
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

/// The rare side, between its store and its load: a system call.
void heavy_barrier() noexcept;

}  // namespace unimem::detail
