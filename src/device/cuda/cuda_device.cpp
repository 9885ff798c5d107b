#include "device/cuda/cuda_device.hpp"

#include <unimem/core/error.hpp>

#include "device/cpu/thread_pool.hpp"
#include "device/cuda/cuda_program.hpp"
#include "device/cuda/cuda_queue.hpp"
#include "device/cuda/link.hpp"
#include "device/cuda/pinning.hpp"
#include "device/process_end.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

namespace unimem::detail::cuda {

std::optional<std::size_t> staging_by_default(std::size_t threads) noexcept {
  constexpr std::size_t fewest_threads = 4, one_chunk = std::size_t{4} << 20;
  return threads < fewest_threads ? std::nullopt : std::optional{one_chunk};
}

CudaDevice::CudaDevice(std::string id, Hardware hardware, CudaOptions options)
    : Device(Backend::cuda, std::move(id)),
      hardware_(std::move(hardware)),
      options_(options),
      pinned_budget_(options.pinned_bytes.value_or(std::numeric_limits<std::size_t>::max())),
      health_(*hardware_.driver) {
  info_ = hardware_.info;
  if (options_.source == Source::stream_ordered && !hardware_.has_pools) {
    throw UnsupportedOperation("allocator=async", std::string(this->id()),
                               "the GPU has no stream-ordered allocation (cuMemAllocAsync)");
  }
  if (options_.exports_memory && !hardware_.maps_pages) {
    throw UnsupportedOperation("shareable=1", std::string(this->id()),
                               "the GPU has no virtual memory management (cuMemCreate)");
  }
  if (options_.memory_bytes) {
    info_.total_bytes = std::min(*options_.memory_bytes, info_.total_bytes);
    info_.max_allocation = info_.total_bytes;
    hardware_.budget = std::make_shared<MemoryBudget>(info_.total_bytes);
  }
}

CudaDevice::Runtime& CudaDevice::runtime() const {
  if (auto* const made = runtime_.load(std::memory_order_acquire)) return *made;
  auto& made = make_runtime();
  // From now on pinned host memory is this driver's business. Outside the lock: what there is already is pinned here.
  static auto& pinning = *new Lazy<CudaPinning>;  // kept for good, as devices are
  auto& driver = pinning.get([] { return std::make_unique<CudaPinning>(); });
  driver.add(made.gpu, health_);
  HostPinning::instance().add(driver);
  return made;
}

CudaDevice::Runtime& CudaDevice::make_runtime() const {
  std::lock_guard const lock{runtime_mutex_};
  if (auto* const made = runtime_.load(std::memory_order_relaxed)) return *made;
  if (driver_gone()) throw UnsupportedOperation("cuDevicePrimaryCtxRetain", std::string(id()), process_end_reason);
  Context context = nullptr;
  health_.check(driver().cuDevicePrimaryCtxRetain(&context, hardware_.device), "cuDevicePrimaryCtxRetain");
  auto* const made = new Runtime(driver(), context, hardware_.architecture, std::string(id()), health_,
                                 EventUse{.timed = options_.profiles, .blocks = options_.blocking});
  runtime_.store(made, std::memory_order_release);
  return *made;
}

ContextRef const& CudaDevice::gpu() const {
  return runtime().gpu;
}

EventPool& CudaDevice::events() const {
  return runtime().events;
}

HostFlags& CudaDevice::flags() const {
  return runtime().flags;
}

PieceMover& CudaDevice::mover() const {
  return runtime().mover;
}

MemoryInfo CudaDevice::memory_info() const {
  auto const total = hardware_.budget->capacity();
  auto left = total - hardware_.budget->live();
  if (driver_gone()) return {left, total};
  CurrentContext const current{gpu()};
  if (options_.source == Source::stream_ordered) {
    std::lock_guard const lock{pool_mutex_};
    health_.check(driver().cuStreamSynchronize(pool_stream()), "cuStreamSynchronize");  // what was given back arrives
  }
  std::size_t free = 0, installed = 0;
  health_.check(driver().cuMemGetInfo(&free, &installed), "cuMemGetInfo");
  return {std::min(left, free), total};  // what other processes hold is not free
}

MemoryBudget& CudaDevice::budget(Location location) noexcept {
  return location == Location::pinned ? pinned_budget_ : *hardware_.budget;
}

void CudaDevice::refuse(std::size_t bytes, Location location, std::string reason) {
  auto const& account = budget(location);
  auto const live = account.live();
  auto const left = account.capacity() - live;
  throw OutOfMemory({.where = fmt::format("{} {}", id(), to_string(location)),
                     .requested = bytes,
                     .limit = account.capacity(),
                     .live = live,
                     .largest_free = left,
                     .device_free = left,
                     .holders = {},
                     .reason = std::move(reason)});
}

void CudaDevice::take_for_pages(std::size_t bytes) {
  if (!hardware_.budget->take(bytes)) refuse(bytes, Location::device, "limit reached");
}

DeviceMemory CudaDevice::allocate(std::size_t bytes, Location location) {
  if (location == Location::host) {
    throw UnsupportedOperation("host memory", std::string(id()), "pageable host memory is the cpu device's");
  }
  if (location == Location::unified && !hardware_.has_managed) {
    throw UnsupportedOperation("unified memory", std::string(id()),
                               "host and GPU cannot use managed memory at the same time here");
  }
  if (bytes == 0) throw InvalidArgument("bytes", "0", "at least 1");
  if (!budget(location).take(bytes)) refuse(bytes, location, "limit reached");
  try {
    return {static_cast<std::uintptr_t>(take(bytes, location)), 0, bytes};
  } catch (...) {
    budget(location).give_back(bytes);
    throw;
  }
}

DevicePointer CudaDevice::take(std::size_t bytes, Location location) {
  if (driver_gone()) throw UnsupportedOperation("allocating", std::string(id()), process_end_reason);
  CurrentContext const current{gpu()};
  auto const [code, call, memory] = ask_for(bytes, location);
  if (code == Result::out_of_memory) {
    refuse(bytes, location, fmt::format("{}: {}", call, code_name(driver(), code)));
  }
  health_.check(code, call);
  return memory;
}

CudaDevice::Answer CudaDevice::ask_for(std::size_t bytes, Location location) {
  DevicePointer memory = 0;
  if (location == Location::pinned) {
    void* host = nullptr;
    auto const flags =
        host_alloc_portable | host_alloc_device_map | (options_.write_combined ? host_alloc_write_combined : 0);
    auto const code = driver().cuMemHostAlloc(&host, bytes, flags);
    return {code, "cuMemHostAlloc", reinterpret_cast<DevicePointer>(host)};
  }
  if (location == Location::unified) {
    auto const code = driver().cuMemAllocManaged(&memory, bytes, attach_global);
    return {code, "cuMemAllocManaged", memory};
  }
  if (options_.source == Source::plain) {
    auto const code = driver().cuMemAlloc(&memory, bytes);
    return {code, "cuMemAlloc", memory};
  }
  // Waited for: the next owner of the memory may use it in any stream at once.
  std::lock_guard const lock{pool_mutex_};
  auto* const stream = pool_stream();
  auto code = driver().cuMemAllocAsync(&memory, bytes, stream);
  if (code == Result::out_of_memory) {
    // What was given back there may not have arrived; no other thread takes it meanwhile.
    code = driver().cuStreamSynchronize(stream);
    if (code == Result::success) code = driver().cuMemAllocAsync(&memory, bytes, stream);
  }
  if (code == Result::success) code = driver().cuStreamSynchronize(stream);
  return {code, "cuMemAllocAsync", memory};
}

Stream CudaDevice::pool_stream() const {
  if (pool_stream_ == nullptr) {
    health_.check(driver().cuStreamCreate(&pool_stream_, stream_non_blocking), "cuStreamCreate");
  }
  return pool_stream_;
}

void CudaDevice::release(DeviceMemory memory, Location location) noexcept {
  if (memory.object == 0) return;
  if (!driver_gone()) {
    CurrentContext const current{gpu(), std::nothrow};
    if (current.code() != Result::success) {
      health_.note(current.code());  // without its context nothing can be given back
    } else if (location == Location::pinned) {
      health_.note(driver().cuMemFreeHost(reinterpret_cast<void*>(memory.object)));
    } else if (location == Location::device && options_.source == Source::stream_ordered) {
      std::lock_guard const lock{pool_mutex_};
      health_.note(driver().cuMemFreeAsync(memory.object, pool_stream_));  // made when the first block was taken
    } else {
      health_.note(driver().cuMemFree(memory.object));
    }
  }
  budget(location).give_back(memory.bytes);
}

void CudaDevice::advise(DeviceMemory memory, Location location, unimem::Advice advice, unimem::Device const* place,
                        bool holds) noexcept {
  if (location != Location::unified || memory.empty() || driver_gone()) return;
  auto where = this->location();
  if (auto const* const other = dynamic_cast<CudaDevice const*>(place)) {
    where = other->location();
  } else if (place != nullptr) {
    if (place->backend() != Backend::cpu) return;  // no place that this driver knows
    where = {LocationType::host, 0};
  }
  auto said = cuda::Advice::set_read_mostly;
  switch (advice) {
    case unimem::Advice::read_mostly:
      said = holds ? cuda::Advice::set_read_mostly : cuda::Advice::unset_read_mostly;
      break;
    case unimem::Advice::preferred_location:
      said = holds ? cuda::Advice::set_preferred_location : cuda::Advice::unset_preferred_location;
      break;
    case unimem::Advice::accessed_by:
      said = holds ? cuda::Advice::set_accessed_by : cuda::Advice::unset_accessed_by;
      break;
  }
  CurrentContext const current{gpu(), std::nothrow};
  if (current.code() != Result::success) return;
  health_.note(driver().cuMemAdvise(memory.object + memory.offset, memory.bytes, said, where));
}

template <class Made>
Made* CudaDevice::over_pages(Lazy<Made>& made) noexcept {
  if (!hardware_.maps_pages || driver_gone()) return nullptr;
  try {
    return &made.get([this] {
      CurrentContext const current{gpu()};
      PageOwner& owner = *this;
      return std::make_unique<Made>(gpu(), health_, hardware_.device, owner);
    });
  } catch (Error const&) {
    return nullptr;  // a driver that cannot say how large its pages are has none
  }
}

PageSource* CudaDevice::pages() noexcept {
  return options_.maps_pages ? over_pages(pages_) : nullptr;
}

MemoryExporter* CudaDevice::exporter() noexcept {
  return health_.lost() ? nullptr : over_pages(exporter_);
}

std::optional<std::size_t> CudaDevice::staging_threshold() const noexcept {
  if (options_.staging_threshold) return options_.staging_threshold;
  static auto const by_default = staging_by_default(ThreadPool::shared().threads());
  return by_default;
}

bool CudaDevice::shares_unified_memory(unimem::Device const& owner) const noexcept {
  auto const* const other = dynamic_cast<CudaDevice const*>(&owner);
  return other != nullptr && other->hardware_.driver == hardware_.driver && hardware_.has_managed &&
         other->hardware_.has_managed;
}

void* CudaDevice::address(DeviceMemory memory) {
  return reinterpret_cast<void*>(memory.object + memory.offset);
}

std::shared_ptr<Program const> CudaDevice::compile(ProgramSource const& source) {
  if (driver_gone()) throw UnsupportedOperation("compiling", std::string(id()), process_end_reason);
  // One for the process: what it has compiled serves every GPU of an architecture. Kept for good, as devices are.
  static auto const& compiler = *new KernelCompiler(hardware_.driver_version, KernelCache::of_user());
  CurrentContext const current{gpu()};
  return std::make_shared<CudaProgram>(gpu(), compiler, source);
}

LinkCost CudaDevice::link_cost() const noexcept {
  std::call_once(link_measured_, [this] {
    if (!driver_gone() && !health_.lost()) link_ = measure_link(*this);
  });
  return link_;
}

bool CudaDevice::copies_from(unimem::Device const& other) const noexcept {
  if (&other == this) return true;
  auto const* const peer = dynamic_cast<CudaDevice const*>(&other);
  if (peer == nullptr || peer->hardware_.driver != hardware_.driver) return false;
  if (peer->hardware_.device == hardware_.device) return true;
  // A refusal is no answer, and a caller that was told yes a moment ago counts on it.
  for (int tries = 0; tries < 3; ++tries) {
    int reaches = 0;
    auto const code = driver().cuDeviceCanAccessPeer(&reaches, hardware_.device, peer->hardware_.device);
    if (code == Result::success) return reaches != 0;
  }
  return false;
}

void CudaDevice::reach(CudaDevice& other) {
  if (other.hardware_.device == hardware_.device) return;
  std::lock_guard const lock{reached_mutex_};
  if (std::ranges::find(reached_, &other) != reached_.end()) return;
  CurrentContext const current{gpu()};
  auto const code = driver().cuCtxEnablePeerAccess(other.gpu().context, 0);
  // Where a GPU has as many peers as it can, copies between the two go all the same, only less directly.
  if (code != Result::peer_access_already_enabled && code != Result::too_many_peers) {
    health_.check(code, "cuCtxEnablePeerAccess");
  }
  // The source is made here if need be: it knows of this GPU before it maps anything.
  if (other.options_.maps_pages) {
    if (auto* const pages = other.over_pages(other.pages_)) pages->admit(hardware_.device);
  }
  reached_.push_back(&other);
}

std::unique_ptr<QueueBackend> CudaDevice::make_queue() {
  if (driver_gone()) throw UnsupportedOperation("a queue", std::string(id()), process_end_reason);
  return std::make_unique<CudaQueue>(*this);
}

Queue CudaDevice::adopt(Stream foreign) {
  constexpr auto call = "cuStreamGetCtx";
  if (driver_gone()) throw UnsupportedOperation(call, std::string(id()), process_end_reason);
  if (reinterpret_cast<std::uintptr_t>(foreign) == per_thread_stream) {
    throw InvalidArgument("stream", "cudaStreamPerThread, which is another stream on each thread",
                          "a stream that is the same one wherever the queue is used");
  }
  CurrentContext const current{gpu()};
  Context owner = nullptr;
  health_.check(driver().cuStreamGetCtx(foreign, &owner), call);
  if (owner != gpu().context) {
    throw InvalidArgument("stream", "one of another context", fmt::format("a stream of {}'s primary context", id()));
  }
  return enlist(std::make_unique<CudaQueue>(*this, foreign));
}

}  // namespace unimem::detail::cuda
