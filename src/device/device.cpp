#include <unimem/core/size.hpp>
#include <unimem/device/device.hpp>

#include "device/queue_backend.hpp"

#include <algorithm>
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

std::size_t Range::items() const {
  return checked_multiply(checked_multiply(x, y, "range"), z, "range");
}

PageSource::~PageSource() = default;

Device::Device(Backend backend, std::string id) : backend_(backend), id_(std::move(id)) {}
Device::~Device() = default;

Queue& Device::default_queue() {
  std::call_once(default_queue_made_, [this] { default_queue_ = std::make_unique<Queue>(create_queue()); });
  return *default_queue_;
}

Queue Device::create_queue() {
  auto backend = make_queue();
  {
    std::lock_guard const lock{queues_mutex_};
    queues_.push_back(&backend->control());
  }
  return {*this, std::move(backend)};
}

Queue& Device::waiting_queue() {
  std::call_once(waiting_queue_made_, [this] { waiting_queue_ = std::make_unique<Queue>(create_queue()); });
  return *waiting_queue_;
}

void Device::synchronize() {
  for (auto const event : unfinished()) static_cast<void>(event.wait_for_error());
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

TransferCounters Device::transfers() const noexcept {
  constexpr auto relaxed = std::memory_order_relaxed;  // counts alone: nothing else is published through them
  return {counters_.upload_bytes.load(relaxed),   counters_.upload_copies.load(relaxed),
          counters_.download_bytes.load(relaxed), counters_.download_copies.load(relaxed),
          counters_.copy_bytes.load(relaxed),     counters_.copy_copies.load(relaxed)};
}

void Device::count_upload(std::size_t bytes) noexcept {
  counters_.upload_bytes.fetch_add(bytes, std::memory_order_relaxed);
  counters_.upload_copies.fetch_add(1, std::memory_order_relaxed);
}

void Device::count_download(std::size_t bytes) noexcept {
  counters_.download_bytes.fetch_add(bytes, std::memory_order_relaxed);
  counters_.download_copies.fetch_add(1, std::memory_order_relaxed);
}

void Device::count_copy(std::size_t bytes) noexcept {
  counters_.copy_bytes.fetch_add(bytes, std::memory_order_relaxed);
  counters_.copy_copies.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace unimem
