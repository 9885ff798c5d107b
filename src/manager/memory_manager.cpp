#include <unimem/manager/memory_manager.hpp>

#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>

#include "manager/residents.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace unimem {

/// Pools are made on demand and stay until the end, so a pointer to one is good without the lock.
struct MemoryManager::State {
  explicit State(ManagerOptions given) : options(std::move(given)) {}

  /// The pool of exactly this device and location, or null.
  [[nodiscard]] MemoryPool* find(Device const& device, Location location) const {
    std::lock_guard const lock{mutex};
    auto const found = pools.find({&device, location});
    return found == pools.end() ? nullptr : found->second.get();
  }

  [[nodiscard]] std::vector<MemoryPool*> all() const {
    std::lock_guard const lock{mutex};
    std::vector<MemoryPool*> found;
    found.reserve(pools.size());
    for (auto const& [key, pool] : pools) found.push_back(pool.get());
    return found;
  }

  /// Gives back what the other pools of the same device have cached; returns the bytes.
  std::size_t trim_beside(MemoryPool const& pool) {
    std::size_t bytes = 0;
    for (auto* const other : all()) {
      if (&other->device() == &pool.device() && other != &pool) bytes += other->trim();
    }
    return bytes;
  }

  /// Asks one resident, and counts. If it fails nothing is lost, and the next one may do: the reason is kept for the
  /// end.
  std::size_t reclaim(Resident& resident, Device& device, std::string& failure) {
    std::size_t bytes = 0;
    try {
      bytes = residents.reclaim(resident, device);
    } catch (std::exception const& error) {
      failed_reclaims.fetch_add(1, std::memory_order_relaxed);
      failure = error.what();
    }
    if (bytes != 0) reclaims.fetch_add(1, std::memory_order_relaxed);
    reclaimed_bytes.fetch_add(bytes, std::memory_order_relaxed);
    return bytes;
  }

  ManagerOptions const options;
  mutable std::mutex mutex;
  std::map<std::pair<Device const*, Location>, std::unique_ptr<MemoryPool>> pools;
  detail::Residents residents;
  // Counts alone: nothing else is published through them, so relaxed.
  std::atomic<std::uint64_t> reclaims{0};
  std::atomic<std::uint64_t> failed_reclaims{0};
  std::atomic<std::size_t> reclaimed_bytes{0};
};

MemoryManager::MemoryManager(ManagerOptions options) : state_(std::make_unique<State>(std::move(options))) {}

MemoryManager::~MemoryManager() = default;

namespace {

Device& host() {
  static auto& cpu = device("cpu");
  return cpu;
}

/// One wish, tried as often as there is new hope for it.
struct Wish {
  MemoryPool& pool;
  detail::Residents const& residents;
  std::size_t bytes;
  AcquireOptions const& options;
  Allocation block;
  OutOfMemory::Facts facts;    ///< of the last refusal
  std::uint64_t reclaims = 0;  ///< that there had been before the last try: what came later it has not seen

  /// Whether `block` now holds the memory.
  [[nodiscard]] bool granted() {
    reclaims = residents.reclaims();
    try {
      block = pool.acquire(bytes, options);
      return true;
    } catch (OutOfMemory const& error) {
      facts = error.facts();
      return false;
    }
  }

  /// Whether it could be granted if all candidates gave what they have. They may count the bytes they asked for, and
  /// blocks are up to an eighth, or 4 KiB, larger.
  [[nodiscard]] bool within_reach(std::vector<detail::Residents::Candidate> const& candidates) const noexcept {
    constexpr std::size_t block_slack = 4096;
    std::size_t most = 0;
    for (auto const& candidate : candidates) {
      auto const reclaimable = candidate.reclaimable.bytes;
      most += reclaimable + std::max(reclaimable / 8, block_slack);
    }
    auto const pinned = facts.live > most ? facts.live - most : 0;
    return pinned <= facts.limit && bytes <= facts.limit - pinned;
  }
};

}  // namespace

