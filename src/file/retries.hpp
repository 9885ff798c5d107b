#pragma once

#include <atomic>
#include <cstdint>

namespace unimem::detail {

/// How often calls to the system that failed for a reason that may pass are tried again, and how often they were.
/// Thread-safe.
class Retries {
 public:
  /// At most `limit` times one after the other for the same bytes.
  explicit Retries(unsigned limit) noexcept : limit_(limit) {}

  /// Whether a call that failed with `error`, after `failed` others for the same bytes, is to be tried again; waits
  /// longer each time if so. EIO and EAGAIN may pass.
  [[nodiscard]] bool again(int error, unsigned failed) noexcept;
  /// A call was interrupted or did less than it was asked for, and another does the rest.
  void went_on() noexcept { times_.fetch_add(1, std::memory_order_relaxed); }

  [[nodiscard]] std::uint64_t times() const noexcept { return times_.load(std::memory_order_relaxed); }

 private:
  unsigned limit_;
  std::atomic<std::uint64_t> times_{0};
};

}  // namespace unimem::detail
