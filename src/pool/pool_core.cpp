#include "pool/pool_core.hpp"

#include <unimem/core/log.hpp>
#include <unimem/core/size.hpp>

#include "pool/near_exact.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>

namespace unimem::detail {
namespace {

constexpr std::size_t everything = std::numeric_limits<std::size_t>::max();
constexpr std::size_t most_holders = 5;  // in a message

// What a pool may hold beyond a quarter more than it ever had in use at once. A program that goes through many sizes
// would otherwise collect one block of each; one that is small anyway need not be kept tidy.
constexpr std::size_t spare_budget = std::size_t{64} << 20;

/// Throws InvalidArgument for a queue that was moved from.
std::uint64_t id_of(Queue const& queue) {
  auto const id = queue.id();
  if (id == 0) [[unlikely]]
    static_cast<void>(queue.device());
  return id;
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

PoolCore::PoolCore(Device& device, Location location, PoolOptions options)
    : device_(device),
      location_(location),
      options_(std::move(options)),
      max_bytes_(options_.max_bytes),
      parking_(*this, options_.trim_interval.count() == 0 && options_.release_threshold == everything) {}

void PoolCore::close(std::unique_ptr<PoolCore> core) noexcept {
  core->parking_.close();
  core->trim(0);
  auto const counts = core->statistics();
  if (counts.active_allocations == 0) return;
  try {
    log(LogLevel::warning,
        fmt::format("the pool of {} {} is destroyed while {} in {} blocks of it are in use; they outlive it",
                    core->device_.id(), to_string(core->location_), format_size(counts.active_bytes),
                    counts.active_allocations));
  } catch (std::exception const&) {  // NOLINT(bugprone-empty-catch): no memory for the words; no harm to the blocks
  }
  Lock const lock{core->mutex_};
  auto& own = core->self_;
  if (!core->live_.empty()) own = std::move(core);
}

// ---- Taking ----------------------------------------------------------------------------------------------------

Block& PoolCore::acquire_otherwise(std::size_t bytes, AcquireOptions const& options) {
  if (options.alignment != 0) check_alignment(options.alignment, device_.info().alignment);
  auto const queue = options.queue == nullptr ? 0 : id_of(*options.queue);
  auto* const parked = parking_.take(bytes, queue, options.name);
  if (parked == nullptr) [[unlikely]]
    return acquire_here(bytes, queue, options);
  if (poisons) expose(*parked);
  return *parked;
}

Block& PoolCore::acquire_here(std::size_t bytes, std::uint64_t queue, AcquireOptions const& options) {
  auto const time = now();

  std::string refusal;   // what the driver said when it last had no memory
  bool refused = false;  // it has said so, and nothing has changed since
  bool rounded = true;   // asking for a near-exact class, not for the bare bytes
  bool looked = false;   // at what is parked anywhere
  std::optional<Parking::Seizure> seizure;
  Lock lock{mutex_};
  auto const seize = [&] {
    if (seizure.has_value()) return false;
    lock.unlock();
    seizure.emplace(parking_);
    lock.lock();
    return true;
  };
  for (;;) {
    if (auto* const cached = free_.find(bytes, queue, options.may_wait))
      return reuse(lock, *cached, bytes, options, time);
    if (!std::exchange(looked, true)) {
      lock.unlock();
      bool const more = parking_.flush_all();
      lock.lock();
      if (more) continue;
    }
    give_back(lock, free_.take_cached_before(expiry(time)));

    // The ladder: from what disturbs nobody to what blocks. Each rung that changed anything starts it again.
    auto const capacity = affordable(bytes, rounded);
    if (capacity == 0) {
      if (seize() || await_transit(lock)) continue;
      fail(lock, bytes, refusal);
    }
    if (!refused && capacity <= room()) {
      if (give_back(lock, free_.take_oldest(surplus_with(capacity), false)) != 0) continue;
      if (auto* const fresh = grow(lock, capacity, bytes, options, refusal)) return *fresh;
      refused = true;
      continue;  // the lock was dropped: a block that fits may have come back
    }
    if (seize()) continue;
    auto const needed = refused ? capacity : capacity - room();
    if (give_back(lock, free_.take_oldest(needed, false)) != 0 || await_transit(lock) ||
        (options.may_wait && give_back(lock, free_.take_oldest(needed, true)) != 0)) {
      refused = false;
    } else if (refused && rounded && capacity != bytes) {
      rounded = refused = false;  // the last try: without the rounding it may just fit
    } else {
      fail(lock, bytes, refusal);
    }
  }
}

Block* PoolCore::acquire_cached(std::size_t bytes, Name name) {
  if (auto* const parked = parking_.take(bytes, 0, name)) {
    expose(*parked);
    return parked;
  }
  AcquireOptions options;
  options.name = name;
  auto const time = now();
  for (bool looked = false;; looked = true) {
    Lock lock{mutex_};
    if (auto* const cached = free_.find(bytes, 0, false)) return &reuse(lock, *cached, bytes, options, time);
    lock.unlock();
    if (looked || !parking_.flush_all()) return nullptr;
  }
}

Block& PoolCore::reuse(Lock& lock, Block& block, std::size_t bytes, AcquireOptions const& options, Time time) {
  free_.remove(block, live_);
  block.name = options.name;
  count_in(block, bytes, true);
  give_back(lock, free_.take_cached_before(expiry(time)));
  lock.unlock();

  if (options.queue == nullptr) {
    block.wait();
  } else if (!block.settled()) {
    Event both;  // everything before this moment of the queue, the waits included: one event that stands for them
    try {
      options.queue->wait(block.inherited);
      options.queue->wait(block.last_use);
      // Where it had to wait for others, its own last ticket may have ended long ago: a wait takes none everywhere.
      both = block.ready_for(options.queue->id()) ? options.queue->record() : options.queue->mark();
    } catch (...) {
      lock.lock();
      count_out(block);
      uncount(bytes);
      free_.add(live_, block, time);
      ++counts_.failed_allocations;
      changed();
      throw;
    }
    block.inherited = both;
    block.last_use = {};
  }
  expose(block);
  return block;
}

Block* PoolCore::grow(Lock& lock, std::size_t capacity, std::size_t bytes, AcquireOptions const& options,
                      std::string& refusal) {
  auto fresh = descriptor();
  growing_ += capacity;
  lock.unlock();
  DeviceMemory memory;
  std::exception_ptr failure;
  try {
    memory = device_.allocate(capacity, location_);
  } catch (...) {
    failure = std::current_exception();
  }
  lock.lock();
  growing_ -= capacity;
  changed();

  if (failure) {
    spare_.splice(spare_.end(), fresh);
    try {
      std::rethrow_exception(failure);
    } catch (OutOfMemory const& error) {
      refusal = error.facts().reason.empty() ? error.what() : error.facts().reason;
      return nullptr;
    } catch (std::bad_alloc const& error) {
      refusal = error.what();
      return nullptr;
    } catch (...) {  // a device that is lost, a location it does not serve: no cached block given back would cure that
      ++counts_.failed_allocations;
      throw;
    }
  }

  auto& block = fresh.front();
  block.memory = memory;
  block.magazine = static_cast<std::uint32_t>(near_exact_class(memory.bytes));
  block.name = options.name;
  live_.splice(live_.end(), fresh);
  count_in(block, bytes, false);
  lock.unlock();
  return &block;
}

std::size_t PoolCore::affordable(std::size_t bytes, bool rounded) const noexcept {
  auto const most = std::min(device_.info().max_allocation, room_beside_live());
  if (auto const capacity = block_capacity(bytes); rounded && capacity <= most) return capacity;
  return bytes <= most ? bytes : 0;
}

std::size_t PoolCore::surplus_with(std::size_t capacity) const noexcept {
  auto const peak = std::max(counts_.peak_active_bytes, counts_.active_bytes + growing_ + capacity);
  auto const budget = peak + peak / 4 + spare_budget;
  auto const reserved = counts_.active_bytes + growing_ + free_.bytes() + capacity;
  return reserved > budget ? reserved - budget : 0;
}

std::size_t PoolCore::limit() const noexcept {
  return std::min(max_bytes_, device_.info().total_bytes);
}

std::size_t PoolCore::room_beside_live() const noexcept {
  auto const taken = counts_.active_bytes + growing_ + returning_;
  return taken >= limit() ? 0 : limit() - taken;
}

std::size_t PoolCore::room() const noexcept {
  auto const most = room_beside_live();
  return free_.bytes() >= most ? 0 : most - free_.bytes();
}

BlockList PoolCore::descriptor() {
  BlockList one;
  if (!spare_.empty()) {
    one.splice(one.end(), spare_, spare_.begin());
    return one;
  }
  auto& block = one.emplace_back();
  block.pool = this;
  block.place = one.begin();
  BlockIndex index;
  block.node = index.extract(index.insert(&block).first);
  return one;
}

// ---- Giving back -----------------------------------------------------------------------------------------------

void PoolCore::release_otherwise(Block& block, Event last_use) noexcept {
  block.used_until(last_use);
  block.parked_for = block.only_queue();
  if (block.parked_for == 0) hide(block);
  if (block.parked_for == Block::no_queue || !parking_.keep(block)) release_here(block);
}

void PoolCore::release_here(Block& block) noexcept {
  auto const time = now();
  if (block.settled()) hide(block);

  Lock lock{mutex_};
  auto* const own = parking_.own();
  note_peak(own);
  count_out(block);
  if (own != nullptr) free_.catch_up(own->releases());
  free_.add(live_, block, time);
  if (own != nullptr) own->catch_up(free_.releases());
  changed();
  if (self_ != nullptr) {
    give_back(lock, free_.take_oldest(everything, true));
    if (live_.empty() && returning_ == 0) {
      auto const last = std::move(self_);
      lock.unlock();
    }
    return;
  }
  auto victims = free_.take_cached_before(expiry(time));
  if (free_.bytes() > options_.release_threshold) {
    victims.splice(victims.end(), free_.take_oldest(free_.bytes() - options_.release_threshold, false));
  }
  give_back(lock, std::move(victims));
}

void PoolCore::take_back(Block& block) noexcept {
  block.parked = false;
  count_out(block);
  free_.add_released_earlier(live_, block);
}

void PoolCore::take_back(std::span<Block* const> blocks) noexcept {
  if (blocks.empty()) return;
  Lock const lock{mutex_};
  note_peak(parking_.own());
  for (auto* const block : blocks) take_back(*block);
  changed();
}

void PoolCore::take_back(Magazines& magazines) noexcept {
  Lock const lock{mutex_};
  note_peak(&magazines);
  magazines.take_all([this](Block& block) { take_back(block); });
  magazines.catch_up(free_.releases());
  changed();
}

void PoolCore::take_back(Depots& depots) noexcept {
  Lock const lock{mutex_};
  note_peak(parking_.own());
  depots.take_all([this](Block& block) { take_back(block); });
  changed();
}

std::size_t PoolCore::give_back(Lock& lock, BlockList victims) noexcept {
  if (victims.empty()) return 0;
  std::size_t bytes = 0;
  for (auto const& block : victims) {
    bytes += block.capacity();
    counts_.size_classes[size_class(block.capacity())].pooled_bytes -= block.capacity();
  }
  returning_ += bytes;
  lock.unlock();
  for (auto& block : victims) {
    block.wait();
    expose(block);
    device_.release(std::exchange(block.memory, {}), location_);
  }
  lock.lock();
  returning_ -= bytes;
  spare_.splice(spare_.end(), victims);
  changed();
  return bytes;
}

std::size_t PoolCore::trim(std::size_t keep_bytes) noexcept {
  Parking::Seizure const seizure{parking_};
  Lock lock{mutex_};
  if (free_.bytes() <= keep_bytes) return 0;
  return give_back(lock, free_.take_oldest(free_.bytes() - keep_bytes, true));
}

void PoolCore::set_max_bytes(std::size_t bytes) {
  Parking::Seizure const seizure{parking_};
  Lock lock{mutex_};
  auto const live = counts_.active_bytes + growing_;
  if (bytes < live) {
    throw InvalidArgument("max_bytes", fmt::format("{}", bytes), fmt::format("at least the {} bytes in use", live));
  }
  max_bytes_ = bytes;
  for (;;) {  // against the limit as it now is: another thread may have changed it again
    auto const kept = counts_.active_bytes + growing_ + free_.bytes();
    if (kept + returning_ <= max_bytes_) return;
    auto const surplus = kept > max_bytes_ ? kept - max_bytes_ : 0;
    if (give_back(lock, free_.take_oldest(surplus, true)) == 0 && !await_transit(lock)) return;
  }
}

bool PoolCore::await_transit(Lock& lock) {
  if (growing_ == 0 && returning_ == 0) return false;
  changed_.wait(lock, [this, seen = changes_] { return changes_ != seen; });
  return true;
}

void PoolCore::changed() noexcept {
  ++changes_;
  changed_.notify_all();
}

void PoolCore::hide(Block const& block) noexcept {
  if (poisons && host_memory()) poison(device_.address(block.memory), block.capacity());
}

void PoolCore::expose(Block const& block) noexcept {
  if (poisons && host_memory()) unpoison(device_.address(block.memory), block.capacity());
}

bool PoolCore::host_memory() const noexcept {
  return location_ != Location::device || device_.shares_storage_with_host();
}

// ---- Time and counts -------------------------------------------------------------------------------------------

PoolCore::Time PoolCore::now() const {
  if (options_.trim_interval.count() == 0) return {};
  return options_.clock ? options_.clock() : std::chrono::steady_clock::now();
}

PoolCore::Time PoolCore::expiry(Time time) const noexcept {
  return options_.trim_interval.count() == 0 ? Time::min() : time - options_.trim_interval;
}

std::size_t PoolCore::used_at_most(Magazines const* these) const noexcept {
  auto parked = static_cast<std::ptrdiff_t>(parking_.bytes_beside(these));
  if (these != nullptr) parked += these->fewest_bytes();
  auto const out = static_cast<std::ptrdiff_t>(counts_.active_bytes);
  return static_cast<std::size_t>(std::clamp<std::ptrdiff_t>(out - parked, 0, out));
}

void PoolCore::note_peak(Magazines* these) noexcept {
  counts_.peak_active_bytes = std::max(counts_.peak_active_bytes, used_at_most(these));
  if (these != nullptr) these->begin_watch();
}

void PoolCore::count_hits_of(Magazines const& magazines) noexcept {
  Lock const lock{mutex_};
  add_hits(counts_, magazines);
}

void PoolCore::count_in(Block& block, std::size_t bytes, bool hit) noexcept {
  note_peak(parking_.own());
  auto& asked = counts_.size_classes[size_class(bytes)];
  auto& held = counts_.size_classes[size_class(block.capacity())];
  ++counts_.total_allocations;
  ++asked.allocations;
  if (hit) {
    ++counts_.pool_hits;
    ++asked.hits;
    held.pooled_bytes -= block.capacity();
  } else {
    ++counts_.pool_misses;
  }
  ++counts_.active_allocations;
  counts_.active_bytes += block.capacity();
  held.active_bytes += block.capacity();
  note_peak(parking_.own());
  counts_.peak_reserved_bytes = std::max(counts_.peak_reserved_bytes, counts_.active_bytes + free_.bytes());
}

void PoolCore::count_out(Block& block) noexcept {
  auto& held = counts_.size_classes[size_class(block.capacity())];
  --counts_.active_allocations;
  counts_.active_bytes -= block.capacity();
  held.active_bytes -= block.capacity();
  held.pooled_bytes += block.capacity();
}

void PoolCore::uncount(std::size_t bytes) noexcept {
  auto& asked = counts_.size_classes[size_class(bytes)];
  --counts_.total_allocations;
  --counts_.pool_hits;
  --asked.allocations;
  --asked.hits;
}

PoolStatistics PoolCore::statistics() const {
  PoolStatistics counts;
  parking_.inspect([&](Depots const& depots, auto const& threads) {
    Lock const lock{mutex_};
    counts = counts_;
    counts.total_pooled_bytes = free_.bytes();
    counts.reserved_bytes = counts.active_bytes + counts.total_pooled_bytes;
    auto const parked = [&counts](Block const& block) {
      auto& held = counts.size_classes[size_class(block.capacity())];
      --counts.active_allocations;
      counts.active_bytes -= block.capacity();
      held.active_bytes -= block.capacity();
      counts.total_pooled_bytes += block.capacity();
      held.pooled_bytes += block.capacity();
    };
    depots.for_each(parked);
    for (auto const& thread : threads) {
      auto const& magazines = thread->magazines;
      magazines.for_each(parked);
      add_hits(counts, magazines);
      counts.peak_active_bytes = std::max(counts.peak_active_bytes, used_at_most(&magazines));
    }
  });
  return counts;
}

PoolFragmentation PoolCore::fragmentation() const {
  PoolFragmentation free;
  parking_.inspect([&](Depots const& depots, auto const& threads) {
    Lock const lock{mutex_};
    free = {free_.largest(), free_.bytes()};
    auto const parked = [&free](Block const& block) {
      free.largest_free_block = std::max(free.largest_free_block, block.capacity());
      free.total_free += block.capacity();
    };
    depots.for_each(parked);
    for (auto const& thread : threads) thread->magazines.for_each(parked);
  });
  return free;
}

std::size_t PoolCore::max_bytes() const noexcept {
  Lock const lock{mutex_};
  return max_bytes_;
}

std::vector<OutOfMemory::Holder> PoolCore::holders(std::size_t most) const {
  std::vector<OutOfMemory::Holder> holders;
  parking_.inspect([&](Depots const&, auto const&) {
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
  all.reserve(by_name.size());
  for (auto& [name, holder] : by_name) {
    holder.name = name.view();
    all.push_back(std::move(holder));
  }
  std::ranges::sort(
      all, [](auto const& a, auto const& b) { return a.bytes != b.bytes ? a.bytes > b.bytes : a.name < b.name; });
  if (all.size() > most) all.resize(most);
  return all;
}

void PoolCore::fail(Lock& lock, std::size_t bytes, std::string const& refusal) {
  ++counts_.failed_allocations;
  bool const too_large_at_once = bytes > device_.info().max_allocation && bytes <= limit();
  OutOfMemory::Facts facts;
  facts.where = fmt::format("{} {}", device_.id(), to_string(location_));
  facts.requested = bytes;
  facts.limit = too_large_at_once ? device_.info().max_allocation : limit();
  facts.live = counts_.active_bytes;
  facts.cached = free_.bytes();
  facts.largest_free = free_.largest();
  facts.fragmentation = PoolFragmentation{free_.largest(), free_.bytes()}.fragmentation_ratio();
  facts.holders = holders_locked(most_holders);
  facts.reason = !refusal.empty()    ? refusal
                 : too_large_at_once ? "more than the device gives in one piece"
                                     : "limit reached";
  lock.unlock();
  facts.device_free = device_.memory_info().free_bytes;
  throw OutOfMemory(std::move(facts));
}

void PoolCore::validate() const {
  auto const check = [](bool holds, char const* what) {
    if (!holds) throw std::logic_error(std::string("MemoryPool: ") + what);
  };
  std::size_t parked_blocks = 0;
  std::size_t parked_bytes = 0;
  parking_.inspect([&](Depots const& depots, auto const& threads) {
    Lock const lock{mutex_};
    free_.validate();
    auto const parked = [&](Block const& block) {
      check(block.parked && block.pool == this, "a parked block does not know it");
      ++parked_blocks;
      parked_bytes += block.capacity();
    };
    depots.for_each(parked);
    auto bytes = depots.bytes();
    auto peak = counts_.peak_active_bytes;
    for (auto const& thread : threads) {
      thread->magazines.for_each(parked);
      bytes += thread->magazines.bytes();
      peak = std::max(peak, used_at_most(&thread->magazines));
    }
    check(bytes == parked_bytes, "the parked bytes do not add up");
    PoolStatistics seen;
    for (auto it = live_.begin(); it != live_.end(); ++it) {
      check(it->place == it && it->pool == this, "a live block does not know its place");
      check(!it->node.empty(), "a live block has lost its index node");
      if (it->parked) --parked_blocks;
      ++seen.active_allocations;
      seen.active_bytes += it->capacity();
      seen.size_classes[size_class(it->capacity())].active_bytes += it->capacity();
    }
    for (auto const& block : free_.by_age())
      seen.size_classes[size_class(block.capacity())].pooled_bytes += block.capacity();
    for (auto const& block : spare_)
      check(block.memory.empty() && !block.node.empty(), "a spare descriptor holds memory");

    check(parked_blocks == 0, "a parked block is not out of the core, or a block that is not parked is marked so");
    auto const& counts = counts_;
    auto const reserved = counts.active_bytes + free_.bytes();
    check(seen.active_allocations == counts.active_allocations, "the live blocks are not as many as counted");
    check(seen.active_bytes == counts.active_bytes, "the live bytes do not add up");
    check(counts.pool_hits + counts.pool_misses == counts.total_allocations,
          "hits and misses do not make up the allocations");
    check(peak + parked_bytes >= counts.active_bytes, "the peak of active bytes is below the present");
    check(counts.peak_reserved_bytes >= reserved, "the peak of reserved bytes is below the present");
    check(counts.active_bytes + growing_ <= max_bytes_, "live memory exceeds the limit");
    // A limit that has just been lowered is met once the blocks on their way out are gone.
    check(returning_ != 0 || reserved + growing_ <= max_bytes_, "reserved memory exceeds the limit");
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
