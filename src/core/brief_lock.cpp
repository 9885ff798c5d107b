#include "core/brief_lock.hpp"

#include <thread>

namespace unimem::detail {

void BriefLock::wait() noexcept {
  constexpr int looks = 64;  // its holder is through in a fraction of that, unless it was put to sleep inside
  int look = 0;
  do {
    while (held_.load(std::memory_order_relaxed) && look < looks) ++look;
    if (look >= looks) std::this_thread::yield();
    ++look;
  } while (held_.exchange(true, std::memory_order_acquire));
}

}  // namespace unimem::detail
