#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/error.hpp>

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>

// What MemoryManager's functions that make buffers are made of: the manager's floor declares them and knows no buffers.
namespace unimem::detail {

BufferOptions buffer_options(MemoryManager& manager, AllocationOptions const& options) {
  BufferOptions result;
  result.manager = &manager;
  result.device = options.device;
  result.location = options.location;
  result.placement = options.placement;
  result.access = options.access;
  result.pinned = options.location == Location::pinned;
  result.name = options.name;
  return result;
}

std::shared_ptr<BufferCore> wrap_host_memory(MemoryManager& manager, void* pointer, std::size_t bytes,
                                             std::size_t alignment, Location location, Ownership ownership) {
  if (location != Location::host && location != Location::pinned) {
    throw UnsupportedOperation("wrapping memory at Location::" + std::string(to_string(location)), "this version",
                               "only host and pinned memory can be wrapped");
  }
  if (pointer == nullptr && bytes != 0) throw InvalidArgument("pointer", "null", "the address of the memory");
  if (reinterpret_cast<std::uintptr_t>(pointer) % alignment != 0) {
    throw InvalidArgument("pointer", fmt::format("{}", pointer), fmt::format("aligned to {} bytes", alignment));
  }
  BufferOptions options;
  options.manager = &manager;
  return std::make_shared<BufferCore>(bytes, std::move(options),
                                      BufferCore::Wrapped{pointer, std::move(ownership), location});
}

}  // namespace unimem::detail