MemoryPool& MemoryManager::pool(Device& device, Location location) {
  bool const of_the_host = location == Location::host || location == Location::pinned;
  auto& home = of_the_host ? host() : device;
  std::lock_guard const lock{state_->mutex};
  auto const key = std::pair{static_cast<Device const*>(&home), location};
  auto found = state_->pools.find(key);
  if (found == state_->pools.end()) {
    found = state_->pools.emplace(key, std::make_unique<MemoryPool>(home, location, state_->options.pools)).first;
  }
  return *found->second;
}

Allocation MemoryManager::acquire(Device& device, Location location, std::size_t bytes, AcquireOptions const& options) {
  Wish wish{pool(device, location), state_->residents, bytes, options, {}, {}, 0};
  if (wish.granted()) return std::move(wish.block);
  if (bytes > wish.facts.limit) throw OutOfMemory(std::move(wish.facts));  // nobody loses a copy for what cannot be

  if (state_->trim_beside(wish.pool) != 0 && wish.granted()) return std::move(wish.block);

  std::string failure;
  // Host memory is where residents save to: only device memory is asked back.
  bool hope = location == Location::device || location == Location::unified;
  while (hope) {
    hope = false;
    auto const candidates = state_->residents.candidates(wish.pool.device());
    if (wish.within_reach(candidates)) {
      for (auto const& candidate : candidates) {
        if (state_->reclaim(*candidate.resident, wish.pool.device(), failure) == 0) continue;
        if (wish.granted()) return std::move(wish.block);
        hope = true;
      }
    }
    // What another thread has just had saved, or is having saved, was not on offer here, and may be enough.
    if (!hope && state_->residents.await_reclaim_since(wish.reclaims)) {
      if (wish.granted()) return std::move(wish.block);
      hope = true;
    }
  }
  if (!failure.empty()) wish.facts.reason += fmt::format("; a resident could not be saved: {}", failure);
  throw OutOfMemory(std::move(wish.facts));
}

std::size_t MemoryManager::available_memory(Device& device) const {
  auto const total = total_memory(device);
  auto const* const found = state_->find(device, Location::device);
  auto const live = found == nullptr ? 0 : found->statistics().active_bytes;
  return live >= total ? 0 : total - live;
}

std::size_t MemoryManager::total_memory(Device& device) const {
  auto const* const found = state_->find(device, Location::device);
  return std::min(found == nullptr ? state_->options.pools.max_bytes : found->max_bytes(), device.info().total_bytes);
}

void MemoryManager::set_limit(Device& device, std::size_t bytes) {
  pool(device, Location::device).set_max_bytes(bytes);
}

GlobalMemoryStatistics MemoryManager::statistics() const {
  GlobalMemoryStatistics sum;
  for (auto const* const each : state_->all()) {
    auto const counts = each->statistics();
    sum.total_allocations += counts.total_allocations;
    sum.active_allocations += counts.active_allocations;
    sum.active_bytes += counts.active_bytes;
    sum.pooled_bytes += counts.total_pooled_bytes;
    sum.reserved_bytes += counts.reserved_bytes;
    sum.pools.push_back({std::string(each->device().id()), each->location(), counts});
  }
  sum.reclaims = state_->reclaims.load(std::memory_order_relaxed);
  sum.failed_reclaims = state_->failed_reclaims.load(std::memory_order_relaxed);
  sum.reclaimed_bytes = state_->reclaimed_bytes.load(std::memory_order_relaxed);
  return sum;
}

std::size_t MemoryManager::cleanup() {
  std::size_t bytes = 0;
  for (auto* const each : state_->all()) bytes += each->trim();
  return bytes;
}

void MemoryManager::add_resident(Resident& resident) {
  state_->residents.add(resident);
}

void MemoryManager::remove_resident(Resident& resident) noexcept {
  state_->residents.remove(resident);
}

MemoryManager& default_manager() {
  // Never destroyed: buffers in static storage are, at an hour nobody can know, and give their memory back to it.
  static auto& instance = *std::make_unique<MemoryManager>().release();
  return instance;
}

}  // namespace unimem
