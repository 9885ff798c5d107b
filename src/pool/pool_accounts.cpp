#include "pool/pool_core.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>

// What a pool counts and says of itself.

namespace unimem::detail {
namespace {

constexpr std::size_t most_holders = 5;  // in a message

/// Calls `each(Block const&)` for every parked block. Within `ThreadCache::inspect`.
template <class Threads, class Each>
void for_each_parked(Depots const& depots, Threads const& threads, Each each) {
  depots.for_each(each);
  for (auto const& thread : threads) thread->magazines.for_each(each);
}

/// Acquires that never came to the core, each of them a hit.
void add_hits(PoolStatistics& counts, Magazines const& magazines) {
  magazines.for_each_hits([&counts](std::size_t bytes, std::uint64_t hits) {
    auto& asked = counts.size_classes[size_class(bytes)];
    counts.total_allocations += hits;
    counts.pool_hits += hits;
    asked.allocations += hits;
    asked.hits += hits;
  });
}

}  // namespace

std::size_t PoolCore::used_at_most(Magazines const* these) const noexcept {
  return used_at_most(these, thread_cache_.bytes_beside(these));
}

std::size_t PoolCore::used_at_most(Magazines const* these, std::size_t parked_elsewhere) const noexcept {
  auto parked = static_cast<std::ptrdiff_t>(parked_elsewhere);
  if (these != nullptr) parked += these->fewest_bytes();
  auto const out = static_cast<std::ptrdiff_t>(counts_.active_bytes);
  return static_cast<std::size_t>(std::clamp<std::ptrdiff_t>(out - parked, 0, out));
}

void PoolCore::note_peak(Magazines* these) noexcept {
  note_peak(these, thread_cache_.bytes_beside(these));
}

void PoolCore::note_peak(Magazines* these, std::size_t parked_elsewhere) noexcept {
  counts_.peak_active_bytes = std::max(counts_.peak_active_bytes, used_at_most(these, parked_elsewhere));
  if (these != nullptr) these->begin_watch();
}

void PoolCore::count_hits_of(Magazines const& magazines) noexcept {
  Lock const lock{mutex_};
  add_hits(counts_, magazines);
}

void PoolCore::note_marks() noexcept {
  if (counts_.active_bytes < below_ || counts_.active_bytes >= above_) [[unlikely]]
    left_marks_.store(true, std::memory_order_relaxed);
}

std::size_t PoolCore::bytes_in_use() noexcept {
  thread_cache_.flush_all();
  Lock const lock{mutex_};
  return counts_.active_bytes;
}

bool PoolCore::set_marks(std::size_t below, std::size_t above) noexcept {
  Lock const lock{mutex_};
  below_ = below;
  above_ = above;
  left_marks_.store(false, std::memory_order_relaxed);
  note_marks();
  return has_left_marks();
}

void PoolCore::count_in(Block& block, std::size_t bytes, From from) noexcept {
  auto* const own = thread_cache_.own();
  auto const parked_elsewhere = thread_cache_.bytes_beside(own);
  note_peak(own, parked_elsewhere);
  auto& asked = counts_.size_classes[size_class(bytes)];
  auto& held = counts_.size_classes[size_class(block.capacity())];
  ++counts_.total_allocations;
  ++asked.allocations;
  if (from == From::device) {
    ++counts_.pool_misses;
  } else {
    ++counts_.pool_hits;
    ++asked.hits;
  }
  if (from == From::cache) held.pooled_bytes -= block.capacity();
  ++counts_.active_allocations;
  counts_.active_bytes += block.capacity();
  held.active_bytes += block.capacity();
  note_marks();
  note_peak(own, parked_elsewhere);
  if (extents_ == nullptr) {
    counts_.peak_reserved_bytes = std::max(counts_.peak_reserved_bytes, counts_.active_bytes + free_.bytes());
  }
}

void PoolCore::count_out(Block& block) noexcept {
  auto& held = counts_.size_classes[size_class(block.capacity())];
  --counts_.active_allocations;
  counts_.active_bytes -= block.capacity();
  held.active_bytes -= block.capacity();
  held.pooled_bytes += block.capacity();
  note_marks();
}

void PoolCore::uncount(std::size_t bytes) noexcept {
  auto& asked = counts_.size_classes[size_class(bytes)];
  --counts_.total_allocations;
  --counts_.pool_hits;
  --asked.allocations;
  --asked.hits;
}

PoolStatistics PoolCore::statistics_while_held() const {
  PoolStatistics counts;
  thread_cache_.inspect([&](Depots const& depots, auto const& threads) {
    Lock const lock{mutex_};
    counts = counts_;
    counts.total_pooled_bytes = free_.bytes();
    counts.reserved_bytes = counts.active_bytes + counts.total_pooled_bytes;
    if (extents_ != nullptr) {
      auto const pages = extents_->counts();
      counts.slack_bytes = pages.reserved - (counts.reserved_bytes + pages.returnable);
      counts.reserved_bytes = pages.reserved;
      counts.peak_reserved_bytes = pages.peak_reserved;
      counts.total_pooled_bytes += pages.returnable;
      extents_->for_each_returnable(
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
      add_hits(counts, magazines);
      counts.peak_active_bytes = std::max(counts.peak_active_bytes, used_at_most(&magazines));
    }
  });
  return counts;
}

PoolFragmentation PoolCore::fragmentation() const {
  PoolFragmentation free;
  auto const still = hold_extents();
  thread_cache_.inspect([&](Depots const& depots, auto const& threads) {
    Lock const lock{mutex_};
    free = {free_.largest(), free_.bytes()};
    if (extents_ != nullptr) {
      free.largest_free_block = std::max(free.largest_free_block, extents_->largest_free());
      free.total_free += extents_->counts().free;
    }
    auto const parked = [&free](Block const& block) {
      free.largest_free_block = std::max(free.largest_free_block, block.capacity());
      free.total_free += block.capacity();
    };
    for_each_parked(depots, threads, parked);
  });
  return free;
}

std::size_t PoolCore::max_bytes() const noexcept {
  Lock const lock{mutex_};
  return max_bytes_;
}

std::vector<OutOfMemory::Holder> PoolCore::holders(std::size_t most) const {
  std::vector<OutOfMemory::Holder> holders;
  thread_cache_.inspect([&](Depots const&, auto const&) {
    Lock const lock{mutex_};
    holders = holders_locked(most);
  });
  return holders;
}

std::vector<OutOfMemory::Holder> PoolCore::holders_locked(std::size_t most) const {
  std::unordered_map<Name, OutOfMemory::Holder> by_name;
  for (auto const& block : live_) {
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
  if (!withheld_.empty()) {
    auto& holder = all.emplace_back();
    holder.name = "(kept out of use: could not be overwritten)";
    for (auto const& block : withheld_) holder.bytes += block.capacity();
    holder.count = withheld_.size();
  }
  std::ranges::sort(
      all, [](auto const& a, auto const& b) { return a.bytes != b.bytes ? a.bytes > b.bytes : a.name < b.name; });
  if (all.size() > most) all.resize(most);
  return all;
}

void PoolCore::fail(Lock& lock, std::size_t bytes, std::string const& refusal) {
  ++counts_.failed_allocations;
  auto const& info = device_.info();
  auto const most = limit_beside_others();
  bool const too_large_at_once = bytes > info.max_allocation && bytes <= most;
  bool const limited_with_others = most < limit();
  bool const limited_from_outside = max_bytes_ >= info.total_bytes && !info.limited_by.empty();
  OutOfMemory::Facts facts;
  facts.where = fmt::format("{} {}", device_.id(), to_string(location_));
  facts.requested = bytes;
  facts.limit = too_large_at_once ? info.max_allocation : most;
  facts.live = counts_.active_bytes;
  PoolFragmentation free{free_.largest(), free_.bytes()};
  facts.cached = free.total_free;
  facts.holders = holders_locked(most_holders);
  facts.reason = !refusal.empty()       ? refusal
                 : too_large_at_once    ? "more than the device gives in one piece"
                 : limited_with_others  ? share_->reason()
                 : limited_from_outside ? fmt::format("{} is reached", info.limited_by)
                                        : "limit reached";
  lock.unlock();
  if (extents_ != nullptr) {
    auto const still = extents_->hold();
    auto const pages = extents_->counts();
    facts.cached += pages.returnable;
    free.largest_free_block = std::max(free.largest_free_block, extents_->largest_free());
    free.total_free += pages.free;
  }
  facts.largest_free = free.largest_free_block;
  facts.fragmentation = free.fragmentation_ratio();
  facts.device_free = device_.memory_info().free_bytes;
  throw OutOfMemory(std::move(facts));
}

void PoolCore::validate() const {
  auto const check = [](bool holds, char const* what) {
    if (!holds) throw std::logic_error(std::string("MemoryPool: ") + what);
  };
  std::size_t parked_blocks = 0;
  std::size_t parked_bytes = 0;
  auto const still = hold_extents();
  thread_cache_.inspect([&](Depots const& depots, auto const& threads) {
    Lock const lock{mutex_};
    free_.validate();
    depots.validate();
    auto const parked = [&](Block const& block) {
      check(block.parked && block.pool == this, "a parked block does not know it");
      ++parked_blocks;
      parked_bytes += block.capacity();
    };
    for_each_parked(depots, threads, parked);
    auto bytes = depots.bytes();
    auto peak = counts_.peak_active_bytes;
    for (auto const& thread : threads) {
      bytes += thread->magazines.bytes();
      peak = std::max(peak, used_at_most(&thread->magazines));
    }
    check(bytes == parked_bytes, "the parked bytes do not add up");
    PoolStatistics seen;
    std::size_t walked = 0;  // in blocks, in use and cached
    for (auto const* const out : {&live_, &withheld_}) {
      for (auto it = out->begin(); it != out->end(); ++it) {
        check(it->place == it && it->pool == this, "a live block does not know its place");
        check(!it->node.empty(), "a live block has lost its index node");
        if (it->parked) --parked_blocks;
        walked += it->capacity();
        ++seen.active_allocations;
        seen.active_bytes += it->capacity();
        seen.size_classes[size_class(it->capacity())].active_bytes += it->capacity();
      }
    }
    for (auto const& block : free_.by_age()) {
      seen.size_classes[size_class(block.capacity())].pooled_bytes += block.capacity();
      walked += block.capacity();
    }
    for (auto const& block : spare_)
      check(block.memory.empty() && !block.node.empty(), "a spare descriptor holds memory");

    check(parked_blocks == 0, "a parked block is not out of the core, or a block that is not parked is marked so");
    auto const& counts = counts_;
    auto const whole = extents_ == nullptr ? Extents::Counts{} : extents_->counts();
    auto const reserved = extents_ == nullptr ? counts.active_bytes + free_.bytes() : whole.reserved;
    bool const in_transit = extents_ != nullptr && (growing_ != 0 || returning_ != 0);
    if (extents_ != nullptr && !in_transit) extents_->validate(counts.active_bytes + free_.bytes() + stranded_);
    // Here slack is no remainder, as it is in the statistics, but what the extents have free beside whole pages, walked
    // by them just now. What is in transit is in neither sum; objects in transit are not in what is reserved either.
    auto const accounted = walked + stranded_ + whole.free;
    check(accounted <= reserved, "more is in use, cached and free than reserved");
    check(accounted == reserved || in_transit, "what is in use, cached and free is not all that is reserved");
    check(seen.active_allocations == counts.active_allocations, "the live blocks are not as many as counted");
    check(seen.active_bytes == counts.active_bytes, "the live bytes do not add up");
    check(counts.pool_hits + counts.pool_misses == counts.total_allocations,
          "hits and misses do not make up the allocations");
    check(peak + parked_bytes >= counts.active_bytes, "the peak of active bytes is below the present");
    check((extents_ == nullptr ? counts.peak_reserved_bytes : whole.peak_reserved) >= reserved,
          "the peak of reserved bytes is below the present");
    // What extents reserve they reserve at once, by the limit as it is then.
    auto const fresh = extents_ == nullptr ? growing_ : 0;
    check(counts.active_bytes + fresh <= max_bytes_, "live memory exceeds the limit");
    // One of allocations that has just been lowered is met once the blocks on their way out are gone.
    bool const shrinking = extents_ == nullptr && returning_ != 0;
    check(shrinking || reserved + fresh <= max_bytes_, "reserved memory exceeds the limit");
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
