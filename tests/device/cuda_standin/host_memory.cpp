#include "device/cuda_standin/capture.hpp"
#include "device/cuda_standin/machine.hpp"
#include "device/cuda_standin/streams.hpp"

#include <cstring>

// Pinned host memory, the driver's own and the program's, and what the driver knows of a pointer.

namespace unimem::standin {
namespace {

constexpr unsigned all_alloc_flags = host_alloc_portable | host_alloc_device_map | host_alloc_write_combined;
constexpr unsigned all_register_flags = host_register_portable | host_register_device_map | host_register_read_only;

Address address(void const* pointer) {
  return reinterpret_cast<Address>(pointer);
}

template <class Value>
void tell(void* to, Value value) {
  std::memcpy(to, &value, sizeof value);
}

}  // namespace

namespace calls {

Result cuMemHostAlloc(Lock& /*lock*/, void** pointer, std::size_t bytes, unsigned flags) {
  auto const context = current();
  refuse_during_capture();
  require(pointer != nullptr && bytes > 0 && (flags & ~all_alloc_flags) == 0);
  auto const at = take_addresses(bytes, whole_pages(1));
  auto allocation = std::make_shared<Allocation>(MemoryKind::pinned, at, bytes);
  allocation->device = context->device;
  allocation->context = context;
  allocation->flags = flags;
  if ((flags & host_alloc_write_combined) == 0) {
    require(at != 0 && back_with_memory(at, bytes), Result::out_of_memory);
  } else {
    auto const seen_at = take_addresses(bytes, whole_pages(1));
    require(at != 0 && seen_at != 0 && back_with_same_memory(at, seen_at, bytes), Result::out_of_memory);
    allocation->view = std::make_shared<Allocation>(MemoryKind::device_view, seen_at, bytes);
    allocation->view->device = context->device;
    allocation->view->context = context;
    machine().memory.add(allocation->view);
  }
  machine().memory.add(std::move(allocation));
  *pointer = reinterpret_cast<void*>(at);
  return Result::success;
}

Result cuMemFreeHost(Lock& lock, void* pointer) {
  auto const context = current_even_if_lost();
  if (context->error == Result::success) refuse_during_capture();
  if (pointer == nullptr) return context->error;
  auto const allocation = machine().memory.beginning_at(address(pointer));
  require(allocation != nullptr && allocation->kind == MemoryKind::pinned);
  auto const* const call = context->breaking == Result::success ? "cuMemFreeHost" : nullptr;
  if (allocation->view != nullptr) forget_allocation(allocation->view, call);
  forget_allocation(allocation, call);
  wait_implicitly(lock, *context);  // seen on an H100 (docs/gpu-results.md)
  return context->error;
}

Result cuMemHostRegister(Lock& /*lock*/, void* pointer, std::size_t bytes, unsigned flags) {
  auto const context = current();
  refuse_during_capture();
  require(pointer != nullptr && bytes > 0 && (flags & ~all_register_flags) == 0);
  auto const at = address(pointer);
  require(at + bytes > at);
  require(!machine().memory.intersects(at, bytes), Result::host_memory_already_registered);
  require(!is_device_address(at) && is_mapped(at, bytes));
  auto allocation = std::make_shared<Allocation>(MemoryKind::registered, at, bytes);
  allocation->device = context->device;
  allocation->context = context;
  allocation->flags = flags;
  machine().memory.add(std::move(allocation));
  return Result::success;
}

Result cuMemHostUnregister(Lock& lock, void* pointer) {
  auto const context = current_even_if_lost();
  if (context->error == Result::success) refuse_during_capture();
  require(pointer != nullptr);
  auto const allocation = machine().memory.beginning_at(address(pointer));
  require(allocation != nullptr && allocation->kind == MemoryKind::registered, Result::host_memory_not_registered);
  if (!is_mapped(allocation->base, allocation->bytes))
    violation("cuMemHostUnregister of memory that the program gave back to the system while it was registered");
  forget_allocation(allocation, context->breaking == Result::success ? "cuMemHostUnregister" : nullptr);
  // No word of it in cuda.h; the GPU may not reach those pages any more when it returns, as with cuMemFreeHost.
  wait_implicitly(lock, *context);
  return context->error;
}

Result cuMemHostGetDevicePointer(Lock& /*lock*/, DevicePointer* device_pointer, void* pointer, unsigned flags) {
  static_cast<void>(current());
  require(device_pointer != nullptr && pointer != nullptr && flags == 0);
  auto const allocation = machine().memory.around(address(pointer));
  require(allocation != nullptr && allocation->is_host());
  require(allocation->kind != MemoryKind::device_view);
  // One address everywhere, where host pointers of registered memory can be used, but for what is write-combined.
  auto const offset = address(pointer) - allocation->base;
  *device_pointer = (allocation->view != nullptr ? allocation->view->base : allocation->base) + offset;
  return Result::success;
}

Result cuPointerGetAttribute(Lock& /*lock*/, void* value, PointerAttribute attribute, DevicePointer pointer) {
  require(value != nullptr);
  auto const allocation = machine().memory.around(pointer);
  require(allocation != nullptr);
  auto const context = allocation->context.lock();
  switch (attribute) {
    case PointerAttribute::context:
      require(context != nullptr);  // mapped memory belongs to no context
      tell(value, context->handle);
      break;
    case PointerAttribute::memory_type:
      tell(value, allocation->is_host() ? MemoryType::host : MemoryType::device);
      break;
    case PointerAttribute::is_managed:
      tell(value, allocation->kind == MemoryKind::managed ? 1U : 0U);
      break;
    case PointerAttribute::device_ordinal:
      tell(value, allocation->device);
      break;
    case PointerAttribute::range_size:
      tell(value, allocation->bytes);
      break;
    default:
      refuse(Result::invalid_value);
  }
  return Result::success;
}

}  // namespace calls

}  // namespace unimem::standin
