#include <unimem/manager/memory_manager.hpp>

#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>

#include "manager/manager_state.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace unimem {

namespace {

Device& host() {
  static auto& cpu = device("cpu");
  return cpu;
}

/// Where what a buffer has on the device lies: where that is the host, there is no other copy than the host's.
Location own_memory_of(Device const& device) noexcept {
  return device.reaches_host_memory() ? Location::host : Location::device;
}

/// Whose pool serves a location of a device.
Device& home_of(Device& device, Location location) {
  bool const of_the_host = location == Location::host || location == Location::pinned;
  return of_the_host && !device.reaches_host_memory() ? host() : device;
}

/// What is left of so many bytes.
std::size_t without(std::size_t bytes, std::size_t taken) noexcept {
  return taken >= bytes ? 0 : bytes - taken;
}

}  // namespace

MemoryPool& MemoryManager::pool(Device& device, Location location) {
  auto const index = static_cast<std::size_t>(location);
  if (index >= detail::HostLimit::places) {
    throw InvalidArgument("location", std::to_string(index), "device, host, pinned or unified");
  }
  auto& home = home_of(device, location);
  bool const of_the_host = detail::HostLimit::bounds(home);
  if (of_the_host) {
    if (auto* const found = state().host.pool(location)) return *found;  // without the lock
  }
  std::lock_guard const lock{state().mutex};
  auto const key = std::pair{static_cast<Device const*>(&home), location};
  auto found = state().pools.find(key);
  if (found == state().pools.end()) {
    auto options = state().options.pools;
    options.max_bytes = state().first_limit(home, location);
    if (options.stacks.every == 0) options.stacks = state().options.leaks.stacks;
    auto share = of_the_host ? state().host.share(location) : nullptr;
    auto made = std::make_unique<MemoryPool>(home, location, std::move(options), std::move(share));
    found = state().pools.emplace(key, std::move(made)).first;
    try {
      state().pressure->watch(*found->second, of_the_host ? &state().host.whole() : nullptr);
    } catch (...) {
      state().pools.erase(found);  // the next call has it watched, or throws why not
      throw;
    }
  }
  if (of_the_host) state().host.add(*found->second);
  return *found->second;
}

std::size_t MemoryManager::available_memory(Device& device) const {
  auto const total = total_memory(device);
  auto const* const found = state().find(device, own_memory_of(device));
  auto left = without(total, found == nullptr ? 0 : found->statistics().active_bytes);
  if (detail::HostLimit::bounds(device)) {
    std::size_t live = 0;
    for (auto const* const each : state().host.pools()) live += each->statistics().active_bytes;
    left = std::min(left, without(state().host.bytes(), live));
  }
  auto const room = device.headroom();
  if (room >= left) return left;
  std::size_t cached = 0;  // can be given back, whichever pool has it
  for (auto const* const each : state().all()) {
    if (&each->device() == &device) cached += each->statistics().total_pooled_bytes;
  }
  return cached >= left - room ? left : room + cached;
}

std::size_t MemoryManager::total_memory(Device& device) const {
  return limit(device, own_memory_of(device));
}

void MemoryManager::set_limit(Device& device, std::size_t bytes) {
  if (!detail::HostLimit::bounds(device)) return set_limit(device, own_memory_of(device), bytes);
  state().host.set(bytes);
  for (auto* const each : state().host.pools()) state().pressure->look(*each);
}

void MemoryManager::set_limit(Device& device, Location location, std::size_t bytes) {
  auto& limited = pool(device, location);
  limited.set_max_bytes(std::min(bytes, state().limits.of(limited.device(), location)));
  state().pressure->look(limited);
}

std::size_t MemoryManager::limit(Device& device, Location location) const {
  auto& home = home_of(device, location);
  auto const* const found = state().find(home, location);
  auto const own = found != nullptr ? found->max_bytes() : state().first_limit(home, location);
  auto const most = std::min(own, home.info().total_bytes);
  return detail::HostLimit::bounds(home) ? std::min(most, state().host.bytes()) : most;
}

