#pragma once

#include <unimem/manager/links.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "core/fork.hpp"
#include "manager/admission_queue.hpp"
#include "manager/backing_file.hpp"
#include "manager/environment_limits.hpp"
#include "manager/evictor.hpp"
#include "manager/host_limit.hpp"
#include "manager/named_residents.hpp"
#include "manager/pressure.hpp"
#include "manager/residents.hpp"
#include "manager/sleep_book.hpp"
#include "manager/spill_files.hpp"
#include "manager/taken_memory.hpp"
#include "manager/usage_book.hpp"
#include "manager/use_history.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace unimem {
namespace detail {

/// What a manager knows of the use of one device.
struct DeviceRecord {
  AdmissionQueue turns;
  TakenMemory taken;
  UseClock clock;
};

}  // namespace detail

/// Pools are made on demand and stay until the end, so a pointer to one is good without the lock.
struct MemoryManager::State : std::enable_shared_from_this<State> {
  explicit State(ManagerOptions given)
      : self(*this),
        options(std::move(given)),
        links(measured_by(*this)),
        pressure(std::make_shared<detail::Pressure>(options.pressure)),
        spill_files(options.spill.directory.empty()
                        ? nullptr
                        : std::make_shared<detail::SpillFiles>(options.spill.directory, options.spill.min_bytes)),
        book(std::make_unique<detail::UsageBook>(options.leaks.stacks)) {}
  State(State const&) = delete;
  State& operator=(State const&) = delete;
  ~State() {
    pressure->close();
    detail::UsageBook::retire(std::move(book));
  }

  /// How links are measured: with blocks of this manager's, so that no limit is exceeded for it.
  [[nodiscard]] static LinkOptions measured_by(State& state) {
    auto how = state.options.links;
    if (!how.pools) {
      how.pools = [&state](Device& device, Location location) -> MemoryPool& {
        return state.self.pool(device, location);
      };
    }
    return how;
  }

  /// The pool of exactly this device and location, or null.
  [[nodiscard]] MemoryPool* find(Device const& device, Location location) const {
    std::lock_guard const lock{mutex};
    auto const found = pools.find({&device, location});
    return found == pools.end() ? nullptr : found->second.get();
  }

  /// The most bytes that a pool may have before anything is said of it here, but for all of the host's together.
  [[nodiscard]] std::size_t first_limit(Device const& device, Location location) const noexcept {
    return std::min(options.pools.max_bytes, limits.of(device, location));
  }

  /// Made on demand, and there until the end.
  [[nodiscard]] detail::DeviceRecord& record_of(Device const& device) {
    std::lock_guard const lock{mutex};
    return records[&device];
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
    if (bytes != 0) cache_trims.fetch_add(1, std::memory_order_relaxed);
    return bytes;
  }

  /// What `acquire()` gives; an OutOfMemory that it throws is counted, unless it `evicts`.
  template <class Acquire>
  auto counting_refusals(bool evicts, Acquire const& acquire);

  detail::MadeHere const made{};
  MemoryManager self;  ///< what buffers call, which may live longer than the object that made this
  ManagerOptions const options;
  detail::EnvironmentLimits const limits = detail::EnvironmentLimits::read();
  detail::HostLimit host{limits.of_the_host(), [this] { cache_trims.fetch_add(1, std::memory_order_relaxed); }};
  mutable std::mutex mutex;
  std::map<std::pair<Device const*, Location>, std::unique_ptr<MemoryPool>> pools;
  std::map<Device const*, detail::DeviceRecord> records;
  detail::Residents residents;
  detail::NamedResidents named;
  detail::SleepBook sleeping;
  detail::Evictor evictor{residents};
  Links links;
  std::shared_ptr<detail::Pressure> const pressure;
  std::shared_ptr<detail::SpillFiles> const spill_files;  ///< null: nothing is spilled
  std::shared_ptr<detail::FileTraffic> const files = std::make_shared<detail::FileTraffic>();  ///< of users
  std::unique_ptr<detail::UsageBook> book;
  // Counts alone: nothing else is published through them, so relaxed.
  // Relaxed: counts alone.
  std::atomic<std::uint64_t> cache_trims{0};
  std::atomic<std::uint64_t> defragmentations{0};
  std::atomic<std::uint64_t> waits{0};
  std::atomic<std::uint64_t> refusals{0};
  std::atomic<std::uint64_t> refused_pinnings{0};
  std::atomic<std::uint64_t> missing_unified{0};
};

}  // namespace unimem
