#include "device/cuda_standin/capture.hpp"
#include "device/cuda_standin/machine.hpp"
#include "device/cuda_standin/streams.hpp"

#include <cstdio>

// Memory that both sides reach. It counts against nobody: the real one may be larger than any device.

namespace unimem::standin {
namespace {

/// A range as a whole inside one managed allocation.
void require_managed(DevicePointer pointer, std::size_t bytes) {
  require(bytes > 0);
  auto const allocation = machine().memory.around(pointer);
  require(allocation != nullptr && allocation->kind == MemoryKind::managed && bytes <= allocation->end() - pointer);
}

/// -1, the host, is not a number that a location of the newer form has.
void require_place(MemoryLocation const& location) {
  if (location.type == LocationType::host) return;
  require(location.type == LocationType::device);
  auto const& device = machine().device(location.id);
  require(attribute_of(device, DeviceAttribute::concurrent_managed_access) != 0, Result::invalid_device);
}

void note(std::string what, DevicePointer pointer, std::size_t bytes, MemoryLocation const& location) {
  char address[32];
  std::snprintf(address, sizeof address, " %#llx ", pointer);
  what += address + std::to_string(bytes);
  what += location.type == LocationType::host ? std::string{" host"} : " device " + std::to_string(location.id);
  machine().journal.push_back(std::move(what));
}

}  // namespace

namespace calls {

Result cuMemAllocManaged(Lock& /*lock*/, DevicePointer* pointer, std::size_t bytes, unsigned flags) {
  auto const context = current();
  refuse_during_capture();
  auto const& device = machine().device(context->device);
  require(attribute_of(device, DeviceAttribute::managed_memory) != 0, Result::not_supported);
  require(pointer != nullptr && bytes > 0 && (flags == attach_global || flags == 2));
  auto const at = take_addresses(bytes, allocation_alignment);
  require(at != 0 && back_with_memory(at, bytes), Result::out_of_memory);
  auto allocation = std::make_shared<Allocation>(MemoryKind::managed, at, bytes);
  allocation->device = context->device;
  allocation->context = context;
  allocation->flags = flags;
  machine().memory.add(std::move(allocation));
  *pointer = at;
  return Result::success;
}

Result cuMemAdvise(Lock& /*lock*/, DevicePointer pointer, std::size_t bytes, Advice advice, MemoryLocation location) {
  static_cast<void>(current());
  require(advice >= Advice::set_read_mostly && advice <= Advice::unset_accessed_by);
  require_managed(pointer, bytes);
  auto const has_place = advice != Advice::set_read_mostly && advice != Advice::unset_read_mostly &&
                         advice != Advice::unset_preferred_location;
  if (has_place) require_place(location);
  note("cuMemAdvise " + std::to_string(static_cast<int>(advice)), pointer, bytes, location);
  return Result::success;
}

Result cuMemPrefetchAsync(Lock& /*lock*/, DevicePointer pointer, std::size_t bytes, MemoryLocation location,
                          unsigned flags, Stream stream) {
  require(flags == 0);
  auto const target = stream_for_work(stream, "cuMemPrefetchAsync");
  require_managed(pointer, bytes);
  require_place(location);
  note("cuMemPrefetchAsync", pointer, bytes, location);
  Command command;
  command.name = "cuMemPrefetchAsync";
  command.cost = Cost::copy;
  command.uses = {{pointer, bytes, target->context->device, false}};
  static_cast<void>(submit(target, std::move(command)));
  return Result::success;
}

}  // namespace calls

}  // namespace unimem::standin
