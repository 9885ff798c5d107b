#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>

// What MemoryManager's functions that make buffers are made of: the manager's floor declares them and knows no buffers.
namespace unimem::detail {

namespace {

/// A location is a demand, and a placement of its own.
Placement placement_at(Location location) {
  switch (location) {
    case Location::device:
      return Placement::device_local;
    case Location::host:
      return Placement::host_accessible;
    case Location::pinned:
      return Placement::host_pinned;
    case Location::unified:
      return Placement::unified;
  }
  throw InvalidArgument("location", fmt::format("{}", static_cast<unsigned>(location)),
                        "device, host, pinned or unified");
}

PlacementDecision decision_for(MemoryManager& manager, Device& device, AllocationOptions const& options,
                               std::size_t bytes, Name key) {
  PlacementQuestion question{.bytes = bytes, .asked = options.placement, .access = options.access};
  if (!options.location) return manager.place(device, question, key);
  bool const both = options.placement != Placement::automatic;
  if (!both) question.asked = placement_at(*options.location);
  PlacementMachine able;
  able.has_unified_memory = true;  // what does not serve the location says so when the buffer is made
  auto decision = decide_placement(question, able);
  if (decision.location != *options.location) {
    throw InvalidArgument(
        "placement", std::string(to_string(options.placement)),
        fmt::format("one at Location::{}, which was asked for as well", to_string(*options.location)));
  }
  return decision;
}

}  // namespace

BufferOptions buffer_options(MemoryManager& manager, AllocationOptions const& options, std::size_t bytes, Name site) {
  BufferOptions result;
  if (options.name.empty()) result.site = site;
  result.manager = &manager;
  result.device = options.device == nullptr ? &default_device() : options.device;
  auto const key = options.name.empty() ? result.site : Name(options.name);
  auto const decision = decision_for(manager, *result.device, options, bytes, key);
  result.location = decision.location;
  result.placement = options.placement;
  result.access = options.access;
  result.pinned = decision.location == Location::pinned;
  result.name = options.name;
  result.decision = std::make_shared<PlacementDecision const>(decision);
  if (decision.degraded()) manager.note_missing_unified();  // locked memory is refused only when it is taken
  return result;
}

void move_in(BufferCore& core) {
  auto const& decision = *core.options().decision;
  if (decision.placement == Placement::read_only_optimized && core.size_bytes() != 0) {
    core.advise({0, core.size_bytes()}, Advice::read_mostly, nullptr, true);
  }
  bool const on_device = decision.location == Location::device;
  core.allocate(!on_device, on_device);
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
  options.location = location;
  return BufferCore::make(bytes, std::move(options), BufferCore::Wrapped{pointer, std::move(ownership), location});
}

}  // namespace unimem::detail
