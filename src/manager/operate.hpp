#pragma once

#include <unimem/manager/memory_manager.hpp>

#include "manager/turns.hpp"

namespace unimem::detail {

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
  operation.begin_again();
  manager->in_turn(*full, work);
}

}  // namespace unimem::detail
