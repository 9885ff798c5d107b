#include "device/cuda_standin/capture.hpp"
#include "device/cuda_standin/machine.hpp"
#include "device/cuda_standin/streams.hpp"

// Memory of a device the simple ways: at once, and in the order of a stream.

namespace unimem::standin {
namespace {

std::shared_ptr<Allocation> allocate(MemoryKind kind, std::size_t bytes, ContextState& context) {
  auto& device = machine().device(context.device);
  require(bytes > 0);
  require(bytes <= device.room(), Result::out_of_memory);
  auto const at = take_addresses(bytes, allocation_alignment);
  require(at != 0 && back_with_memory(at, bytes), Result::out_of_memory);
  auto allocation = std::make_shared<Allocation>(kind, at, bytes);
  allocation->device = context.device;
  allocation->context = context.weak_from_this();
  device.used += bytes;
  machine().memory.add(allocation);
  return allocation;
}

/// What a caller wants to free, by its first byte.
std::shared_ptr<Allocation> to_free(DevicePointer pointer) {
  auto allocation = machine().memory.beginning_at(pointer);
  require(allocation != nullptr && !allocation->free_is_queued);
  return allocation;
}

/// With unified addresses the driver finds the owner by itself; a program that relies on it has lost track of its own.
void note_wrong_device(Allocation const& allocation, ContextState const& context, char const* call) {
  if (allocation.kind == MemoryKind::managed || allocation.device == context.device) return;
  violation(std::string{call} + " of memory of device " + std::to_string(allocation.device) + " for device " +
            std::to_string(context.device));
}

/// What uses the memory and is not ordered before a command that comes next on the stream, or null.
char const* unordered_use(Allocation const& allocation, StreamState& stream) {
  follow_host(stream);
  return machine().history.use_beyond(stream.clock, allocation.base, allocation.end());
}

}  // namespace

namespace calls {

Result cuMemAlloc(Lock& /*lock*/, DevicePointer* pointer, std::size_t bytes) {
  require(pointer != nullptr);
  auto const context = current();
  refuse_during_capture();
  *pointer = allocate(MemoryKind::device, bytes, *context)->base;
  return Result::success;
}

Result cuMemFree(Lock& lock, DevicePointer pointer) {
  auto const context = current_even_if_lost();
  if (context->error == Result::success) refuse_during_capture();
  if (pointer == 0) return context->error;
  auto const allocation = to_free(pointer);
  auto const kind = allocation->kind;
  require(kind == MemoryKind::device || kind == MemoryKind::stream_ordered || kind == MemoryKind::managed);
  note_wrong_device(*allocation, *context, "cuMemFree");
  forget_allocation(allocation, context->breaking == Result::success ? "cuMemFree" : nullptr);
  // cuda.h, cuMemFree: of memory of the driver's pools without "any implicit synchronization"; "for all other pointers,
  // this API may perform implicit synchronization".
  if (kind != MemoryKind::stream_ordered) wait_implicitly(lock, *context);
  return context->error;
}

Result cuMemAllocAsync(Lock& /*lock*/, DevicePointer* pointer, std::size_t bytes, Stream stream) {
  require(pointer != nullptr);
  auto const target = stream_for_work(stream, "cuMemAllocAsync");
  auto const& device = machine().device(target->context->device);
  require(attribute_of(device, DeviceAttribute::memory_pools) != 0, Result::not_supported);
  refuse_on_captured(*target);
  auto const allocation = allocate(MemoryKind::stream_ordered, bytes, *target->context);
  allocation->alive = false;
  Command command;
  command.name = "cuMemAllocAsync";
  command.effect = [allocation] { allocation->alive = true; };
  static_cast<void>(submit(target, std::move(command)));
  allocation->born = {target->number, target->tickets};
  *pointer = allocation->base;
  return Result::success;
}

Result cuMemFreeAsync(Lock& /*lock*/, DevicePointer pointer, Stream stream) {
  auto const target = stream_for_work(stream, "cuMemFreeAsync");
  refuse_on_captured(*target);
  if (pointer == 0) return Result::success;
  auto const allocation = to_free(pointer);
  require(allocation->kind == MemoryKind::stream_ordered);
  note_wrong_device(*allocation, *target->context, "cuMemFreeAsync");
  allocation->free_is_queued = true;
  if (auto const* const user = unordered_use(*allocation, *target))
    violation(std::string{"cuMemFreeAsync of memory that "} + user + " uses, which does not come before it");
  Command command;
  command.name = "cuMemFreeAsync";
  command.effect = [allocation] {
    if (machine().memory.beginning_at(allocation->base) != allocation) return;  // its context ended
    check_tail(*allocation, "cuMemFreeAsync");
    forget_allocation(allocation, nullptr);
  };
  static_cast<void>(submit(target, std::move(command)));
  return Result::success;
}

}  // namespace calls

}  // namespace unimem::standin
