#pragma once

#include "device/cuda_standin/control.hpp"
#include "device/cuda_standin/faults.hpp"
#include "device/cuda_standin/memory.hpp"
#include "device/cuda_standin/order.hpp"
#include "device/cuda_standin/registry.hpp"

#include <condition_variable>
#include <set>
#include <string>
#include <thread>
#include <utility>

namespace unimem::standin {

struct StreamState;
struct EventState;
struct ModuleState;
struct FunctionState;
struct GraphState;
struct ExecutableState;
struct Capture;

/// A primary context, from the first retain to the last release. The next retain makes another one.
struct ContextState : std::enable_shared_from_this<ContextState> {
  Context handle = nullptr;
  int device = 0;
  unsigned retained = 0;
  bool destroyed = false;
  Result error = Result::success;     ///< sticky: what every later call says
  Result breaking = Result::success;  ///< the error to be, until the copies that are running have let go of host memory
  unsigned running_copies = 0;
  Clock blocking_clock;  ///< of all that was queued on blocking streams: what the legacy one comes after
  std::set<int> peers;   ///< devices whose memory this context may touch
  std::shared_ptr<StreamState> legacy;
  std::map<std::thread::id, std::shared_ptr<StreamState>> own_streams;  ///< per-thread default streams
};

struct DeviceState {
  int physical = 0;  ///< the number before CUDA_VISIBLE_DEVICES
  std::size_t capacity = 0;
  std::size_t used = 0;
  std::size_t used_by_others = 0;
  std::map<DeviceAttribute, int> attributes;  ///< as a test has told them
  std::set<int> unreachable;                  ///< peers it has no way to
  std::shared_ptr<ContextState> primary;      ///< null while nobody retains it

  [[nodiscard]] std::size_t room() const {
    auto const taken = used + used_by_others;
    return taken < capacity ? capacity - taken : 0;
  }
};

/// What happens at a violation, beside that it is noted.
enum class Reaction : unsigned char { note, print, abort };

/// Everything the stand-in knows, under one lock: a driver for tests is to be right and not fast. The work of copies
/// and kernels runs without it. Never destroyed: calls, workers and exit handlers may come at any time.
struct Machine {
  std::mutex mutex;
  std::condition_variable changed;  ///< for threads that wait in a call

  bool initialized = false;
  int version = 12080;
  std::map<DeviceAttribute, int> attributes;  ///< of every device, that are other than usual
  std::vector<DeviceState> devices;
  bool partitioned = false;  ///< the devices are instances of one GPU
  Registry<Context, ContextState> contexts;
  Registry<Stream, StreamState> streams;
  Registry<Event, EventState> events;
  Registry<Module, ModuleState> modules;
  Registry<Function, FunctionState> functions;
  Registry<Graph, GraphState> graphs;
  Registry<GraphExec, ExecutableState> executables;
  std::set<std::shared_ptr<Capture>> captures;     ///< in progress
  std::set<std::shared_ptr<StreamState>> working;  ///< streams with a worker, the destroyed ones that drain included

  MemoryMap memory;
  std::map<Address, std::size_t> reservations;
  std::map<AllocationHandle, std::shared_ptr<Physical>> physical;

  Clock host;                    ///< what the program's threads have waited for
  std::uint64_t host_waits = 0;  ///< how often that grew
  std::vector<Stamp> ends;       ///< the last commands of streams that are over, as long as the host does not know
  std::set<std::uint64_t> known_ends;  ///< streams that are over, and known to the host to be
  AccessHistory history;
  std::uint64_t streams_made = 0;

  Faults faults;
  Result late_fault = Result::success;  ///< how the first command of the call in progress is to fail
  bool held = false;
  unsigned copy_us = 0, kernel_us = 0;
  unsigned hardware_queues = 0;        ///< that the streams of a context share; 0: each has one of its own
  unsigned usual_hardware_queues = 0;  ///< as the environment says
  std::uint64_t submissions = 0;
  std::size_t spinning_waits = 0;
  Reaction reaction = Reaction::note;
  std::vector<std::string> violations;
  std::vector<std::string> journal;

  /// The device, or a refusal.
  [[nodiscard]] DeviceState& device(Device ordinal);
};

[[nodiscard]] Machine& machine();

/// Neither a forked child nor a process that is past the end of this library.
[[nodiscard]] bool process_is_whole() noexcept;

/// Notes what a real program would get away with and should not.
void violation(std::string text);

/// The current context of the calling thread, which must be well: what most calls begin with.
[[nodiscard]] std::shared_ptr<ContextState> current();
/// The same for calls that let go of things: a lost context is no reason to keep them.
[[nodiscard]] std::shared_ptr<ContextState> current_even_if_lost();
/// The contexts the calling thread has pushed, the current one last.
[[nodiscard]] std::vector<std::shared_ptr<ContextState>>& context_stack();

/// What the device says of itself, as a test may have told it to.
[[nodiscard]] int attribute_of(DeviceState const& device, DeviceAttribute attribute);

/// The last release of a primary context, or a reset by somebody else: everything in it goes with it. Only in the first
/// case is what is left a violation.
void end_context(DeviceState& device, bool by_its_owner);

/// Reads the environment at cuInit.
void configure(Machine& machine);

}  // namespace unimem::standin
