#pragma once

#include <unimem/manager/memory_manager.hpp>

#include "device/watched_wait.hpp"
#include "manager/turns.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

namespace unimem::detail {

/// Between two tries at most.
inline constexpr std::chrono::microseconds longest_pause{1'000};

/// Runs an operation that may take memory of a device: once more, in its turn, whenever other operations were in its
/// way. It takes the guards it needs itself, and leaves everything as it was when it throws.
template <class Work>
void operate(Work const& work) {
  Operation operation;
  if (!operation.waits()) return work();
  Device* full = nullptr;
  MemoryManager* manager = nullptr;
  try {
    return work();
  } catch (Crowded const& crowded) {
    full = &crowded.device();
    manager = &crowded.manager();
  }
  WatchedWait watch{"waiting for others to make room"};
  for (std::chrono::microseconds pause{10};; pause = std::min(2 * pause, longest_pause)) {
    operation.begin_again();
    try {
      return manager->in_turn(*full, work);
    } catch (Crowded const& crowded) {  // in another manager's memory, which another turn is about
      full = &crowded.device();
      manager = &crowded.manager();
    }
    watch.look();
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace unimem::detail
