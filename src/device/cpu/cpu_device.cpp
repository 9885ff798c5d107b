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

namespace {

std::string limit_of(ContainerLimit::Standing const& container) {
  return fmt::format("the container's memory limit of {} ({})", format_size(container.limit), container.group.string());
}

}  // namespace

CpuDevice::CpuDevice(ContainerLimit container)
    : Device(Backend::cpu, "cpu"),
      container_(std::move(container)),
      resident_before_(private_resident_bytes()),
      pages_(*this) {
  info_.name = processor_name();
  info_.vendor = processor_vendor();
  info_.driver = system_release();
  info_.total_bytes = physical_memory_bytes();
  if (auto const smallest = container_.smallest(); smallest && smallest->limit < info_.total_bytes) {
    info_.total_bytes = smallest->limit;
    info_.limited_by = limit_of(*smallest);
  }
  info_.max_allocation = info_.total_bytes;
  info_.alignment = small_alignment;
  info_.compute_units = static_cast<unsigned>(ThreadPool::shared().threads());
  info_.integrated = true;
  info_.runs_host_form = true;
}

MemoryInfo CpuDevice::memory_info() const {
  auto const left = info_.total_bytes - live_bytes_.load(std::memory_order_relaxed);
  return {std::min({left, available_memory_bytes(), headroom()}), info_.total_bytes};
}

std::size_t CpuDevice::headroom() const {
  auto const standing = container();
  return standing ? standing->room() : Device::headroom();
}

std::optional<ContainerLimit::Standing> CpuDevice::container() const {
  if (!container_.exists()) return std::nullopt;
  auto standing = container_.tightest();
  if (!standing) return std::nullopt;
  // A page counts once it is touched. What was handed out and is not yet there will be, and the tables that map it.
  auto const live = live_bytes_.load(std::memory_order_relaxed);
  auto const resident = private_resident_bytes();
  auto const touched = resident - std::min(resident, resident_before_);
  auto const coming = live - std::min(live, touched);
  standing->used += coming + coming / 512;
  return standing;
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
      facts.reason = fmt::format("{} is reached", info_.limited_by.empty() ? "the machine's memory" : info_.limited_by);
      throw OutOfMemory(std::move(facts));
    }
  } while (!live_bytes_.compare_exchange_weak(live, live + bytes, std::memory_order_relaxed));
  if (container_.exists()) ask_container(bytes, location);
}

void CpuDevice::ask_container(std::size_t bytes, Location location) {
  for (auto unasked = unasked_bytes_.load(std::memory_order_relaxed); bytes <= unasked;) {
    if (unasked_bytes_.compare_exchange_weak(unasked, unasked - bytes, std::memory_order_relaxed)) return;
  }
  auto const standing = container();
  if (!standing) return;
  if (standing->used <= standing->limit) {
    unasked_bytes_.store(standing->room() / 64, std::memory_order_relaxed);
    return;
  }
  OutOfMemory::Facts facts;
  facts.where = fmt::format("{} {}", id(), to_string(location));
  facts.requested = bytes;
  facts.limit = standing->limit;
  facts.live = live_bytes_.fetch_sub(bytes, std::memory_order_relaxed) - bytes;
  auto const used = standing->used - std::min(standing->used, bytes);
  facts.largest_free = facts.device_free = standing->limit - std::min(standing->limit, used);
  facts.reason = fmt::format("{} leaves {}", limit_of(*standing), format_size(facts.device_free));
  throw OutOfMemory(std::move(facts));
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
