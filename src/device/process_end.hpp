#pragma once

namespace unimem::detail {

/// Whether drivers may no longer be called from here: the process is past its exit handlers, where drivers have torn
/// themselves down, or is the child of a fork, where a driver's threads do not exist, or this is the main thread and
/// its thread-local objects are gone, a driver's among them (Oclgrind writes into its own after that). Handles then
/// release nothing.
[[nodiscard]] bool driver_gone() noexcept;

/// What errors say of it.
inline constexpr auto process_end_reason = "this process is the child of a fork, or is ending";

/// From now on `driver_gone()` tells. Called by a backend right after it has loaded its driver, so that this exit
/// handler runs before those the driver registers later. `last_act` is called once or twice while the driver still
/// stands. Telling it twice is telling it once.
void watch_process_end(void (*last_act)() noexcept);

/// Notices the end of the main thread, if this is it. Called after a driver was: thread-local objects go in the
/// reverse order of their making, and a `last_act` needs the driver's.
void watch_main_thread() noexcept;

}  // namespace unimem::detail
