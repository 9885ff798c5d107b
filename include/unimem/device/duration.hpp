#pragma once

#include <unimem/core/export.hpp>
#include <unimem/device/event.hpp>
#include <unimem/device/queue.hpp>

#include <chrono>
#include <optional>

namespace unimem {

/// From here on `queue` keeps how long its work takes: of each piece that has ended well, up to the 1,024 that ended
/// last (16 KiB a queue). Work that was submitted before may or may not have one. Nothing happens the second time.
///
/// On the host, cpu and sim, that is two readings of the clock for each piece; on `cuda` two events of the driver's for
/// each. Throws UnsupportedOperation where the driver keeps no times of this queue: devices of OpenCL and CUDA must be
/// opened with `profile=1`, and an adopted queue of OpenCL made with CL_QUEUE_PROFILING_ENABLE. Thread-safe.
UNIMEM_API void keep_durations(Queue& queue);

/// How long the work took on its device, from its beginning there to its end, without what it waited for in its queue;
/// of a graph, all of it under OpenCL and CUDA, and its last launch on the host. Nothing while it runs, if it failed or
/// never began, if its queue kept no durations then or keeps this one no more, and for work that the driver does not
/// time (`with_native`) or says to have taken none. Never blocks. Thread-safe.
[[nodiscard]] UNIMEM_API std::optional<std::chrono::nanoseconds> duration(Event event) noexcept;

}  // namespace unimem
