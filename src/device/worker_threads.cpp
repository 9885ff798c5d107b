#include "device/worker_threads.hpp"

#include "core/fork.hpp"
#include "device/process_end.hpp"

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <set>

namespace unimem::detail {
namespace {

std::atomic<bool> forked{false};

/// Set before the roster is locked for the end: work that is waited for then, and wants another worker, must not wait
/// for the roster in its turn. Relaxed: it says no more than that.
std::atomic<bool> ending{false};

struct Roster {
  std::mutex mutex;
  std::set<BackgroundWorker*> workers;
};

/// Never destroyed: queues are closed by destructors of static objects, in any order.
Roster& roster() {
  static constinit PerProcess<Roster> instance;
  return instance.get();
}

void shut_all_down() {
  ending.store(true, std::memory_order_relaxed);  // who has missed it looks again under the lock
  // Under the lock, so that a queue closed by another thread meanwhile is not destroyed while it is being shut down.
  std::lock_guard const lock{roster().mutex};
  for (auto* const worker : roster().workers) worker->shut_down();
  auto const until = std::chrono::steady_clock::now() + exit_patience;
  for (auto* const worker : roster().workers) worker->await_quiet(until);
}

}  // namespace

bool enlist(BackgroundWorker& worker) {
  // Relaxed everywhere: the child has one thread, and it is the one that wrote.
  static Fork::Hook const tells{[]() noexcept { forked.store(true, std::memory_order_relaxed); }};
  [[maybe_unused]] static bool const registered = std::atexit(shut_all_down) == 0;
  if (ending.load(std::memory_order_relaxed)) return false;
  std::lock_guard const lock{roster().mutex};
  if (ending.load(std::memory_order_relaxed)) return false;
  return roster().workers.insert(&worker).second;
}

void discharge(BackgroundWorker& worker) noexcept {
  std::lock_guard const lock{roster().mutex};
  roster().workers.erase(&worker);
}

bool is_forked_child() noexcept {
  return forked.load(std::memory_order_relaxed);
}

}  // namespace unimem::detail
