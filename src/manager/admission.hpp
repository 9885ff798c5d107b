#pragma once

#include <unimem/manager/memory_manager.hpp>

#include "device/watched_wait.hpp"
#include "manager/access_context.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

namespace unimem::detail {

/// Between two tries at most.
inline constexpr std::chrono::microseconds longest_pause{1'000};

/// Runs `work(context)`, an operation that waits for nothing but work under way, and returns whether it is through. If
/// it is not, it holds no lock, and is run again when that work has ended.
template <class Work>
void run_behind_work(AccessContext& context, Work const& work) {
  while (!work(context)) context.await_work();
}

/// Runs `work(context)`, an operation that may take memory of a device or come behind work, and returns whether it was
/// admitted. If it was not, it has changed nothing that is not so for others, too, and holds no lock; it is run again
/// when that work has ended, or in its turn, when others have moved on.
template <class Work>
void run_admitted(Work const& work) {
  AccessContext context;
  if (work(context)) return;
  WatchedWait watch{"waiting for others to make room"};
  for (std::chrono::microseconds pause{10};; pause = std::min(2 * pause, longest_pause)) {
    if (context.awaits_work()) {
      context.await_work();
      if (work(context)) return;
      continue;
    }
    auto const what = context.must_wait();
    context.try_again();
    if (what.manager->run_in_turn(context, *what.device, work)) return;
    if (context.awaits_work()) continue;
    // Memory of another device or manager is missing, which another turn is about.
    watch.look();
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace unimem::detail
