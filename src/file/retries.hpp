#pragma once

#include <atomic>
#include <cstdint>

namespace unimem::detail {

/// How often reads that failed for a reason that may pass (EIO, EAGAIN) are tried again, and how often they were.
/// Thread-safe.
class Retries {
 public:
  /// At most `limit` times one after the other for the same bytes.
  explicit Retries(unsigned limit) noexcept : limit_(limit) {}

  /// Reads that failed, were interrupted or came short, and were gone on with. Relaxed: a count alone.
  [[nodiscard]] std::uint64_t times() const noexcept { return times_.load(std::memory_order_relaxed); }

 private:
  friend class Attempts;

  unsigned limit_;
  std::atomic<std::uint64_t> times_{0};
};

/// Decides after each call for some bytes whether there is to be another. Used by one thread at a time.
class Attempts {
 public:
  /// Whether a call that failed with `error` is to be made again. With `retries`: without a limit when it was
  /// interrupted, else as often as they say, after a wait that is longer each time. Null: up to a thousand times in a
  /// row where the system asks for that (EINTR, EAGAIN).
  [[nodiscard]] bool again(int error, Retries* retries) noexcept;
  /// A call brought some of the bytes; `short_of_all`: another does the rest.
  void came(bool short_of_all, Retries* retries) noexcept;

 private:
  unsigned failed_ = 0;  ///< since the last bytes came
};

}  // namespace unimem::detail
