#include "device/cuda_standin/capture.hpp"
#include "device/cuda_standin/modules.hpp"
#include "device/cuda_standin/workers.hpp"

// What a test sees and sets from behind: the entries of StandInControl.

namespace unimem::standin {
namespace {

Lock locked() {
  return Lock{machine().mutex};
}

/// A test may set up devices before anybody has called cuInit.
DeviceState& device_at(int ordinal) {
  auto& all = machine();
  if (!all.initialized) {
    configure(all);
    all.initialized = true;
  }
  return all.devices.at(static_cast<std::size_t>(ordinal));
}

void reset() {
  auto const lock = locked();
  auto& all = machine();
  all.faults.reset();
  all.copy_us = all.kernel_us = 0;
  all.spinning_waits = 0;
  all.hardware_queues = all.usual_hardware_queues;
  all.held = false;
  all.history.set_care(AccessHistory::Care::copies_and_kernels);
  all.violations.clear();
  all.journal.clear();
  for (auto& device : all.devices) {
    device.used_by_others = 0;
    device.unreachable.clear();
    device.attributes.clear();
  }
  for (auto const& [handle, stream] : all.streams) stream->held = false;
  wake_workers();
}

void set_capacity(int device, std::size_t bytes) {
  auto const lock = locked();
  device_at(device).capacity = bytes;
}

void set_used_by_others(int device, std::size_t bytes) {
  auto const lock = locked();
  device_at(device).used_by_others = bytes;
}

void set_attribute(int device, DeviceAttribute attribute, int value) {
  auto const lock = locked();
  device_at(device).attributes[attribute] = value;
}

void set_peer(int device, int peer, bool reachable) {
  auto const lock = locked();
  auto& unreachable = device_at(device).unreachable;
  if (reachable)
    unreachable.erase(peer);
  else
    unreachable.insert(peer);
}

void set_latency(unsigned copy_us, unsigned kernel_us) {
  auto const lock = locked();
  machine().copy_us = copy_us;
  machine().kernel_us = kernel_us;
}

void share_hardware(unsigned queues) {
  auto const lock = locked();
  machine().hardware_queues = queues;
  wake_workers();
}

void hold(bool held) {
  auto const lock = locked();
  machine().held = held;
  wake_workers();
}

void hold_stream(Stream stream, bool held) {
  auto const lock = locked();
  machine().streams.at(stream)->held = held;
  wake_workers();
}

void check_order(bool copies, bool kernels) {
  auto const lock = locked();
  using Care = AccessHistory::Care;
  machine().history.set_care(!copies ? Care::nothing : kernels ? Care::copies_and_kernels : Care::copies);
}

void fail(char const* function, std::size_t nth, Result code, FaultKind kind) {
  auto const lock = locked();
  machine().faults.plan(function == nullptr ? "" : function, nth, code, kind);
}

void fail_on(int device, char const* function, std::size_t nth, Result code, FaultKind kind) {
  auto const lock = locked();
  machine().faults.plan(function == nullptr ? "" : function, nth, code, kind, device);
}

void lose_device(int device, Result code) {
  auto lock = locked();
  auto const context = device_at(device).primary;
  if (context != nullptr) lose_and_wait(lock, *context, code);
}

void reset_context(int device) {
  auto const lock = locked();
  auto& owner = device_at(device);
  if (owner.primary != nullptr) end_context(owner, false);
}

std::size_t calls_of(char const* function) {
  auto const lock = locked();
  return function == nullptr ? machine().faults.all_calls() : machine().faults.calls(function);
}

std::size_t used(int device) {
  auto const lock = locked();
  return device_at(device).used;
}

void count_memory(LiveCounts& live) {
  for (auto const& [base, allocation] : machine().memory) {
    switch (allocation->kind) {
      case MemoryKind::device:
      case MemoryKind::stream_ordered:
        ++live.allocations;
        break;
      case MemoryKind::mapped:
        ++live.mappings;
        break;
      case MemoryKind::managed:
        ++live.managed;
        break;
      case MemoryKind::pinned:
        ++live.pinned;
        break;
      case MemoryKind::registered:
        ++live.registered;
        break;
      case MemoryKind::device_view:
        break;
    }
    if (allocation->is_host() && allocation->kind != MemoryKind::device_view) live.pinned_bytes += allocation->bytes;
  }
}

std::size_t spinning_waits() {
  auto const lock = locked();
  return machine().spinning_waits;
}

LiveCounts live() {
  auto const lock = locked();
  auto const& all = machine();
  LiveCounts counts;
  counts.contexts = all.contexts.size();
  counts.streams = all.streams.size();
  counts.events = all.events.size();
  counts.modules = all.modules.size();
  counts.graphs = all.graphs.size();
  counts.executables = all.executables.size();
  counts.reservations = all.reservations.size();
  counts.handles = all.physical.size();
  count_memory(counts);
  for (auto const& device : all.devices) counts.device_bytes += device.used;
  for (auto const& stream : all.working) counts.pending += stream->commands.size();
  return counts;
}

/// An entry of a list that a reset may empty while the caller still reads it: kept for good.
char const* entry_of(std::vector<std::string> const& list, std::size_t index) {
  static auto& kept = *new std::set<std::string>;
  return index < list.size() ? kept.insert(list[index]).first->c_str() : nullptr;
}

char const* violation_at(std::size_t index) {
  auto const lock = locked();
  return entry_of(machine().violations, index);
}

char const* journal_at(std::size_t index) {
  auto const lock = locked();
  return entry_of(machine().journal, index);
}

std::size_t stack_depth() {
  return context_stack().size();
}

constexpr StandInControl control{
    .reset = reset,
    .set_capacity = set_capacity,
    .set_used_by_others = set_used_by_others,
    .set_attribute = set_attribute,
    .set_peer = set_peer,
    .set_latency = set_latency,
    .share_hardware = share_hardware,
    .hold = hold,
    .hold_stream = hold_stream,
    .check_order = check_order,
    .fail = fail,
    .fail_on = fail_on,
    .lose = lose_device,
    .reset_context = reset_context,
    .calls = calls_of,
    .spinning_waits = spinning_waits,
    .live = live,
    .used = used,
    .violation = violation_at,
    .journal = journal_at,
    .stack_depth = stack_depth,
};

}  // namespace

}  // namespace unimem::standin

extern "C" __attribute__((visibility("default"))) unimem::standin::StandInControl const* unimem_cuda_standin_control() {
  return &unimem::standin::control;
}
