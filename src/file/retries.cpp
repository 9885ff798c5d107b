#include "file/retries.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

namespace unimem::detail {

bool Attempts::again(int error, Retries* retries) noexcept {
  constexpr unsigned most_refusals = 1'000;
  if (retries == nullptr) return (error == EINTR || error == EAGAIN) && ++failed_ < most_refusals;
  if (error != EINTR) {
    if (failed_ >= retries->limit_ || (error != EIO && error != EAGAIN)) return false;
    constexpr unsigned longest = 7;  // 128 ms
    std::this_thread::sleep_for(std::chrono::milliseconds(1U << std::min(failed_++, longest)));
  }
  retries->times_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void Attempts::came(bool short_of_all, Retries* retries) noexcept {
  failed_ = 0;
  if (short_of_all && retries != nullptr) retries->times_.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace unimem::detail
