#include <unimem/core/error.hpp>
#include <unimem/core/size.hpp>
#include <unimem/device/detail/blocking_wait.hpp>
#include <unimem/device/device.hpp>

#include "device/queue_backend.hpp"
#include "device/worker_threads.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace unimem {

std::string_view to_string(Location location) noexcept {
  switch (location) {
    case Location::device:
      return "device";
    case Location::host:
      return "host";
    case Location::pinned:
      return "pinned";
    case Location::unified:
      return "unified";
  }
  return "unknown";
}

std::string_view to_string(Backend backend) noexcept {
  switch (backend) {
    case Backend::cpu:
      return "cpu";
    case Backend::opencl:
      return "opencl";
    case Backend::cuda:
      return "cuda";
    case Backend::metal:
      return "metal";
    case Backend::sim:
      return "sim";
  }
  return "unknown";
}

std::string_view to_string(Advice advice) noexcept {
  switch (advice) {
    case Advice::read_mostly:
      return "read_mostly";
    case Advice::preferred_location:
      return "preferred_location";
    case Advice::accessed_by:
      return "accessed_by";
  }
  return "unknown";
}

DeviceMemory Device::allocate_undumped(std::size_t bytes, Location location) {
  return allocate(bytes, location);
}

void Device::release_undumped(DeviceMemory memory, Location location) noexcept {
  release(memory, location);
}

PageSource::~PageSource() = default;

MemoryExporter::~MemoryExporter() = default;

std::size_t PageSource::piece_bytes(std::size_t /*bytes*/) const noexcept {
  return page_bytes();
}

AddressRange PageSource::reserve_undumped(std::size_t bytes) {
  return reserve(bytes);
}

void PageSource::populate(AddressRange range) {
  auto const pages = create_pages(range.bytes);
  try {
    map(range, pages);
  } catch (...) {
    free_pages(pages);
    throw;
  }
}

void PageSource::discard(AddressRange range) {
  free_pages(unmap(range));
}

bool PageSource::shift(AddressRange, AddressRange) {
  return false;
}

Device::Device(Backend backend, std::string id) : backend_(backend), id_(std::move(id)) {}
Device::~Device() = default;

std::size_t Device::headroom() const {
  return std::numeric_limits<std::size_t>::max();
}

std::optional<LinkCost> Device::configured_link(CopyDirection) const noexcept {
  return std::nullopt;
}

void Device::advise(DeviceMemory, Location, Advice, Device const*, bool) noexcept {}

namespace {

/// A child of a process with queues has none, and an inherited device's locks may be held by threads that are not here.
void require_queues() {
  if (detail::is_forked_child()) {
    throw UnsupportedOperation("queued work", "a forked child process", "the threads of queues stayed in the parent");
  }
}

}  // namespace

Queue& Device::default_queue() {
  if (default_queue_.find() == nullptr) require_queues();
  return default_queue_.get([this] { return std::make_unique<Queue>(create_queue()); });
}

Queue Device::create_queue() {
  require_queues();
  return enlist(make_queue());
}

Queue Device::enlist(std::unique_ptr<detail::QueueBackend> backend) {
  {
    std::lock_guard const lock{queues_mutex_};
    queues_.push_back(&backend->control());
  }
  return {*this, std::move(backend)};
}

Queue& Device::waiting_queue() {
  if (waiting_queue_.find() == nullptr) require_queues();
  return waiting_queue_.get([this] { return std::make_unique<Queue>(create_queue()); });
}

void Device::synchronize() {
  require_queues();
  for (auto const event : unfinished()) detail::await_end(event, detail::Watched::no);
}

std::vector<Event> Device::unfinished() const {
  std::vector<Event> events;
  std::lock_guard const lock{queues_mutex_};
  for (auto* const queue : queues_) {
    Event const last{queue, queue->submitted()};
    if (queue->completed() < last.ticket()) events.push_back(last);
  }
  return events;
}

TransferCounters TransferCounters::since(TransferCounters const& earlier) const noexcept {
  return {host_to_device_bytes - earlier.host_to_device_bytes,
          host_to_device_copies - earlier.host_to_device_copies,
          device_to_host_bytes - earlier.device_to_host_bytes,
          device_to_host_copies - earlier.device_to_host_copies,
          device_to_device_bytes - earlier.device_to_device_bytes,
          device_to_device_copies - earlier.device_to_device_copies,
          host_to_device_nanoseconds - earlier.host_to_device_nanoseconds,
          device_to_host_nanoseconds - earlier.device_to_host_nanoseconds,
          device_to_device_nanoseconds - earlier.device_to_device_nanoseconds,
          untimed_copies - earlier.untimed_copies};
}

TransferCounters Device::transfers() const noexcept {
  constexpr auto relaxed = std::memory_order_relaxed;  // counts alone: nothing else is published through them
  return {uploads_.bytes.load(relaxed),       uploads_.copies.load(relaxed),        downloads_.bytes.load(relaxed),
          downloads_.copies.load(relaxed),    copies_.bytes.load(relaxed),          copies_.copies.load(relaxed),
          uploads_.nanoseconds.load(relaxed), downloads_.nanoseconds.load(relaxed), copies_.nanoseconds.load(relaxed),
          untimed_copies_.load(relaxed)};
}

void Device::count(Counters& direction, std::size_t bytes, CopyTime took, TransferMeter* meter,
                   std::size_t copies) noexcept {
  direction.bytes.fetch_add(bytes, std::memory_order_relaxed);
  direction.copies.fetch_add(copies, std::memory_order_relaxed);
  if (took) {
    direction.nanoseconds.fetch_add(static_cast<std::uint64_t>(took->count()), std::memory_order_relaxed);
  } else {
    untimed_copies_.fetch_add(copies, std::memory_order_relaxed);
  }
  if (meter != nullptr) meter->count(took, copies);
}

void Device::count_upload(std::size_t bytes, CopyTime took, TransferMeter* meter, std::size_t copies) noexcept {
  count(uploads_, bytes, took, meter, copies);
}

void Device::count_download(std::size_t bytes, CopyTime took, TransferMeter* meter, std::size_t copies) noexcept {
  count(downloads_, bytes, took, meter, copies);
}

void Device::count_copy(std::size_t bytes, CopyTime took, TransferMeter* meter, std::size_t copies) noexcept {
  count(copies_, bytes, took, meter, copies);
}

}  // namespace unimem
