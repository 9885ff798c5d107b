#pragma once

#include <unimem/core/export.hpp>
#include <unimem/device/device.hpp>
#include <unimem/device/queue.hpp>

namespace unimem {

/// A queue over a CUDA stream of the caller's (`cudaStream_t` or `CUstream`, of the device's primary context, which is
/// the one that the CUDA runtime uses), which stays the caller's: work of the queue goes into the stream, in order with
/// whatever else its owner puts there. Null is the legacy default stream. The stream may be destroyed once the queue is
/// gone; events of the queue can be asked for ever.
///
/// Throws UnsupportedOperation if `device` is not a CUDA device, InvalidArgument for a stream of another device and for
/// the calling thread's own default stream (`cudaStreamPerThread`), which is another one on every thread;
/// DeviceError if the driver does not know it. Thread-safe.
[[nodiscard]] UNIMEM_API Queue adopt_stream(Device& device, void* stream);

}  // namespace unimem
