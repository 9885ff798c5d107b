#include "pool/pool_reports.hpp"

#include <unimem/device/device.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>

namespace unimem::detail {
namespace {

constexpr std::size_t most_holders = 5;  // in a message

/// Calls `each(Block const&)` for every parked block. Within `ThreadCache::inspect`.
template <class Threads, class Each>
void for_each_parked(Depots const& depots, Threads const& threads, Each each) {
  depots.for_each(each);
  for (auto const& thread : threads) thread->magazines.for_each(each);
}

}  // namespace

std::unique_lock<std::mutex> PoolReports::hold_extents() const {
  auto const* const extents = pool_.memory.extents();
  return extents == nullptr ? std::unique_lock<std::mutex>{} : std::unique_lock{extents->mutex()};
}

PoolStatistics PoolReports::statistics_while_held() const {
  PoolStatistics counts;
  auto const* const extents = pool_.memory.extents();
  pool_.thread_cache.inspect([&](Depots const& depots, auto const& threads) {
    PoolLock const lock{pool_.mutex};
    counts = pool_.counts.all();
    counts.total_pooled_bytes = pool_.free.bytes();
    counts.reserved_bytes = counts.active_bytes + counts.total_pooled_bytes;
    if (extents != nullptr) {
      auto const pages = extents->counts();
      counts.slack_bytes = pages.reserved - (counts.reserved_bytes + pages.returnable);
      counts.reserved_bytes = pages.reserved;
      counts.peak_reserved_bytes = pages.peak_reserved;
      counts.total_pooled_bytes += pages.returnable;
      extents->arena().for_each_returnable(
          [&counts](std::size_t bytes) { counts.size_classes[size_class(bytes)].pooled_bytes += bytes; });
    }
    auto const parked = [&counts](Block const& block) {
      auto& held = counts.size_classes[size_class(block.capacity())];
      --counts.active_allocations;
      counts.active_bytes -= block.capacity();
      held.active_bytes -= block.capacity();
      counts.total_pooled_bytes += block.capacity();
      held.pooled_bytes += block.capacity();
    };
    for_each_parked(depots, threads, parked);
    for (auto const& thread : threads) {
      auto const& magazines = thread->magazines;
      PoolCounts::add_hits(counts, magazines);
      counts.peak_active_bytes = std::max(counts.peak_active_bytes, pool_.counts.used_at_most(&magazines));
    }
  });
  return counts;
}

PoolFragmentation PoolReports::fragmentation() const {
  PoolFragmentation free;
  auto const still = hold_extents();
  pool_.thread_cache.inspect([&](Depots const& depots, auto const& threads) {
    PoolLock const lock{pool_.mutex};
    free = {pool_.free.largest(), pool_.free.bytes()};
    if (auto const* const extents = pool_.memory.extents()) {
      free.largest_free_block = std::max(free.largest_free_block, extents->arena().largest_free());
      free.total_free += extents->counts().free;
    }
    auto const parked = [&free](Block const& block) {
      free.largest_free_block = std::max(free.largest_free_block, block.capacity());
      free.total_free += block.capacity();
    };
    for_each_parked(depots, threads, parked);
  });
  return free;
}

std::vector<OutOfMemory::Holder> PoolReports::holders(std::size_t most) const {
  std::vector<OutOfMemory::Holder> holders;
  pool_.thread_cache.inspect([&](Depots const&, auto const&) {
    PoolLock const lock{pool_.mutex};
    holders = holders_under_lock(most);
  });
  return holders;
}

std::vector<OutOfMemory::Holder> PoolReports::holders_under_lock(std::size_t most) const {
  std::unordered_map<Name, OutOfMemory::Holder> by_name;
  for (auto const& block : pool_.live) {
    if (block.parked) continue;
    auto& holder = by_name[block.name];
    holder.bytes += block.capacity();
    ++holder.count;
  }
  std::vector<OutOfMemory::Holder> all;
  all.reserve(by_name.size() + 1);
  for (auto& [name, holder] : by_name) {
    holder.name = name.view();
    all.push_back(std::move(holder));
  }
  if (!pool_.withheld.empty()) {
    auto& holder = all.emplace_back();
    holder.name = "(kept out of use: could not be overwritten)";
    for (auto const& block : pool_.withheld) holder.bytes += block.capacity();
    holder.count = pool_.withheld.size();
  }
  std::ranges::sort(
      all, [](auto const& a, auto const& b) { return a.bytes != b.bytes ? a.bytes > b.bytes : a.name < b.name; });
  if (all.size() > most) all.resize(most);
  return all;
}

OutOfMemory::Facts PoolReports::shortage(PoolLock& lock, std::size_t bytes, std::string const& refusal) const {
  auto& device = pool_.memory.device();
  auto const& info = device.info();
  auto const most = pool_.limits.beside_others();
  bool const too_large_at_once = bytes > info.max_allocation && bytes <= most;
  bool const limited_with_others = most < pool_.limits.own();
  bool const limited_from_outside = pool_.limits.max_bytes() >= info.total_bytes && !info.limited_by.empty();
  OutOfMemory::Facts facts;
  facts.where = pool_.memory.where();
  facts.requested = bytes;
  facts.limit = too_large_at_once ? info.max_allocation : most;
  facts.live = pool_.counts.active_bytes();
  PoolFragmentation free{pool_.free.largest(), pool_.free.bytes()};
  facts.cached = free.total_free;
  facts.holders = holders_under_lock(most_holders);
  facts.reason = !refusal.empty()       ? refusal
                 : too_large_at_once    ? "more than the device gives in one piece"
                 : limited_with_others  ? pool_.share->reason()
                 : limited_from_outside ? fmt::format("{} is reached", info.limited_by)
                                        : "limit reached";
  lock.unlock();
  if (auto const* const extents = pool_.memory.extents()) {
    std::lock_guard const still{extents->mutex()};
    auto const pages = extents->counts();
    facts.cached += pages.returnable;
    free.largest_free_block = std::max(free.largest_free_block, extents->arena().largest_free());
    free.total_free += pages.free;
  }
  facts.largest_free = free.largest_free_block;
  facts.fragmentation = free.fragmentation_ratio();
  auto const memory = device.memory_info();
  facts.device_free = memory.free_bytes;
  auto const held = memory.total_bytes - std::min(memory.free_bytes, memory.total_bytes);
  auto const ours = facts.live + facts.cached;
  if (!refusal.empty() && !device.reaches_host_memory() && held > ours) facts.held_elsewhere = held - ours;
  return facts;
}

void PoolReports::validate() const {
  auto const check = [](bool holds, char const* what) {
    if (!holds) throw std::logic_error(std::string("MemoryPool: ") + what);
  };
  std::size_t parked_blocks = 0;
  std::size_t parked_bytes = 0;
  auto const still = hold_extents();
  auto const* const extents = pool_.memory.extents();
  pool_.thread_cache.inspect([&](Depots const& depots, auto const& threads) {
    PoolLock const lock{pool_.mutex};
    pool_.free.validate();
    depots.validate();
    auto const parked = [&](Block const& block) {
      check(block.parked && block.pool == &pool_.core, "a parked block does not know it");
      ++parked_blocks;
      parked_bytes += block.capacity();
    };
    for_each_parked(depots, threads, parked);
    auto bytes = depots.bytes();
    auto peak = pool_.counts.all().peak_active_bytes;
    for (auto const& thread : threads) {
      bytes += thread->magazines.bytes();
      peak = std::max(peak, pool_.counts.used_at_most(&thread->magazines));
    }
    check(bytes == parked_bytes, "the parked bytes do not add up");
    PoolStatistics seen;
    std::size_t walked = 0;  // in blocks, in use and cached
    for (auto const* const out : {&pool_.live, &pool_.withheld}) {
      for (auto const& block : *out) {
        check(block.pool == &pool_.core, "a live block does not know its pool");
        check(!block.by_capacity.is_linked(), "a live block is among the cached ones");
        if (block.parked) --parked_blocks;
        walked += block.capacity();
        ++seen.active_allocations;
        seen.active_bytes += block.capacity();
        seen.size_classes[size_class(block.capacity())].active_bytes += block.capacity();
      }
    }
    for (auto const& block : pool_.free.by_age()) {
      seen.size_classes[size_class(block.capacity())].pooled_bytes += block.capacity();
      walked += block.capacity();
    }
    for (auto const& block : pool_.spare)
      check(block.memory.empty() && !block.by_capacity.is_linked(), "a spare descriptor holds memory");

    check(parked_blocks == 0, "a parked block is not out of the core, or a block that is not parked is marked so");
    auto const& counts = pool_.counts.all();
    auto const whole = extents == nullptr ? Extents::Counts{} : extents->counts();
    auto const reserved = extents == nullptr ? counts.active_bytes + pool_.free.bytes() : whole.reserved;
    bool const in_transit = extents != nullptr && (pool_.transit.growing() != 0 || pool_.transit.returning() != 0);
    if (extents != nullptr && !in_transit) extents->validate(counts.active_bytes + pool_.free.bytes());
    // Here slack is no remainder, as it is in the statistics, but what the extents have free beside whole pages, walked
    // by them just now. What is in transit is in neither sum; objects in transit are not in what is reserved either.
    auto const accounted = walked + whole.free;
    check(accounted <= reserved, "more is in use, cached and free than reserved");
    check(accounted == reserved || in_transit, "what is in use, cached and free is not all that is reserved");
    check(seen.active_allocations == counts.active_allocations, "the live blocks are not as many as counted");
    check(seen.active_bytes == counts.active_bytes, "the live bytes do not add up");
    check(counts.pool_hits + counts.pool_misses == counts.total_allocations,
          "hits and misses do not make up the allocations");
    check(peak + parked_bytes >= counts.active_bytes, "the peak of active bytes is below the present");
    check((extents == nullptr ? counts.peak_reserved_bytes : whole.peak_reserved) >= reserved,
          "the peak of reserved bytes is below the present");
    // What extents reserve they reserve at once, by the limit as it is then.
    auto const fresh = extents == nullptr ? pool_.transit.growing() : 0;
    check(counts.active_bytes + fresh <= pool_.limits.max_bytes(), "live memory exceeds the limit");
    // One of allocations that has just been lowered is met once the blocks on their way out are gone.
    bool const shrinking = extents == nullptr && pool_.transit.returning() != 0;
    check(shrinking || reserved + fresh <= pool_.limits.max_bytes(), "reserved memory exceeds the limit");
    std::uint64_t allocations = 0, hits = 0;
    for (std::size_t i = 0; i < size_class_count; ++i) {
      allocations += counts.size_classes[i].allocations;
      hits += counts.size_classes[i].hits;
      check(seen.size_classes[i].active_bytes == counts.size_classes[i].active_bytes,
            "a class's active bytes do not add up");
      check(seen.size_classes[i].pooled_bytes == counts.size_classes[i].pooled_bytes,
            "a class's pooled bytes do not add up");
    }
    check(allocations == counts.total_allocations, "the classes' allocations do not sum to the total");
    check(hits == counts.pool_hits, "the classes' hits do not sum to the total");
  });
}

}  // namespace unimem::detail
