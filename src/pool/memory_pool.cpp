#include <unimem/pool/memory_pool.hpp>

#include "pool/pool_core.hpp"
#include "pool/shared_limit.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace unimem {

namespace detail {

Block& acquire(PoolCore& core, std::size_t bytes, AcquireOptions const& options) {
  return core.acquire(bytes, options);
}

Block* acquire_without_waiting(PoolCore& core, std::size_t bytes, AcquireOptions const& options) {
  return core.acquire_without_waiting(bytes, options);
}

std::size_t first_aligned(Block const& block, std::size_t alignment) {
  auto& device = block.pool->device();
  if (alignment <= device.info().alignment) return 0;
  return -reinterpret_cast<std::uintptr_t>(device.address(block.memory)) & (alignment - 1);
}

void give_way(MemoryPool& pool, bool may_wait) noexcept {
  pool.core_->trimmer().give_way(may_wait);
}

std::vector<PoolStatistics> statistics_of(std::span<MemoryPool* const> pools, SharedLimit& limit) {
  std::vector<PoolStatistics> all;
  std::vector<std::unique_lock<std::mutex>> still;
  all.reserve(pools.size());
  still.reserve(pools.size());
  for (auto const* const pool : pools) still.push_back(pool->core_->reports().hold_extents());
  SharedLimit::Pause const pause{limit.pausing()};
  for (auto const* const pool : pools) all.push_back(pool->core_->reports().statistics_while_held());
  return all;
}

}  // namespace detail

std::string_view to_string(PoolBacking backing) noexcept {
  switch (backing) {
    case PoolBacking::automatic:
      return "automatic";
    case PoolBacking::pages:
      return "pages";
    case PoolBacking::allocations:
      return "allocations";
  }
  return "unknown";
}

MemoryPool::MemoryPool(Device& device, Location location, PoolOptions options)
    : MemoryPool(device, location, std::move(options), nullptr) {}

MemoryPool::MemoryPool(Device& device, Location location, PoolOptions options,
                       std::shared_ptr<detail::LimitShare> share)
    : core_(std::make_unique<detail::PoolCore>(device, location, std::move(options), std::move(share))) {}

MemoryPool::~MemoryPool() {
  detail::PoolCore::close(std::move(core_));
}

Allocation MemoryPool::acquire_cached(std::size_t bytes, Name name) {
  auto* const block = bytes == 0 ? nullptr : core_->here().acquire_cached(bytes, name);
  return block == nullptr ? Allocation{} : Allocation{block, bytes};
}

Allocation MemoryPool::acquire_better(Allocation const& block) {
  auto* const better = block.empty() ? nullptr : core_->here().acquire_better(*block.block_, block.size());
  return better == nullptr ? Allocation{} : Allocation{better, block.size()};
}

std::size_t MemoryPool::trim(std::size_t keep_bytes) {
  return core_->here().trimmer().trim(keep_bytes);
}

std::size_t MemoryPool::trim_idle() {
  return core_->here().trimmer().trim_idle();
}

PoolDefragmentation MemoryPool::defragment(DefragmentationLimits const& limits) {
  auto const begin = std::chrono::steady_clock::now();
  PoolDefragmentation report;
  report.largest_free_before = fragmentation().largest_free_block;
  report.bytes_moved = core_->trimmer().compact(limits);
  report.largest_free_after = fragmentation().largest_free_block;
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return report;
}

PoolStatistics MemoryPool::statistics() const {
  return core_->here().reports().statistics();
}

PoolFragmentation MemoryPool::fragmentation() const {
  return core_->here().reports().fragmentation();
}

std::vector<OutOfMemory::Holder> MemoryPool::holders(std::size_t most) const {
  return core_->here().reports().holders(most);
}

Device& MemoryPool::device() const noexcept {
  return core_->device();
}

Location MemoryPool::location() const noexcept {
  return core_->location();
}

std::size_t MemoryPool::max_bytes() const noexcept {
  return core_->level().max_bytes();
}

StackOptions const& MemoryPool::stacks() const noexcept {
  return core_->stacks();
}

bool MemoryPool::zeroes_on_release() const noexcept {
  return core_->zeroes_on_release();
}

void MemoryPool::set_max_bytes(std::size_t bytes) {
  core_->here().trimmer().set_max_bytes(bytes);
}

std::size_t MemoryPool::bytes_in_use() noexcept {
  return core_->level().bytes_in_use();
}

bool MemoryPool::set_marks(std::size_t below, std::size_t above) noexcept {
  return core_->level().set_marks(below, above);
}

bool MemoryPool::has_left_marks() const noexcept {
  return core_->level().has_left_marks();
}

void MemoryPool::validate() const {
  core_->here().reports().validate();
}

}  // namespace unimem
