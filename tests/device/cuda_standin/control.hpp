#pragma once

#include "device/cuda/declarations.hpp"

#include <dlfcn.h>

#include <cstddef>
#include <cstdlib>
#include <string>
#include <vector>

// How a test talks to the stand-in driver behind the driver API's back.
//
// What has to be known at cuInit comes from the environment:
//   UNIMEM_CUDA_STANDIN_DEVICES     how many devices (2; with 0, cuInit finds none)
//   UNIMEM_CUDA_STANDIN_CAPACITY    bytes of each, separated by commas; the last counts for the rest (256 MiB)
//   UNIMEM_CUDA_STANDIN_ATTRIBUTES  attribute:value, by number, separated by commas: what every device says of itself
//   UNIMEM_CUDA_STANDIN_VERSION     what cuDriverGetVersion says; functions that came later are missing (12080)
//   UNIMEM_CUDA_STANDIN_MISSING     functions that cuGetProcAddress denies, separated by commas
//   UNIMEM_CUDA_STANDIN_FAULT       function:nth:code[:once|sticky|late], separated by commas, as `fail` takes them
//   UNIMEM_CUDA_STANDIN_HARDWARE_QUEUES  as `share_hardware` takes it (0)
//   UNIMEM_CUDA_STANDIN_VIOLATIONS  print: each is told on the standard error at once; abort: and ends the process
//   UNIMEM_CUDA_STANDIN_INSTANCES   the machine has one GPU, partitioned (MIG) into so many instances with equal shares
//                                   of its memory; as with the real driver, only one of them is shown: the first, or
//                                   the one that CUDA_VISIBLE_DEVICES names ("MIG-...")
//   CUDA_VISIBLE_DEVICES            as for the real driver: ordinals or beginnings of uuids, up to the first unknown

namespace unimem::standin {

/// How an injected fault shows.
enum class FaultKind : int {
  once,    ///< this call is refused with the code and does nothing; the next one is well
  sticky,  ///< this call is refused with the code and the context is lost
  late,    ///< this call is accepted; its work fails when its turn comes, and the context is lost
};

/// What exists at this moment, in the whole process.
struct LiveCounts {
  std::size_t contexts = 0;  ///< retained primary contexts
  std::size_t streams = 0;   ///< made by cuStreamCreate and not destroyed
  std::size_t events = 0;
  std::size_t modules = 0;
  std::size_t graphs = 0;
  std::size_t executables = 0;   ///< instantiated graphs
  std::size_t allocations = 0;   ///< of cuMemAlloc and cuMemAllocAsync
  std::size_t managed = 0;       ///< of cuMemAllocManaged
  std::size_t pinned = 0;        ///< of cuMemHostAlloc
  std::size_t registered = 0;    ///< of cuMemHostRegister
  std::size_t reservations = 0;  ///< of cuMemAddressReserve
  std::size_t mappings = 0;      ///< of cuMemMap
  std::size_t handles = 0;       ///< of cuMemCreate and imports, not released
  std::size_t pinned_bytes = 0;  ///< both kinds of pinned host memory
  std::size_t device_bytes = 0;  ///< of all devices, counted against their capacities
  std::size_t pending = 0;       ///< commands queued or running
};

/// The entries a test may call, from any thread and at any time; they need no context. Strings live as long as the
/// process.
struct StandInControl {
  /// Forgets faults, latencies, call counts, violations and the journal, and all the entries below have said of
  /// devices but their capacities; lets held streams go and checks all order again.
  void (*reset)();

  /// The capacity of a device from now on. Allocations that exist stay.
  void (*set_capacity)(int device, std::size_t bytes);
  /// How much other processes hold of a device.
  void (*set_used_by_others)(int device, std::size_t bytes);
  /// What a device says of itself from now on. What it says it cannot do, it refuses.
  void (*set_attribute)(int device, detail::cuda::DeviceAttribute attribute, int value);
  /// Whether `device` can reach the memory of `peer`. Without a word all can.
  void (*set_peer)(int device, int peer, bool reachable);

  /// How long each copy (or memset) and each kernel takes before it does its work.
  void (*set_latency)(unsigned copy_us, unsigned kernel_us);
  /// How many hardware queues the streams of each device share, in which work begins in the order of its submission (8
  /// on a real GPU, or CUDA_DEVICE_MAX_CONNECTIONS); calls that may wait for all work of the GPU then do. 0: each
  /// stream has one of its own, and they do not.
  void (*share_hardware)(unsigned queues);
  /// While held, no stream begins a command: what is pending stays pending.
  void (*hold)(bool held);
  /// The same for one stream (a handle as cuStreamCreate gave it).
  void (*hold_stream)(detail::cuda::Stream stream, bool held);

  /// Whether bytes that two streams touch without an order between them are a violation: copies and fills among each
  /// other, and copies that write where a kernel's pointer points. Without a word both are.
  void (*check_order)(bool copies, bool kernels);

  /// The `nth` call of `function` from now on (1 is the next; null: of any function, but for those that name errors,
  /// say the version, pop or ask for the current context, and exchange capture modes) ends as `kind` says. `late` of a
  /// call without work: nothing.
  void (*fail)(char const* function, std::size_t nth, detail::cuda::Result code, FaultKind kind);
  /// The same, of calls in the context of one device alone.
  void (*fail_on)(int device, char const* function, std::size_t nth, detail::cuda::Result code, FaultKind kind);
  /// The device breaks at once, as if something running there had failed.
  void (*lose)(int device, detail::cuda::Result code);
  /// Somebody else resets the primary context: everything in it is gone, and its handle with it.
  void (*reset_context)(int device);

  /// How often `function` was called since the last reset, refused calls included; null: all that `fail` with null
  /// counts.
  std::size_t (*calls)(char const* function);
  /// How many waits for an event kept a processor busy, since the last reset.
  std::size_t (*spinning_waits)();
  LiveCounts (*live)();
  /// Of one device: bytes counted against its capacity.
  std::size_t (*used)(int device);

  /// What real programs get away with and should not, one sentence each; null past the end.
  char const* (*violation)(std::size_t index);
  /// Managed-memory advice and prefetches as they came: "cuMemPrefetchAsync 0x7f.. 4096 device 1"; null past the end.
  char const* (*journal)(std::size_t index);
  /// Contexts on the stack of the calling thread.
  std::size_t (*stack_depth)();
};

using GetControl = StandInControl const* (*)();

/// The control of the stand-in at `library` (the path in UNIMEM_CUDA_LIBRARY), or null where that is no stand-in.
inline StandInControl const* find_control(char const* library = std::getenv("UNIMEM_CUDA_LIBRARY")) {
  if (library == nullptr) return nullptr;
  auto* const handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);  // never closed: drivers are not unloaded
  if (handle == nullptr) return nullptr;
  auto const get = reinterpret_cast<GetControl>(dlsym(handle, "unimem_cuda_standin_control"));
  return get != nullptr ? get() : nullptr;
}

/// All violations so far, for EXPECT_THAT(violations(control), IsEmpty()).
inline std::vector<std::string> violations(StandInControl const& control) {
  std::vector<std::string> all;
  while (auto const* const text = control.violation(all.size())) all.emplace_back(text);
  return all;
}

}  // namespace unimem::standin