GlobalMemoryStatistics MemoryManager::statistics() const {
  GlobalMemoryStatistics sum;
  auto const count = [&sum](MemoryPool const& pool, PoolStatistics const& counts) {
    sum.total_allocations += counts.total_allocations;
    sum.active_allocations += counts.active_allocations;
    sum.active_bytes += counts.active_bytes;
    sum.pooled_bytes += counts.total_pooled_bytes;
    sum.reserved_bytes += counts.reserved_bytes;
    sum.pools.push_back({std::string(pool.device().id()), pool.location(), counts});
  };
  auto const of_the_host = state().host.pools();
  auto const counted = detail::statistics_of(of_the_host, state().host.whole());
  for (auto* const each : state().all()) {
    auto const known = std::ranges::find(of_the_host, each);
    // One of the host's that has been made since begins then.
    if (known != of_the_host.end()) {
      count(*each, counted[static_cast<std::size_t>(known - of_the_host.begin())]);
    } else if (!detail::HostLimit::bounds(each->device())) {
      count(*each, each->statistics());
    }
  }
  constexpr auto relaxed = std::memory_order_relaxed;
  auto const& of_devices = state().evictor.of_devices();
  sum.reclaims = of_devices.evictions.load(relaxed);
  sum.failed_reclaims = of_devices.failures.load(relaxed);
  sum.reclaimed_bytes = of_devices.bytes.load(relaxed);
  auto const& evicted_from_host = state().evictor.of_the_host();
  sum.host_reclaims = evicted_from_host.evictions.load(relaxed);
  sum.failed_host_reclaims = evicted_from_host.failures.load(relaxed);
  sum.host_reclaimed_bytes = evicted_from_host.bytes.load(relaxed);
  if (auto const* const files = state().spill_files.get()) {
    auto const counts = files->counts();
    sum.spills = counts.spills;
    sum.spilled_bytes = counts.spilled_bytes;
    sum.restores = counts.restores;
    sum.restored_bytes = counts.restored_bytes;
    sum.direct_reads = counts.direct_reads;
    sum.direct_read_bytes = counts.direct_read_bytes;
    sum.spill_files = counts.files;
    sum.spill_file_bytes = counts.file_bytes;
  }
  sum.file_reads = state().files->read.times.load(relaxed);
  sum.file_read_bytes = state().files->read.bytes.load(relaxed);
  sum.file_direct_bytes = state().files->direct.load(relaxed);
  sum.file_uring_bytes = state().files->by_ring.load(relaxed);
  sum.file_mapped_bytes = state().files->mapped.load(relaxed);
  sum.file_writes = state().files->written.times.load(relaxed);
  sum.file_written_bytes = state().files->written.bytes.load(relaxed);
  sum.cache_trims = state().cache_trims.load(std::memory_order_relaxed);
  sum.defragmentations = state().defragmentations.load(std::memory_order_relaxed);
  sum.waits = state().waits.load(std::memory_order_relaxed);
  sum.refusals = state().refusals.load(std::memory_order_relaxed);
  sum.refused_pinnings = state().refused_pinnings.load(std::memory_order_relaxed);
  sum.missing_unified = state().missing_unified.load(std::memory_order_relaxed);
  auto const pressure = state().pressure->counts();
  sum.pressure_calls = pressure.calls;
  sum.failed_pressure_calls = pressure.failures;
  sum.merged_crossings = pressure.merged;
  return sum;
}

MemorySnapshot MemoryManager::snapshot() const {
  MemorySnapshot snapshot{.statistics = statistics(), .usage = usage(), .live = leak_report(), .limits = {}};
  for (auto const* const each : state().all()) {
    snapshot.limits.push_back(
        {std::string(each->device().id()), each->location(), limit(each->device(), each->location())});
  }
  return snapshot;
}

std::size_t MemoryManager::cleanup() {
  std::size_t bytes = 0;
  for (auto* const each : state().all()) {
    bytes += each->trim();
    state().pressure->look(*each);
  }
  return bytes;
}

PoolDefragmentation MemoryManager::defragment(Device& device, DefragmentationLimits const& limits) {
  auto* const pool = state().find(device, Location::device);
  if (pool == nullptr) return {};
  auto const begin = std::chrono::steady_clock::now();
  // What threads keep is no better place for anything before it is united with what lies beside it.
  auto report = pool->defragment(limits);
  MemoryPlace const place{&device, Location::device};
  auto candidates = state().residents.survey({&place, 1}).candidates;
  if (candidates.empty()) return report;
  auto queue = device.create_queue();  // a queue of its own: only the copies are waited for
  std::ranges::sort(candidates, {}, [](auto const& candidate) { return candidate.evictable.bytes; });
  for (auto const& candidate : candidates) {
    auto const left = limits.max_copied_bytes - report.bytes_copied;
    if (limits.stop.stop_requested() || candidate.evictable.bytes > left) break;
    auto const [copied, moved] = state().residents.relocate(*candidate.resident, queue, left);
    report.bytes_copied += copied;
    report.blocks_moved += moved ? 1 : 0;
  }
  if (report.blocks_moved == 0) return report;
  auto const after =
      pool->defragment({.max_moved_bytes = limits.max_moved_bytes - report.bytes_moved, .stop = limits.stop});
  report.bytes_moved += after.bytes_moved;
  report.largest_free_after = after.largest_free_after;
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return report;
}

PressureLevel MemoryManager::pressure(Device& device, Location location) {
  auto& asked = pool(device, location);
  state().pressure->look(asked);
  return state().pressure->level(asked);
}

PressureSubscription MemoryManager::on_pressure(PressureCallback callback) {
  return {state().pressure, state().pressure->subscribe(std::move(callback))};
}

void MemoryManager::settle_pressure() {
  state().pressure->settle();
}

Links& MemoryManager::links() noexcept {
  return state_->links;
}

std::shared_ptr<detail::FileTraffic> MemoryManager::file_traffic() noexcept {
  return state_->files;
}

detail::SpillFiles* MemoryManager::spill_files() noexcept {
  return state_->spill_files.get();
}

void MemoryManager::add_resident(Resident& resident) {
  state().residents.add(resident);
}

void MemoryManager::remove_resident(Resident& resident) noexcept {
  state_->residents.remove(resident);
}

bool MemoryManager::retire_resident(Resident& resident) noexcept {
  return state_->residents.retire(resident);
}

void MemoryManager::add_named(Resident& resident) {
  state().named.add(resident);
}

void MemoryManager::remove_named(Resident& resident) noexcept {
  state_->named.remove(resident);
}

std::vector<std::shared_ptr<Resident>> MemoryManager::named() const {
  return state().named.all();
}

detail::SleepBook& MemoryManager::sleep_book() {
  return state().sleeping;
}

detail::UseClock& MemoryManager::use_clock(Device& device) {
  return state().record_of(device).clock;
}

}  // namespace unimem
