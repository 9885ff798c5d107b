#pragma once

#include "core/sanitizers.hpp"

#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <thread>

namespace unimem {

/// Runs `work` on a thread for which the system locks no more than 64 KiB of memory. The limit does not bind whoever
/// has CAP_IPC_LOCK, as root has; capabilities belong to a thread, so this one gives it up. Means nothing under a
/// sanitizer, which makes mlock do nothing.
template <class Work>
void without_locking(Work const& work) {
  rlimit before{};
  auto const must = [](bool done) {
    if (!done) throw std::runtime_error("RLIMIT_MEMLOCK cannot be set");
  };
  must(getrlimit(RLIMIT_MEMLOCK, &before) == 0);
  auto const small = rlimit{std::min<rlim_t>(before.rlim_max, 64 << 10), before.rlim_max};
  must(setrlimit(RLIMIT_MEMLOCK, &small) == 0);
  std::thread{[&] {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    std::array<__user_cap_data_struct, 2> sets{};
    if (syscall(SYS_capget, &header, sets.data()) == 0) {
      sets[0].effective &= ~(1U << CAP_IPC_LOCK);
      syscall(SYS_capset, &header, sets.data());
    }
    work();
  }}.join();
  must(setrlimit(RLIMIT_MEMLOCK, &before) == 0);
}

inline constexpr bool locks_memory = !detail::is_sanitized;

}  // namespace unimem
