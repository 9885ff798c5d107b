#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

// Waits for a number in memory that several processes map to change. (std::atomic::wait is for one process alone.)

namespace unimem::detail {

/// Waits while `word` is `seen`, for `patience` at most; may return earlier.
inline void wait_while(std::atomic<std::uint32_t>& word, std::uint32_t seen,
                       std::chrono::milliseconds patience) noexcept {
  auto const whole = std::chrono::floor<std::chrono::seconds>(patience);
  ::timespec const limit{whole.count(), static_cast<long>(std::chrono::nanoseconds(patience - whole).count())};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

inline void wake_all(std::atomic<std::uint32_t>& word) noexcept {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace unimem::detail
