#pragma once

#include <unimem/device/sim.hpp>

#include "device/host_pages.hpp"
#include "device/sim/fault_plan.hpp"
#include "device/sim/fresh_memory.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unimem::detail {

/// A discrete device made of host memory.
///
/// It behaves as the strictest real device would: memory of its own that only commands reach, a capacity that is exact
/// to the byte, fresh memory full of rubbish, errors where a real device would corrupt memory silently. It takes its
/// time as it is told to, and goes wrong as it is told to, so that what is rare on real hardware happens in every test
/// run.
///
/// It serves `Location::device` alone: pageable and pinned host memory are the cpu device's.
class SimDevice final : public Device, private PageOwner {
 public:
  /// Throws InvalidArgument for options that make no device.
  SimDevice(std::string id, SimOptions const& options);

  [[nodiscard]] MemoryInfo memory_info() const override;
  [[nodiscard]] DeviceMemory allocate(std::size_t bytes, Location location) override;
  void release(DeviceMemory memory, Location location) noexcept override;
  [[nodiscard]] PageSource* pages() noexcept override;
  [[nodiscard]] bool shares_storage_with_host() const noexcept override { return false; }
  [[nodiscard]] void* address(DeviceMemory memory) override;
  [[nodiscard]] std::shared_ptr<Program const> compile(ProgramSource const& source) override;
  [[nodiscard]] LinkCost link_cost() const noexcept override;
  [[nodiscard]] std::optional<LinkCost> configured_link(CopyDirection direction) const noexcept override;
  [[nodiscard]] std::optional<std::size_t> staging_threshold() const noexcept override {
    return options_.staging_threshold;
  }
  [[nodiscard]] bool batches_copies() const noexcept override { return options_.batches; }
  [[nodiscard]] bool copies_from(Device const& other) const noexcept override;

  [[nodiscard]] bool is_lost() const noexcept override { return !made_.inherited() && faults_.lost(); }

  [[nodiscard]] FaultPlan& faults() {
    made_.require("planning faults of a simulated device");
    return faults_;
  }
  [[nodiscard]] std::size_t peak_bytes() const;

  /// What each further piece of a command costs besides its bytes.
  static constexpr std::chrono::nanoseconds time_of_a_row{100};

  /// How fast, and how slow to start, commands are.
  [[nodiscard]] SimOptions const& options() const noexcept { return options_; }

  /// The address of `memory` for a command that reads it or writes parts of it. Throws DeviceError if it is not all
  /// live memory of this device.
  [[nodiscard]] std::byte* for_access(DeviceMemory memory, std::string_view call);

  /// Likewise for a command that overwrites all of it.
  [[nodiscard]] std::byte* for_overwrite(DeviceMemory memory, std::string_view call);

 protected:
  [[nodiscard]] std::unique_ptr<QueueBackend> make_queue() override;

 private:
  void take(std::size_t bytes);
  void check_live(DeviceMemory memory, std::string_view call) const;

  void take_for_pages(std::size_t bytes) override { take(bytes); }
  void give_back_from_pages(std::size_t bytes) noexcept override;
  void pages_created(std::uintptr_t base, std::size_t bytes) override { fresh_.add(base, bytes); }
  void pages_moved(std::uintptr_t from, std::uintptr_t to, std::size_t bytes) override { fresh_.move(from, to, bytes); }
  void pages_freed(std::uintptr_t base, std::size_t bytes) noexcept override { fresh_.remove(base, bytes); }

  MadeHere const made_{};
  SimOptions const options_;  ///< its fault plan is where the script began; `faults_` has what holds now
  FaultPlan faults_;
  FreshMemory fresh_;
  mutable std::mutex mutex_;
  std::size_t live_bytes_ = 0;  ///< allocations and pages
  std::size_t peak_bytes_ = 0;
  std::map<std::uintptr_t, std::size_t> allocations_;  ///< address to bytes
  HostPages pages_;
};

/// The error of a command that a simulated device did not carry out.
[[noreturn]] void throw_sim_error(std::string_view call, SimVerdict verdict);

/// The simulated device that is named by these options: made the first time, the same from then on. Thread-safe.
[[nodiscard]] Device& sim_with(SimOptions const& options);

/// Simulated device `index`, or null if there are not so many. Thread-safe.
[[nodiscard]] Device* find_sim(std::size_t index);

/// All simulated devices, in the order in which they were made. Thread-safe.
[[nodiscard]] std::vector<std::reference_wrapper<Device>> all_sims();

}  // namespace unimem::detail
