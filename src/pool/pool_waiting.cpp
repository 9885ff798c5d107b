#include <unimem/device/timed_wait.hpp>

#include "device/current_task.hpp"
#include "device/watched_wait.hpp"
#include "pool/mutants.hpp"
#include "pool/pool_core.hpp"

#include <chrono>
#include <vector>

// How a thread waits for memory of a pool that is not to be had yet. In a watched thread each of these waits may end
// with WaitInterrupted, without the lock and with nothing changed.

namespace unimem::detail {
namespace {

void add_pending(Block const& block, std::vector<Event>& events) {
  for (auto const event : {block.inherited, block.last_use}) {
    if (!event.ready()) events.push_back(event);
  }
}

}  // namespace

bool PoolCore::await_transit(Lock& lock) {
  if ((growing_ == 0 && returning_ == 0) || UNIMEM_MUTANT(transit_overlooked)) return false;
  auto const changed = [this, seen = changes_] { return changes_ != seen; };
  LongWait known{settlers_.newest()};  // for threads that wait for this one
  bool ends = true;
  ++waiting_;
  if (CurrentTask::may_wait_for_any()) {
    WatchedWait watch{"waiting for memory that other threads give back"};
    while (!changed_.wait_until(lock, watch.next(), changed)) {
      --waiting_;
      lock.unlock();
      watch.look();
      lock.lock();
      ++waiting_;
    }
  } else {
    constexpr std::chrono::milliseconds step{10};  // a circle may close later, and is then found so soon
    // Asked first: threads that try in vain wake each other, and one of them would never have waited for so long.
    do {
      ends = !known.never_ends();
    } while (ends && !changed_.wait_for(lock, step, changed));
  }
  --waiting_;
  return ends;
}

bool PoolCore::await_watched(Lock& lock, std::vector<Event> const& pending) {
  if (pending.empty()) return false;
  lock.unlock();
  for (auto const event : pending) wait_watched(event);
  lock.lock();
  return true;
}

bool PoolCore::await_work_of(Lock& lock, Block const& block) {
  std::vector<Event> pending;
  if (is_watched()) add_pending(block, pending);
  return await_watched(lock, pending);
}

bool PoolCore::await_oldest(Lock& lock, std::size_t bytes) {
  if (!is_watched()) return false;
  std::vector<Event> pending;
  std::size_t found = 0;
  for (auto const& block : free_.by_age()) {
    if (found >= bytes) break;
    found += block.capacity();
    add_pending(block, pending);
  }
  return await_watched(lock, pending);
}

}  // namespace unimem::detail
