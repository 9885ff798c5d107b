#include "pool/pool_state.hpp"

#include "core/stack.hpp"
#include "pool/allocation_recorder.hpp"
#include "pool/near_exact.hpp"

#include <algorithm>
#include <utility>

namespace unimem::detail {
namespace {

/// Asked before anything is made.
PoolOptions checked(PoolOptions options) {
  require_stacks(options.stacks);
  return options;
}

ThreadCache::Use use_of_thread_cache(PoolOptions const& options) {
  bool const counted = options.release_threshold != everything;
  if (AllocationRecorder::of_process() != nullptr || options.zero_on_release || counted) return ThreadCache::Use::none;
  return options.trim_interval.count() != 0 ? ThreadCache::Use::timed : ThreadCache::Use::quick;
}

}  // namespace

PoolState::PoolState(PoolCore& owner, BlockIntake& intake, Device& device, Location location, PoolOptions with,
                     std::shared_ptr<LimitShare> shared)
    : core(owner),
      options(checked(std::move(with))),
      share(std::move(shared)),
      memory(device, location, options, share.get()),
      zeroer(options.zero_on_release ? std::make_unique<Zeroer>(device, location) : nullptr),
      thread_cache(intake, use_of_thread_cache(options)),
      ages(options.trim_interval, options.clock),
      limits(device, share.get(), options.max_bytes) {}

std::size_t PoolState::taken() const noexcept {
  return counts.active_bytes() + transit.growing() + transit.returning();
}

std::size_t PoolState::reserved() const noexcept {
  return memory.extents() != nullptr ? memory.extents()->counts().reserved : taken() + free.bytes();
}

std::size_t PoolState::room_beside_live(std::size_t limit) const noexcept {
  return taken() >= limit ? 0 : limit - taken();
}

std::size_t PoolState::room(std::size_t limit) const noexcept {
  auto const most = room_beside_live(limit);
  return free.bytes() >= most ? 0 : most - free.bytes();
}

std::size_t PoolState::affordable(std::size_t bytes, bool rounded, std::size_t limit) const noexcept {
  auto const most = std::min(memory.device().info().max_allocation, room_beside_live(limit));
  auto const capacity = memory.capacity_for(bytes);
  if (rounded && capacity <= most) return capacity;
  return bytes <= most ? bytes : 0;
}

Block& PoolState::descriptor() {
  if (!spare.empty()) {
    auto& block = spare.front();
    spare.pop_front();
    return block;
  }
  auto& block = descriptors.emplace_back();
  block.pool = &core;
  return block;
}

void PoolState::bring_to_life(Block& block, Extents::Piece const& piece, BlockRequest const& request) noexcept {
  block.memory = piece.memory;
  block.origin = piece.origin;
  block.erasure = Erasure::none;
  block.magazine = static_cast<std::uint32_t>(near_exact_class(piece.memory.bytes));
  block.name = request.options.name;
  move_to(live, block);
  counts.count_in(block, request.bytes, piece.fresh ? PoolCounts::From::device : PoolCounts::From::extents);
  if (memory.extents() == nullptr) counts.note_reserved(counts.active_bytes() + free.bytes());
}

}  // namespace unimem::detail
