#pragma once

#include <atomic>
#include <cstdint>

// The moments between which a process may be killed while it shares memory with others, so that tests can end one at
// each of them.

namespace unimem::detail {

enum class Step : std::uint8_t {
  publish_made_segment,
  publish_copied,
  publish_offered,
  open_fetched,
  open_attached,
  open_joined,
  lock_taken,
  change_prepared,  ///< written down, not in force
  change_in_force,  ///< and no other process has been told
  write_claimed,
  write_ended,
  read_claimed,
  read_ended,
  leaving,
  left,
};

/// Null outside tests. It is called on whatever thread takes a step, at some of them with the table's lock.
inline std::atomic<void (*)(Step)> step_watcher{nullptr};

/// A load. Relaxed: a test sets it before there is a thread to see it.
inline void at_step(Step step) noexcept {
  if (auto* const watcher = step_watcher.load(std::memory_order_relaxed)) [[unlikely]]
    watcher(step);
}

}  // namespace unimem::detail
