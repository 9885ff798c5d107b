#include <unimem/core/size.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "manager/manager_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>

// What a manager knows of the use of its memory, and where it puts new memory by that.

namespace unimem {
namespace {

/// Of a device's memory; where less is free, that is worth a hint.
constexpr std::size_t short_of = 10;

PlacementMachine machine_of(Device const& device) {
  PlacementMachine machine;
  machine.shares_host_memory = device.shares_storage_with_host();
  machine.has_unified_memory = device.has_unified_memory();
  return machine;
}

}  // namespace

PlacementDecision MemoryManager::place(Device& device, PlacementQuestion const& question, Name name) {
  auto machine = machine_of(device);
  if (question.asked != Placement::automatic) return decide_placement(question, machine);
  if (machine.shares_host_memory) {
    // A device that reaches all of the host's memory needs none of a special kind.
    if (device.reaches_host_memory()) machine.has_unified_memory = false;
    return decide_placement(question, machine);
  }
  // What all buffers without a name were used for says nothing of any of them.
  auto const use = name.empty() ? RecordedUse{} : state().book->use_of(name);
  if (use.copies() != 0) {
    machine.to_device = links().to(device);
    machine.to_host = links().from(device);
  }
  auto const decision = decide_placement(question, machine, use);
  if (location_of(decision.placement) != Location::device) return decision;
  machine.available_bytes = available_memory(device);  // only now: it looks at every pool
  return decide_placement(question, machine, use);
}

PlacementRecommendations MemoryManager::recommendations(Device& device) {
  auto machine = machine_of(device);
  if (device.reaches_host_memory()) machine.has_unified_memory = false;
  auto const use = state().book->use_by_size();
  if (use.small.copies() + use.medium.copies() + use.large.copies() != 0) {
    machine.to_device = links().to(device);
    machine.to_host = links().from(device);
  }
  machine.available_bytes = available_memory(device);
  auto result = recommend_placements(machine, use);
  auto const total = total_memory(device);
  if (machine.available_bytes < total / short_of) {
    result.hints.push_back(fmt::format("{}: {} of {} are free: release what is not used, or raise the limit",
                                       device.id(), format_size(machine.available_bytes), format_size(total)));
  }
  auto const counts = statistics();
  if (counts.reclaims != 0) {
    result.hints.push_back(fmt::format("{} buffers' copies were evicted to make room, {} in all", counts.reclaims,
                                       format_size(counts.reclaimed_bytes)));
  }
  if (counts.refused_pinnings != 0) {
    result.hints.push_back(
        fmt::format("locked memory was refused {} times: ordinary host memory serves, and copies of "
                    "it are slower",
                    counts.refused_pinnings));
  }
  if (counts.missing_unified != 0) {
    result.hints.push_back(
        fmt::format("unified memory was asked for {} times where there is none", counts.missing_unified));
  }
  return result;
}

Usage MemoryManager::usage() const {
  return state().book->usage();
}

std::vector<LiveAllocation> MemoryManager::live() const {
  return state().book->live();
}

LeakReport MemoryManager::leak_report() const {
  LeakReport report;
  report.allocations = live();
  std::ranges::sort(report.allocations, [](LiveAllocation const& a, LiveAllocation const& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.buffer < b.buffer;
  });
  for (auto const& one : report.allocations) report.bytes += one.bytes;
  return report;
}

StackOptions const& MemoryManager::stacks() const noexcept {
  return state_->options.leaks.stacks;
}

detail::UsageBook& MemoryManager::usage_book() noexcept {
  return *state_->book;
}

void MemoryManager::note_refused_pinning() noexcept {
  state_->refused_pinnings.fetch_add(1, std::memory_order_relaxed);  // a count alone
}

void MemoryManager::note_missing_unified() noexcept {
  state_->missing_unified.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace unimem
