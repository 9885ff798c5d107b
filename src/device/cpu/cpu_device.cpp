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
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>

namespace unimem::detail {

CpuDevice::CpuDevice(ContainerLimit container)
    : Device(Backend::cpu, "cpu"), container_(std::move(container)), least_resident_(private_resident_bytes()) {
  info_.name = processor_name();
  info_.vendor = processor_vendor();
  info_.driver = system_release();
  info_.total_bytes = physical_memory_bytes();
  if (auto const smallest = container_.smallest(); smallest && smallest->limit < info_.total_bytes) {
    info_.total_bytes = smallest->limit;
    info_.limited_by = smallest->text();
  }
  info_.max_allocation = info_.total_bytes;
  info_.alignment = small_alignment;
  info_.compute_units = static_cast<unsigned>(ThreadPool::shared().threads());
  info_.integrated = true;
  info_.runs_host_form = true;
  static_cast<void>(own_pages());  // made here, where it may fail
}

CpuDevice::~CpuDevice() {
  pages_.end();
  asking_.end();
}

// Relaxed, here and below: counts alone, no memory is published through them.
MemoryInfo CpuDevice::memory_info() const {
  auto const left = info_.total_bytes - live_bytes_.load(std::memory_order_relaxed);
  return {std::min({left, available_memory_bytes(), headroom()}), info_.total_bytes};
}

std::size_t CpuDevice::headroom() const {
  auto const standing = container(0);
  return standing ? standing->room() : Device::headroom();
}

std::size_t CpuDevice::touched_bytes() const noexcept {
  auto const elsewhere = bytes_elsewhere();
  auto const resident = private_resident_bytes();
  if (resident == 0) return elsewhere;  // the system does not say
  auto least = least_resident_.load(std::memory_order_relaxed);
  while (resident < least && !least_resident_.compare_exchange_weak(least, resident, std::memory_order_relaxed)) {
  }
  return resident - std::min(resident, least) + elsewhere;
}

std::optional<ContainerLimit::Standing> CpuDevice::container(std::size_t more) const {
  if (!container_.exists()) return std::nullopt;
  auto standing = container_.tightest();
  if (!standing) return std::nullopt;
  // A page counts once it is touched. What was handed out and is not yet there will be, what is asked for as well, and
  // the tables that map it.
  auto const live = live_bytes_.load(std::memory_order_relaxed);
  auto const coming = more + live - std::min(live, touched_bytes());
  standing->used += coming + coming / 512;
  return standing;
}

void CpuDevice::take(std::size_t bytes, Location location) {
  if (!container_.exists() || is_unasked(bytes)) return count_live(bytes, location);
  // One after the other, and counted only when granted: of two that ask at once, and do not both fit, the first gets
  // what it asked for, and neither is refused for what the other was not given.
  std::lock_guard const lock{asking_.get()};
  check_capacity(bytes, location, live_bytes_.load(std::memory_order_relaxed));
  auto const standing = container(bytes);
  if (standing && standing->used > standing->limit) {
    OutOfMemory::Facts facts;
    facts.where = fmt::format("{} {}", id(), to_string(location));
    facts.requested = bytes;
    facts.limit = standing->limit;
    facts.live = live_bytes_.load(std::memory_order_relaxed);
    auto const used = standing->used - std::min(standing->used, bytes);
    facts.largest_free = facts.device_free = standing->limit - std::min(standing->limit, used);
    facts.reason = fmt::format("{} leaves {}", standing->text(), format_size(facts.device_free));
    throw OutOfMemory(std::move(facts));
  }
  count_live(bytes, location);
  if (standing) unasked_bytes_.store(standing->room() / 64, std::memory_order_relaxed);
}

bool CpuDevice::is_unasked(std::size_t bytes) noexcept {
  auto unasked = unasked_bytes_.load(std::memory_order_relaxed);
  while (bytes <= unasked) {
    if (unasked_bytes_.compare_exchange_weak(unasked, unasked - bytes, std::memory_order_relaxed)) return true;
  }
  return false;
}

void CpuDevice::check_capacity(std::size_t bytes, Location location, std::size_t live) const {
  if (bytes <= info_.total_bytes - live) return;
  OutOfMemory::Facts facts;
  facts.where = fmt::format("{} {}", id(), to_string(location));
  facts.requested = bytes;
  facts.limit = info_.total_bytes;
  facts.live = live;
  facts.largest_free = facts.device_free = info_.total_bytes - live;
  facts.reason = fmt::format("{} is reached", info_.limited_by.empty() ? "the machine's memory" : info_.limited_by);
  throw OutOfMemory(std::move(facts));
}

void CpuDevice::count_live(std::size_t bytes, Location location) {
  auto live = live_bytes_.load(std::memory_order_relaxed);
  do {
    check_capacity(bytes, location, live);
  } while (!live_bytes_.compare_exchange_weak(live, live + bytes, std::memory_order_relaxed));
}

DeviceMemory CpuDevice::allocate(std::size_t bytes, Location location) {
  return allocate(bytes, location, false);
}

DeviceMemory CpuDevice::allocate_undumped(std::size_t bytes, Location location) {
  return allocate(bytes, location, true);
}

DeviceMemory CpuDevice::allocate(std::size_t bytes, Location location, bool undumped) {
  if (bytes == 0) throw InvalidArgument("bytes", "0", "at least 1");
  take(bytes, location);
  // Locks do not nest: pinned blocks that shared a page would unlock each other.
  bool const pinned = location == Location::pinned, own_pages = pinned || undumped;
  auto* const memory = take_host_memory(bytes, own_pages);
  std::string refusal;
  if (memory == nullptr || (undumped && !leave_out_of_dumps(memory, bytes))) {
    refusal = fmt::format("the system refused: {}", std::strerror(errno));
  } else if (pinned) {
    refusal = HostPinning::instance().pin(memory, bytes);
  }
  if (memory != nullptr && !refusal.empty()) give_back_host_memory(memory, bytes, own_pages);
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
  release(memory, location, location == Location::pinned);
}

void CpuDevice::release_undumped(DeviceMemory memory, Location location) noexcept {
  release(memory, location, true);
}

void CpuDevice::release(DeviceMemory memory, Location location, bool own_pages) noexcept {
  auto* const address = reinterpret_cast<void*>(memory.object);
  if (location == Location::pinned) HostPinning::instance().unpin(address);
  give_back_host_memory(address, memory.bytes, own_pages);
  live_bytes_.fetch_sub(memory.bytes, std::memory_order_relaxed);
}

HostPages& CpuDevice::own_pages() {
  PageOwner& owner = *this;
  return pages_.get([&owner] { return std::make_unique<HostPages>(owner); });
}

PageSource* CpuDevice::pages() noexcept {
  if (!HostPages::supported()) return nullptr;
  try {
    return &own_pages();
  } catch (std::bad_alloc const&) {  // a forked child without memory: its pools go without pages
    return nullptr;
  }
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
