#pragma once

#include <unimem/core/export.hpp>
#include <unimem/device/event.hpp>

#include <chrono>

namespace unimem {

/// Blocks until the event's work has ended, well or badly, or until that moment has come; whether it has ended. For
/// callers that have to look at something else now and then, such as a signal or a request to stop: `while
/// (!wait_until(event, soon())) …`, and then `event.wait()`, which throws the work's error.
///
/// As with `Event::wait`, a thread that waits for work on the host carries it out itself if no other thread does: then
/// it comes back when that is done, however long it takes. In a forked child, where no thread carries out the parent's
/// work, it is true at once, and `Event::wait` says so. Thread-safe.
[[nodiscard]] UNIMEM_API bool wait_until(Event event, std::chrono::steady_clock::time_point until) noexcept;

}  // namespace unimem
