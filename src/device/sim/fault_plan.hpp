#pragma once

#include <unimem/device/sim.hpp>

#include <cstdint>
#include <mutex>

namespace unimem::detail {

/// What a simulated device can be asked to do wrong.
enum class SimCommand : std::uint8_t { upload, download, copy, fill, run };

/// How a command is to end.
enum class SimVerdict : std::uint8_t { succeed, fail, lost };

/// The script of what goes wrong, and how far it has got.
///
/// Calls are counted when they are made and not when their turn comes: with several queues the order of turns differs
/// from run to run, the order of calls is the test's own.
///
/// Thread-safe.
class FaultPlan {
 public:
  explicit FaultPlan(SimOptions const& options) : plan_(options) {}

  /// Starts another script, counting from 1 again. A lost device is found again unless the new script loses it too.
  void replace(SimOptions const& options);

  /// Whether the script has come to where the device is lost.
  [[nodiscard]] bool lost() const noexcept {
    std::lock_guard const lock{mutex_};
    return lost_;
  }

  /// The verdict on the next allocation.
  [[nodiscard]] SimVerdict next_allocation();

  /// The verdict on the next command of a queue.
  [[nodiscard]] SimVerdict next(SimCommand command);

 private:
  mutable std::mutex mutex_;
  SimOptions plan_;
  std::uint64_t allocations_ = 0;
  std::uint64_t uploads_ = 0;
  std::uint64_t downloads_ = 0;
  std::uint64_t runs_ = 0;
  std::uint64_t commands_ = 0;
  std::uint64_t calls_ = 0;
  bool lost_ = false;
};

}  // namespace unimem::detail
