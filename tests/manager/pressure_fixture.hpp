#pragma once

#include <unimem/device/sim.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "core/sizes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

namespace unimem::testing {

/// What a callback has heard: "none > moderate" at so many MiB.
class Diary {
 public:
  [[nodiscard]] PressureCallback callback() {
    return [this](PressureChange const& change) {
      std::lock_guard const lock{mutex_};
      changes_.push_back(change);
    };
  }
  [[nodiscard]] std::vector<PressureChange> changes() const {
    std::lock_guard const lock{mutex_};
    return changes_;
  }
  [[nodiscard]] std::vector<std::string> lines() const {
    std::vector<std::string> lines;
    for (auto const& change : changes()) {
      lines.push_back(std::string(to_string(change.before)) + " > " + std::string(to_string(change.now)) + " at " +
                      std::to_string(change.live_bytes / MiB));
    }
    return lines;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<PressureChange> changes_;
};

/// A device of 64 MiB whose levels begin at 32, 48 and 56 MiB and are left below 24, 40 and 48.
class PressureOfSim : public ::testing::Test {
 protected:
  static ManagerOptions options() {
    return {.pools = {.backing = PoolBacking::allocations},
            .pressure = {.moderate = 0.5, .high = 0.75, .critical = 0.875, .hysteresis = 0.125}};
  }

  [[nodiscard]] Allocation take(std::size_t mebibytes) {
    return manager.acquire(sim, Location::device, mebibytes * MiB);
  }
  [[nodiscard]] PressureLevel now() { return manager.pressure(sim, Location::device); }

  /// All that was noticed has been told.
  [[nodiscard]] std::vector<std::string> heard() {
    manager.settle_pressure();
    return diary.lines();
  }

  Device& sim = make_sim({.memory_bytes = 64 * MiB});
  Diary diary;
  MemoryManager manager{options()};
};

}  // namespace unimem::testing
