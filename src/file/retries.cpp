#include "file/retries.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

namespace unimem::detail {

bool Retries::again(int error, unsigned failed) noexcept {
  if (failed >= limit_ || (error != EIO && error != EAGAIN)) return false;
  times_.fetch_add(1, std::memory_order_relaxed);
  constexpr unsigned longest = 7;  // 128 ms
  std::this_thread::sleep_for(std::chrono::milliseconds(1U << std::min(failed, longest)));
  return true;
}

}  // namespace unimem::detail
