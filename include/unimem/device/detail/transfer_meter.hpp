#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

namespace unimem {

/// Adds up how long copies took, for the buffer that asked for them: devices count all. It travels with the copies
/// that it is to count, which may well end after their submitter is gone, and is counted into where the device counts
/// itself: when the bytes have moved.
///
/// Thread-safe.
class TransferMeter {
 public:
  /// A copy has ended, or several at once; `took`: as `Device::count_upload` is told.
  void count(std::optional<std::chrono::nanoseconds> took, std::size_t copies = 1) noexcept {
    if (took) {
      nanoseconds_.fetch_add(static_cast<std::uint64_t>(took->count()), std::memory_order_relaxed);
    } else {
      untimed_.fetch_add(copies, std::memory_order_relaxed);
    }
  }

  /// The time of all copies whose time is known.
  [[nodiscard]] std::uint64_t nanoseconds() const noexcept { return nanoseconds_.load(std::memory_order_relaxed); }
  /// How many there were whose time is not.
  [[nodiscard]] std::uint64_t untimed() const noexcept { return untimed_.load(std::memory_order_relaxed); }

 private:
  // Relaxed: counts alone, nothing else is published through them.
  std::atomic<std::uint64_t> nanoseconds_{0}, untimed_{0};
};

/// What a copy carries along; null: the device alone counts it.
using SharedMeter = std::shared_ptr<TransferMeter>;

}  // namespace unimem
