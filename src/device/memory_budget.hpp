#pragma once

#include <atomic>
#include <cstddef>

namespace unimem::detail {

/// How much of one piece of hardware is handed out. Drivers over-commit (PoCL aborts the process when memory really
/// ends), so the library keeps the account itself; all devices opened on the same hardware share one. Thread-safe.
class MemoryBudget {
 public:
  explicit MemoryBudget(std::size_t capacity) noexcept : capacity_(capacity) {}

  /// Books `bytes` and returns true, or changes nothing.
  [[nodiscard]] bool take(std::size_t bytes) noexcept {
    auto live = live_.load(std::memory_order_relaxed);  // a count alone: no other memory is published through it
    do {
      if (bytes > capacity_ - live) return false;
    } while (!live_.compare_exchange_weak(live, live + bytes, std::memory_order_relaxed));
    return true;
  }

  void give_back(std::size_t bytes) noexcept { live_.fetch_sub(bytes, std::memory_order_relaxed); }

  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
  [[nodiscard]] std::size_t live() const noexcept { return live_.load(std::memory_order_relaxed); }

 private:
  std::size_t capacity_;
  std::atomic<std::size_t> live_{0};
};

}  // namespace unimem::detail
