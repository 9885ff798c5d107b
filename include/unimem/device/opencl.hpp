#pragma once

#include <unimem/core/export.hpp>
#include <unimem/device/device.hpp>
#include <unimem/device/queue.hpp>

namespace unimem {

/// A device that allocates, builds and works in an OpenCL context of the caller's (`cl_context`), on one of the
/// context's devices (`cl_device_id`): its memory, queues and programs may be used together with the caller's own
/// objects of that context. It has the limits of the hardware in common with `opencl:N`, and an id such as
/// `opencl:0,context=1`, by which `device()` finds it; `devices()` does not list it. The same handles are the same
/// device. It lives as long as the process, as all devices do, and holds a reference to the context: the caller may
/// release the context at any time, and it stands until the process ends.
///
/// Throws InvalidArgument for null, for a context without that device, and for a device that the library does not list,
/// as parts of a device (`clCreateSubDevices`) are; DeviceError if the driver does not know a handle. Handles of
/// objects that are gone are undefined, as in every call of OpenCL. Thread-safe.
[[nodiscard]] UNIMEM_API Device& adopt_context(void* context, void* device);

/// A queue over an in-order OpenCL queue of the caller's (`cl_command_queue`), of the context and the hardware of
/// `device`, which is one that `adopt_context` made: work of the queue goes into the caller's, in order with whatever
/// else its owner puts there. It holds a reference to the caller's queue until it is gone itself, so that either may go
/// first; destroying it waits for its own work and what that is behind.
///
/// Throws UnsupportedOperation if `device` is not an OpenCL device, InvalidArgument for null, for a queue of another
/// context or other hardware, and for one that works out of order; DeviceError if the driver does not know it.
/// Thread-safe.
[[nodiscard]] UNIMEM_API Queue adopt_queue(Device& device, void* queue);

}  // namespace unimem
