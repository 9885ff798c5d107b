#pragma once

#include <unimem/core/detail/lazy.hpp>
#include <unimem/device/device.hpp>
#include <unimem/device/queue.hpp>

#include "pool/block.hpp"

namespace unimem::detail {

/// Overwrites blocks with zeros when their owners are done with them, for a pool that is to do so
/// (`PoolOptions::zero_on_release`).
///
/// A block without pending work is overwritten as soon as it is released: by the releasing thread where the host
/// reaches the memory, else by a queue of the zeroer's own, and that work is then what is pending on the block. What is
/// still worked on waits for its next owner: a queue of the zeroer's behind that work would hold up the blocks of other
/// owners, which have nothing to do with it. A next owner that is a queue has it done there, behind everything that is
/// pending and before anything of its own; any other has it done when he gets the block.
///
/// The work may fail, or find no way into a queue, so a thread that takes a block away from among the cached ones asks
/// how it went (`erased`), and it is tried once more there; a queue does not rely on what it does not know to be done.
///
/// Thread-safe for different blocks.
class Zeroer {
 public:
  Zeroer(Device& device, Location location) noexcept;

  /// Begins with a block that was just released, marked with the work pending on it. Waits for nothing.
  void begin(Block& block) noexcept;

  /// Whether this queue can do it for its owner: it is one of the device that has the memory.
  [[nodiscard]] bool can_leave_to(Queue const& queue) const noexcept { return &queue.device() == &device_; }

  /// Has a queue overwrite the block, behind all that was submitted to it before. Throws what the queue throws.
  Event leave_to(Queue& queue, Block const& block) const;

  /// Whether nothing of its last owner's is left in a block with nothing pending. Calls no driver but for the state of
  /// an event.
  [[nodiscard]] static bool is_done(Block& block) noexcept;

  /// The same, and if it went badly it is tried once more, waiting for it; then never again.
  [[nodiscard]] bool erased(Block& block) noexcept;

 private:
  /// Where the host writes to the block: null where it does not, be it that an upstream's memory has no address.
  [[nodiscard]] void* address(Block const& block) const noexcept;
  [[nodiscard]] Event fill(Block const& block);

  Device& device_;
  bool const host_memory_;
  Lazy<Queue> queue_;
};

}  // namespace unimem::detail
