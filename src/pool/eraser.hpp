#pragma once

#include <unimem/core/made_once.hpp>
#include <unimem/device/device.hpp>
#include <unimem/device/queue.hpp>

#include "pool/block.hpp"

namespace unimem::detail {

/// Overwrites blocks with zeros when their owners are done with them, for a pool that is to do so
/// (`PoolOptions::zero_on_release`).
///
/// What is memory of the host, and nobody works on any more, is overwritten at once, by whoever releases it. Everything
/// else is work of a queue of the eraser's own, behind the work that is pending: no queue of a user's waits for it, and
/// it is then what is pending on the block. That work may fail, or find no way into the queue, so whoever takes the
/// block away from among the cached ones asks how it went (`erased`), and it is tried once more there.
///
/// Thread-safe for different blocks.
class Eraser {
 public:
  Eraser(Device& device, Location location) noexcept;

  /// Begins with a block that was just released, marked with the work pending on it. Waits for nothing.
  void begin(Block& block) noexcept;

  /// Whether nothing of its last owner's is left in a block with nothing pending. Calls no driver but for the state of
  /// an event.
  [[nodiscard]] static bool is_done(Block& block) noexcept;

  /// The same, and if it went badly it is tried once more, waiting for it; then never again.
  [[nodiscard]] bool erased(Block& block) noexcept;

 private:
  void overwrite(Block const& block) const;
  [[nodiscard]] Event fill(Block const& block);

  Device& device_;
  bool const host_memory_;
  MadeOnce<Queue> queue_;
};

}  // namespace unimem::detail
