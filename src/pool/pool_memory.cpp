#include "pool/pool_memory.hpp"

#include <unimem/core/error.hpp>

#include "core/poison.hpp"
#include "pool/near_exact.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace unimem::detail {
namespace {

/// From how many pages on a limit leaves it unfelt that pages are reserved whole.
constexpr std::size_t fewest_pages = 256;

/// Null where blocks are to be objects. Throws UnsupportedOperation for pages that were asked for where there are none.
std::unique_ptr<Extents> extents_of(Device& device, Location location, PoolOptions const& options, LimitShare* share) {
  if (options.backing == PoolBacking::allocations) return nullptr;
  if (options.upstream != nullptr) {
    if (options.backing == PoolBacking::automatic) return nullptr;
    throw UnsupportedOperation("PoolBacking::pages", fmt::format("{} {}", device.id(), to_string(location)),
                               "the memory is an upstream's, which gives whole objects");
  }
  // On the host they are what all its locations are made of, but locks on pages would not move with them.
  bool const has_pages = location == Location::device || (device.reaches_host_memory() && location != Location::pinned);
  auto* const pages = has_pages ? device.pages() : nullptr;
  if (pages == nullptr) {
    if (options.backing == PoolBacking::automatic) return nullptr;
    throw UnsupportedOperation("PoolBacking::pages", fmt::format("{} {}", device.id(), to_string(location)),
                               "no pages can be mapped there");
  }
  auto limit = std::min(options.max_bytes, device.info().total_bytes);
  if (share != nullptr) limit = std::min(limit, share->whole().bytes());
  if (options.backing == PoolBacking::automatic && limit / pages->page_bytes() < fewest_pages) return nullptr;
  return std::make_unique<Extents>(device, location, *pages, options.max_bytes, options.zero_on_release, share);
}

}  // namespace

PoolMemory::PoolMemory(Device& device, Location location, PoolOptions const& options, LimitShare* share)
    : device_(device),
      location_(location),
      extents_(extents_of(device, location, options, share)),
      objects_(device, location, options.upstream, options.zero_on_release, share) {}

std::string PoolMemory::where() const {
  return fmt::format("{} {}", device_.id(), to_string(location_));
}

bool PoolMemory::has_addresses() const noexcept {
  return device_.backend() != Backend::opencl || location_ == Location::unified;
}

std::size_t PoolMemory::capacity_for(std::size_t bytes) const noexcept {
  return extents_ != nullptr ? extents_->capacity_for(bytes) : block_capacity(bytes);
}

std::size_t PoolMemory::largest_block_for(std::size_t bytes) const noexcept {
  // Pages serve any size: nothing need be made do with.
  return extents_ == nullptr ? largest_fit(bytes) : std::max(extents_->capacity_for(bytes), close_fit(bytes));
}

Extents::Piece PoolMemory::take(Wish const& wish) const {
  if (extents_ == nullptr) return {objects_.take(wish.capacity), {}, true};
  switch (wish.from) {
    case From::free:
      return extents_->try_take(wish.bytes);
    case From::better:
      return extents_->try_take_better(*wish.than);
    case From::fresh:
      break;
  }
  return extents_->obtain(wish.bytes, wish.peak);
}

void PoolMemory::give(BlockList& blocks) const noexcept {
  if (extents_ == nullptr) {
    for (auto& block : blocks) objects_.give(std::exchange(block.memory, {}));
    return;
  }
  auto returning = extents_->returning();
  for (auto& block : blocks) {
    if (block.origin.in_pages()) hide(block);  // they stay the pool's
    returning.give(std::exchange(block.memory, {}), std::exchange(block.origin, {}));
  }
}

void PoolMemory::hide(Block const& block) const noexcept {
  if (!under_address_sanitizer || !host_memory()) return;
  if (auto* const address = device_.address(block.memory)) poison(address, block.capacity());
}

void PoolMemory::expose(Block const& block) const noexcept {
  if (!under_address_sanitizer || !host_memory()) return;
  if (auto* const address = device_.address(block.memory)) unpoison(address, block.capacity());
}

bool PoolMemory::host_memory() const noexcept {
  return location_ != Location::device || device_.shares_storage_with_host();
}

}  // namespace unimem::detail
