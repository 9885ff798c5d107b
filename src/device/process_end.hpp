#pragma once

#include <chrono>

namespace unimem::detail {

/// Whether drivers may no longer be called from here: the process is past its exit handlers, where drivers have torn
/// themselves down, or is the child of a fork, where a driver's threads do not exist, or this is the main thread and
/// its thread-local objects are gone, a driver's among them (Oclgrind writes into its own after that). Handles then
/// release nothing.
[[nodiscard]] bool driver_gone() noexcept;

/// What errors say of it.
inline constexpr auto process_end_reason = "this process is the child of a fork, or is ending";

/// How long `exit` waits for work in the background: that very work may have called it, or may never end.
inline constexpr std::chrono::seconds exit_patience{1};

/// From now on `driver_gone()` tells, and `last_act` is called, any number of times, while the driver still stands.
///
/// Exit handlers run in the reverse order of their registration, so a backend calls this after whatever may have made
/// its driver register handlers: when the driver was loaded, when it was first asked, when a device of it was first
/// used (an OpenCL loader loads the vendors' libraries when it is first asked, and these may load a compiler with their
/// first program). Each call is one handler more; the same `last_act` is done once.
void watch_process_end(void (*last_act)() noexcept);

/// Notices the end of the main thread, if this is it. Called after a driver was: thread-local objects go in the
/// reverse order of their making, and a `last_act` needs the driver's.
void watch_main_thread() noexcept;

}  // namespace unimem::detail
