#pragma once

#include <unimem/device/event.hpp>

#include <functional>
#include <vector>

namespace unimem::detail {

/// Calls `then` once all of `events` have ended, well or badly, on a thread that is started for it: for what must be
/// done at the end of work, and by a thread that may not wait for that. That thread is not waited for, so that it may
/// wait for any work, and in a driver; it counts as being in the middle of work. Not a thread that notices the end of
/// work, for which others wait.
///
/// If the process ends before, `then` is not called. Throws what starting a thread throws, and UnsupportedOperation in
/// a forked child; `then` is not called then either. `then` does not throw. Thread-safe.
void call_after(std::vector<Event> events, std::function<void()> then);

}  // namespace unimem::detail
