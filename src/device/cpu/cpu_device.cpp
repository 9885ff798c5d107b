#include <unimem/core/error.hpp>
#include <unimem/core/size.hpp>

#include "device/backends.hpp"
#include "device/cpu/cpu_device.hpp"
#include "device/cpu/cpu_queue.hpp"
#include "device/cpu/machine.hpp"
#include "device/cpu/thread_pool.hpp"
#include "device/host_memory.hpp"
#include "device/host_pinning.hpp"
#include "device/host_program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace unimem::detail {

CpuDevice::CpuDevice() : Device(Backend::cpu, "cpu"), pages_(*this) {
  info_.name = processor_name();
  info_.vendor = processor_vendor();
  info_.driver = system_release();
  info_.total_bytes = usable_memory_bytes();
  info_.max_allocation = info_.total_bytes;
  info_.alignment = small_alignment;
  info_.compute_units = static_cast<unsigned>(ThreadPool::shared().threads());
  info_.integrated = true;
  info_.runs_host_form = true;
}

MemoryInfo CpuDevice::memory_info() const {
  auto const left = info_.total_bytes - live_bytes_.load(std::memory_order_relaxed);
  return {std::min(left, available_memory_bytes()), info_.total_bytes};
}

void CpuDevice::take(std::size_t bytes, Location location) {
  auto live = live_bytes_.load(std::memory_order_relaxed);
  do {
    if (bytes > info_.total_bytes - live) {
      OutOfMemory::Facts facts;
      facts.where = fmt::format("{} {}", id(), to_string(location));
      facts.requested = bytes;
      facts.limit = info_.total_bytes;
      facts.live = live;
      facts.largest_free = facts.device_free = info_.total_bytes - live;
      facts.reason = "the machine's memory, or its container's limit, is reached";
      throw OutOfMemory(std::move(facts));
    }
  } while (!live_bytes_.compare_exchange_weak(live, live + bytes, std::memory_order_relaxed));
}

DeviceMemory CpuDevice::allocate(std::size_t bytes, Location location) {
  if (bytes == 0) throw InvalidArgument("bytes", "0", "at least 1");
  take(bytes, location);
  // Locks do not nest: pinned blocks that shared a page would unlock each other.
  bool const pinned = location == Location::pinned;
  auto* const memory = take_host_memory(bytes, pinned);
  std::string refusal;
  if (memory == nullptr) {
    refusal = fmt::format("the system refused: {}", std::strerror(errno));
  } else if (pinned) {
    refusal = HostPinning::instance().pin(memory, bytes);
    if (!refusal.empty()) give_back_host_memory(memory, bytes, pinned);
  }
  if (!refusal.empty()) {
    auto const live = live_bytes_.fetch_sub(bytes, std::memory_order_relaxed) - bytes;
    OutOfMemory::Facts facts;
    facts.where = fmt::format("{} {}", id(), to_string(location));
    facts.requested = bytes;
    facts.limit = info_.total_bytes;
    facts.live = live;
    facts.device_free = available_memory_bytes();
    facts.reason = std::move(refusal);
    throw OutOfMemory(std::move(facts));
  }
  return {reinterpret_cast<std::uintptr_t>(memory), 0, bytes};
}

void CpuDevice::release(DeviceMemory memory, Location location) noexcept {
  auto* const address = reinterpret_cast<void*>(memory.object);
  bool const pinned = location == Location::pinned;
  if (pinned) HostPinning::instance().unpin(address);
  give_back_host_memory(address, memory.bytes, pinned);
  live_bytes_.fetch_sub(memory.bytes, std::memory_order_relaxed);
}

PageSource* CpuDevice::pages() noexcept {
  return HostPages::supported() ? &pages_ : nullptr;
}

void* CpuDevice::address(DeviceMemory memory) {
  return reinterpret_cast<void*>(memory.object + memory.offset);
}

std::shared_ptr<Program const> CpuDevice::compile(ProgramSource const& source) {
  return std::make_shared<HostProgram const>(source, *this);
}

std::unique_ptr<QueueBackend> CpuDevice::make_queue() {
  return std::make_unique<CpuQueue>(*this);
}

std::unique_ptr<Device> make_cpu_device() {
  return std::make_unique<CpuDevice>();
}

}  // namespace unimem::detail
