#include "pool/pool_core.hpp"

#include <unimem/core/log.hpp>
#include <unimem/core/size.hpp>

#include "pool/near_exact.hpp"
#include "pool/poison.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <new>
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

/// 0 for the host. Throws InvalidArgument for a queue that was moved from.
std::uint64_t id_of(Queue const* queue) {
  if (queue == nullptr) return 0;
  static_cast<void>(queue->device());
  return queue->id();
}

}  // namespace

PoolCore::PoolCore(Device& device, Location location, PoolOptions options)
    : device_(device), location_(location), options_(std::move(options)), max_bytes_(options_.max_bytes) {}

void PoolCore::close(std::unique_ptr<PoolCore> core) noexcept {
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

Block& PoolCore::acquire(std::size_t bytes, AcquireOptions const& options) {
  if (options.alignment != 0) check_alignment(options.alignment, device_.info().alignment);
  auto const time = now();
  auto const queue = id_of(options.queue);

  std::string refusal;   // what the driver said when it last had no memory
  bool refused = false;  // it has said so, and nothing has changed since
  bool rounded = true;   // asking for a near-exact class, not for the bare bytes
  Lock lock{mutex_};
  for (;;) {
    if (auto* const cached = free_.find(bytes, queue, options.may_wait))
      return reuse(lock, *cached, bytes, options, time);
    give_back(lock, free_.take_cached_before(expiry(time)));

    // The ladder: from what disturbs nobody to what blocks. Each rung that changed anything starts it again.
    auto const capacity = affordable(bytes, rounded);
    if (capacity == 0) {
      if (await_transit(lock)) continue;
      fail(lock, bytes, refusal);
    }
    if (!refused && capacity <= room()) {
      if (give_back(lock, free_.take_oldest(surplus_with(capacity), false)) != 0) continue;
      if (auto* const fresh = grow(lock, capacity, bytes, options, refusal)) return *fresh;
      refused = true;
      continue;  // the lock was dropped: a block that fits may have come back
    }
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
  AcquireOptions options;
  options.name = name;
  auto const time = now();
  Lock lock{mutex_};
  auto* const cached = free_.find(bytes, id_of(nullptr), false);
  return cached == nullptr ? nullptr : &reuse(lock, *cached, bytes, options, time);
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
    try {
      options.queue->wait(block.inherited);
      options.queue->wait(block.last_use);
    } catch (...) {
      lock.lock();
      count_out(block);
      uncount(bytes);
      free_.add(live_, block, time);
      ++counts_.failed_allocations;
      changed();
      throw;
    }
    // Everything before this moment of the queue, the waits included: one event that stands for both.
    block.inherited = options.queue->record();
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

void PoolCore::release(Block& block, Event last_use) noexcept {
  auto const time = now();
  // One queue runs in order, so a later event of the same queue stands for the earlier one as well.
  if (last_use != Event{} && last_use.queue_id() == block.inherited.queue_id()) block.inherited = {};
  block.last_use = last_use;
  bool const settled = block.settled();
  ++block.generation;
  if (settled) hide(block);

  Lock lock{mutex_};
  count_out(block);
  free_.add(live_, block, time);
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
  Lock lock{mutex_};
  if (free_.bytes() <= keep_bytes) return 0;
  return give_back(lock, free_.take_oldest(free_.bytes() - keep_bytes, true));
}

void PoolCore::set_max_bytes(std::size_t bytes) {
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

void PoolCore::count_in(Block& block, std::size_t bytes, bool hit) noexcept {
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
  counts_.peak_active_bytes = std::max(counts_.peak_active_bytes, counts_.active_bytes);
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
  Lock const lock{mutex_};
  auto counts = counts_;
  counts.total_pooled_bytes = free_.bytes();
  counts.reserved_bytes = counts.active_bytes + counts.total_pooled_bytes;
  return counts;
}

PoolFragmentation PoolCore::fragmentation() const {
  Lock const lock{mutex_};
  return {free_.largest(), free_.bytes()};
}

std::size_t PoolCore::max_bytes() const noexcept {
  Lock const lock{mutex_};
  return max_bytes_;
}

std::vector<OutOfMemory::Holder> PoolCore::holders(std::size_t most) const {
  Lock const lock{mutex_};
  return holders_locked(most);
}

std::vector<OutOfMemory::Holder> PoolCore::holders_locked(std::size_t most) const {
  std::unordered_map<Name, OutOfMemory::Holder> by_name;
  for (auto const& block : live_) {
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
  Lock const lock{mutex_};
  free_.validate();
  PoolStatistics seen;
  for (auto it = live_.begin(); it != live_.end(); ++it) {
    check(it->place == it && it->pool == this, "a live block does not know its place");
    check(!it->node.empty(), "a live block has lost its index node");
    ++seen.active_allocations;
    seen.active_bytes += it->capacity();
    seen.size_classes[size_class(it->capacity())].active_bytes += it->capacity();
  }
  for (auto const& block : free_.by_age())
    seen.size_classes[size_class(block.capacity())].pooled_bytes += block.capacity();
  for (auto const& block : spare_)
    check(block.memory.empty() && !block.node.empty(), "a spare descriptor holds memory");

  auto const& counts = counts_;
  auto const reserved = counts.active_bytes + free_.bytes();
  check(seen.active_allocations == counts.active_allocations, "the live blocks are not as many as counted");
  check(seen.active_bytes == counts.active_bytes, "the live bytes do not add up");
  check(counts.pool_hits + counts.pool_misses == counts.total_allocations,
        "hits and misses do not make up the allocations");
  check(counts.peak_active_bytes >= counts.active_bytes, "the peak of active bytes is below the present");
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
}

}  // namespace unimem::detail
