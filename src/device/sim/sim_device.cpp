#include <unimem/core/build.hpp>
#include <unimem/core/error.hpp>
#include <unimem/core/log.hpp>

#include "device/cpu/thread_pool.hpp"
#include "device/host_memory.hpp"
#include "device/host_program.hpp"
#include "device/sim/sim_device.hpp"
#include "device/sim/sim_queue.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <utility>

namespace unimem::detail {
namespace {

void check_bandwidth(char const* name, double value) {
  if (!(value >= 0) || std::isinf(value)) {
    throw InvalidArgument(name, fmt::format("{}", value), "bytes per second, or 0 for as fast as memory");
  }
}

void check(SimOptions const& options) {
  if (options.memory_bytes == 0) throw InvalidArgument("memory_bytes", "0", "at least 1");
  check_bandwidth("upload_bytes_per_second", options.upload_bytes_per_second);
  check_bandwidth("download_bytes_per_second", options.download_bytes_per_second);
  check_bandwidth("copy_bytes_per_second", options.copy_bytes_per_second);
  if (options.latency < std::chrono::nanoseconds{0}) {
    throw InvalidArgument("latency", fmt::format("{} ns", options.latency.count()), "0 or more");
  }
}

struct SimError {
  std::int64_t code;
  char const* name;
};
constexpr SimError fault{1, "SIM_FAULT"}, lost{2, "DEVICE_LOST"}, illegal_address{3, "ILLEGAL_ADDRESS"};

[[noreturn]] void raise(std::string_view call, SimError error) {
  throw DeviceError("sim", std::string(call), error.code, error.name);
}

}  // namespace

SimDevice::SimDevice(std::string id, SimOptions const& options)
    : Device(Backend::sim, std::move(id)), options_(options), faults_(options), pages_(*this) {
  check(options);
  info_.name = "simulated device";
  info_.vendor = "unimem";
  info_.driver = std::string(version());
  info_.total_bytes = options.memory_bytes;
  info_.max_allocation = options.memory_bytes;
  info_.alignment = small_alignment;
  info_.compute_units = static_cast<unsigned>(ThreadPool::shared().threads());
  info_.runs_host_form = true;
}

MemoryInfo SimDevice::memory_info() const {
  made_.require("asking what memory a simulated device has");
  std::lock_guard const lock{mutex_};
  return {info_.total_bytes - live_bytes_, info_.total_bytes};
}

std::size_t SimDevice::peak_bytes() const {
  made_.require("asking what memory a simulated device had");
  std::lock_guard const lock{mutex_};
  return peak_bytes_;
}

void SimDevice::take(std::size_t bytes) {
  made_.require("memory of a simulated device");
  auto const verdict = faults_.next_allocation();
  if (verdict == SimVerdict::lost) raise("allocate", lost);
  std::lock_guard const lock{mutex_};
  auto const left = info_.total_bytes - live_bytes_;
  if (verdict == SimVerdict::succeed && bytes <= left) {
    live_bytes_ += bytes;
    peak_bytes_ = std::max(peak_bytes_, live_bytes_);
    return;
  }
  OutOfMemory::Facts facts;
  facts.where = fmt::format("{} {}", id(), to_string(Location::device));
  facts.requested = bytes;
  facts.limit = info_.total_bytes;
  facts.live = live_bytes_;
  facts.largest_free = facts.device_free = left;
  facts.reason = verdict == SimVerdict::fail ? "the fault plan says so" : "the device's capacity is reached";
  throw OutOfMemory(std::move(facts));
}

void SimDevice::give_back_from_pages(std::size_t bytes) noexcept {
  std::lock_guard const lock{mutex_};
  live_bytes_ -= bytes;
}

DeviceMemory SimDevice::allocate(std::size_t bytes, Location location) {
  if (bytes == 0) throw InvalidArgument("bytes", "0", "at least 1");
  if (location != Location::device) {
    throw UnsupportedOperation(fmt::format("{} memory", to_string(location)), std::string(id()),
                               "a simulated device has memory of its own alone");
  }
  take(bytes);
  auto* const memory = take_host_memory(bytes);
  if (memory == nullptr) {
    OutOfMemory::Facts facts;
    facts.where = fmt::format("{} {}", id(), to_string(location));
    facts.requested = bytes;
    facts.limit = info_.total_bytes;
    facts.reason = fmt::format("the host has no addresses for it: {}", std::strerror(errno));
    give_back_from_pages(bytes);
    facts.device_free = memory_info().free_bytes;
    throw OutOfMemory(std::move(facts));
  }
  auto const base = reinterpret_cast<std::uintptr_t>(memory);
  try {
    {
      std::lock_guard const lock{mutex_};
      allocations_.emplace(base, bytes);
    }
    fresh_.add(base, bytes);
  } catch (...) {  // std::bad_alloc
    {
      std::lock_guard const lock{mutex_};
      allocations_.erase(base);
    }
    give_back_host_memory(memory, bytes);
    give_back_from_pages(bytes);
    throw;
  }
  return {base, 0, bytes};
}

void SimDevice::release(DeviceMemory memory, Location location) noexcept {
  if (made_.inherited()) return;
  {
    std::lock_guard const lock{mutex_};
    auto const found = allocations_.find(memory.object);
    bool const ours = found != allocations_.end() && found->second == memory.bytes && memory.offset == 0;
    if (!ours || location != Location::device) {
      log(LogLevel::error, fmt::format("{}: release of {} bytes at {:#x}, which is no live allocation; ignored", id(),
                                       memory.bytes, memory.object));
      assert(false && "release of what is no live allocation");
      return;
    }
    allocations_.erase(found);
    live_bytes_ -= memory.bytes;
  }
  fresh_.remove(memory.object, memory.bytes);
  give_back_host_memory(reinterpret_cast<void*>(memory.object), memory.bytes);
}

PageSource* SimDevice::pages() noexcept {
  return HostPages::supported() ? &pages_ : nullptr;
}

void SimDevice::check_live(DeviceMemory memory, std::string_view call) const {
  if (memory.empty()) return;  // no byte of it can be touched
  made_.require("memory of a simulated device");
  auto const begin = memory.object + memory.offset;
  {
    std::lock_guard const lock{mutex_};
    if (auto const after = allocations_.upper_bound(begin); after != allocations_.begin()) {
      auto const& [base, bytes] = *std::prev(after);
      if (begin - base < bytes && memory.bytes <= bytes - (begin - base)) return;
    }
  }
  if (!pages_.is_mapped(begin, memory.bytes)) raise(call, illegal_address);
}

std::byte* SimDevice::for_access(DeviceMemory memory, std::string_view call) {
  check_live(memory, call);
  fresh_.before_access(memory.object + memory.offset, memory.bytes);
  return reinterpret_cast<std::byte*>(memory.object + memory.offset);
}

std::byte* SimDevice::for_overwrite(DeviceMemory memory, std::string_view call) {
  check_live(memory, call);
  fresh_.before_overwrite(memory.object + memory.offset, memory.bytes);
  return reinterpret_cast<std::byte*>(memory.object + memory.offset);
}

void* SimDevice::address(DeviceMemory memory) {
  return for_access(memory, "address");
}

std::shared_ptr<Program const> SimDevice::compile(ProgramSource const& source) {
  return std::make_shared<HostProgram const>(source, *this);
}

LinkCost SimDevice::link_cost() const noexcept {
  LinkCost cost;
  if (options_.latency.count() != 0) cost.latency_seconds = std::chrono::duration<double>(options_.latency).count();
  if (options_.upload_bytes_per_second > 0) cost.bytes_per_second = options_.upload_bytes_per_second;
  cost.row_seconds = std::chrono::duration<double>(time_of_a_row).count();
  return cost;
}

std::optional<LinkCost> SimDevice::configured_link(CopyDirection direction) const noexcept {
  auto const set = direction == CopyDirection::from_host ? options_.upload_bytes_per_second
                   : direction == CopyDirection::to_host ? options_.download_bytes_per_second
                                                         : options_.peer_bytes_per_second;
  return LinkCost{std::chrono::duration<double>(options_.latency).count(),
                  set > 0 ? set : std::numeric_limits<double>::infinity()};
}

bool SimDevice::copies_from(Device const& other) const noexcept {
  return &other == this || (options_.peer && other.backend() == Backend::sim);
}

std::unique_ptr<QueueBackend> SimDevice::make_queue() {
  return std::make_unique<SimQueue>(*this);
}

void throw_sim_error(std::string_view call, SimVerdict verdict) {
  raise(call, verdict == SimVerdict::lost ? lost : fault);
}

}  // namespace unimem::detail
