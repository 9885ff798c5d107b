#include "device/cuda_standin/memory.hpp"

#include "device/cuda_standin/machine.hpp"
#include "device/cuda_standin/streams.hpp"

#include <unistd.h>

#include <algorithm>

namespace unimem::standin {
namespace {

/// Whether the device may touch the allocation, as the driver's rules for each kind of memory are.
bool may_touch(int device, Allocation const& allocation, bool write) {
  if (!allocation.alive) return false;
  switch (allocation.kind) {
    case MemoryKind::device: {
      if (allocation.device == device) return true;
      auto const& context = machine().devices[static_cast<std::size_t>(device)].primary;
      return context != nullptr && context->peers.contains(allocation.device);
    }
    case MemoryKind::stream_ordered:
      return allocation.device == device;  // peers need an access of the pool's own
    case MemoryKind::mapped: {
      auto const found = allocation.access.find(device);
      if (found == allocation.access.end() || found->second == AccessFlags::none) return false;
      return !write || found->second == AccessFlags::read_write;
    }
    case MemoryKind::managed:
    case MemoryKind::device_view:
      return true;
    case MemoryKind::pinned:
      // CUDA Driver API, "Unified Addressing": the one kind of host memory whose address is another one for kernels.
      return (allocation.flags & host_alloc_write_combined) == 0;
    case MemoryKind::registered:
      return !write || (allocation.flags & host_register_read_only) == 0;
  }
  return false;
}

/// Whether the driver may touch the allocation as host memory.
bool may_be_host_side(Allocation const& allocation, bool write) {
  auto const read_only = allocation.kind == MemoryKind::registered && (allocation.flags & host_register_read_only) != 0;
  auto const is_hosts = allocation.is_host() && allocation.kind != MemoryKind::device_view;
  return (is_hosts || allocation.kind == MemoryKind::managed) && !(write && read_only);
}

/// What the bytes between an allocation's end and the end of its last page hold unless somebody wrote past the end.
bool tail_is_fresh(Allocation const& allocation) {
  auto const* const tail = reinterpret_cast<unsigned char const*>(allocation.end());
  auto const length = whole_pages(allocation.bytes) - allocation.bytes;
  return std::all_of(tail, tail + length, [](unsigned char byte) { return byte == fresh_byte; });
}

}  // namespace

Physical::~Physical() {
  machine().devices[static_cast<std::size_t>(device)].used -= bytes;
  close(file);
}

Allocation::~Allocation() {
  if (kind == MemoryKind::registered || kind == MemoryKind::mapped) return;
  drop_addresses(base, bytes);
}

void MemoryMap::add(std::shared_ptr<Allocation> allocation) {
  auto const base = allocation->base;
  by_base_.emplace(base, std::move(allocation));
}

std::shared_ptr<Allocation> MemoryMap::beginning_at(Address base) const {
  auto const found = by_base_.find(base);
  return found == by_base_.end() ? nullptr : found->second;
}

std::shared_ptr<Allocation> MemoryMap::around(Address address) const {
  auto const after = by_base_.upper_bound(address);
  if (after == by_base_.begin()) return nullptr;
  auto const& candidate = std::prev(after)->second;
  return address < candidate->end() ? candidate : nullptr;
}

bool MemoryMap::intersects(Address begin, std::size_t bytes) const {
  if (around(begin) != nullptr) return true;
  auto const next = by_base_.lower_bound(begin);
  return next != by_base_.end() && next->first < begin + bytes;
}

std::vector<std::shared_ptr<Allocation>> MemoryMap::reach(Use const& use) const {
  std::vector<std::shared_ptr<Allocation>> reached;
  auto const whole = use.bytes == 0;  // a kernel's pointer: all that lies behind it without a gap
  for (auto at = use.begin; whole || at < use.begin + use.bytes;) {
    auto allocation = around(at);
    auto const fine = allocation != nullptr && (use.device < 0 ? may_be_host_side(*allocation, use.write)
                                                               : may_touch(use.device, *allocation, use.write));
    if (!fine) {
      if (whole) break;
      return {};
    }
    at = allocation->end();
    reached.push_back(std::move(allocation));
  }
  return reached;
}

HostSide MemoryMap::host_side(Address begin, std::size_t bytes) const {
  std::size_t pinned = 0;
  for (auto at = begin; at < begin + bytes;) {
    auto const allocation = around(at);
    if (allocation == nullptr) {
      auto const next = by_base_.lower_bound(at);
      at = next == by_base_.end() ? begin + bytes : std::min(next->first, begin + bytes);
      continue;
    }
    require(allocation->is_host() || allocation->kind == MemoryKind::managed);
    auto const end = std::min(allocation->end(), begin + bytes);
    pinned += end - at;
    at = end;
  }
  require(pinned == 0 || pinned == bytes);
  require(pinned == bytes || !is_device_address(begin));
  return pinned == bytes ? HostSide::pinned : HostSide::pageable;
}

void check_tail(Allocation const& allocation, char const* call) {
  auto const own_pages = allocation.kind != MemoryKind::registered && allocation.kind != MemoryKind::mapped &&
                         allocation.kind != MemoryKind::device_view;
  if (own_pages && !tail_is_fresh(allocation))
    violation(std::string{call} + " of memory that was written past its end");
}

void forget_allocation(std::shared_ptr<Allocation> const& allocation, char const* call) {
  auto& all = machine();
  if (call != nullptr) {
    if (auto const* const user = user_of(*allocation))
      violation(std::string{call} + " of memory that " + user + " still uses");
    else if (auto const* const lucky = all.history.use_beyond(all.host, allocation->base, allocation->end()))
      violation(std::string{call} + " of memory that " + lucky + " uses, whose end nobody has waited for");
    else
      check_tail(*allocation, call);
  }
  allocation->alive = false;
  all.memory.remove(allocation->base);
  if (allocation->kind == MemoryKind::device || allocation->kind == MemoryKind::stream_ordered)
    all.devices[static_cast<std::size_t>(allocation->device)].used -= allocation->bytes;
}

}  // namespace unimem::standin
