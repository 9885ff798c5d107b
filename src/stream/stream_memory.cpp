#include "stream/stream_memory.hpp"

#include <unimem/device/discovery.hpp>

#include <algorithm>

namespace unimem::detail {

StreamMemory::StreamMemory(StreamOptions const& options)
    : options_(options), device_(options.device == nullptr ? default_device() : *options.device) {}

Location StreamMemory::location() const noexcept {
  return device_.reaches_host_memory()        ? Location::host
         : device_.shares_storage_with_host() ? Location::unified
                                              : Location::device;
}

std::size_t StreamMemory::limit() {
  return std::min(options_.memory_limit, manager().limit(device_, location()));
}

MemoryManager& StreamMemory::manager() {
  if (options_.manager != nullptr) return *options_.manager;
  if (own_) return *own_;
  own_.emplace();
  bool const limited = options_.memory_limit < device_.info().total_bytes;
  if (limited && location() != Location::host) own_->set_limit(device_, location(), options_.memory_limit);
  return *own_;
}

std::size_t StreamMemory::room_beside(Location location) {
  auto const limit = manager().limit(device_, location);
  auto const live = manager().pool(device_, location).statistics().active_bytes;
  return std::min(limit - std::min(limit, live), device_.memory_info().free_bytes);
}

}  // namespace unimem::detail
