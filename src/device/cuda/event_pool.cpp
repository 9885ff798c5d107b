#include "device/cuda/event_pool.hpp"

namespace unimem::detail::cuda {

PooledEvent::~PooledEvent() {
  if (event_ != nullptr) pool_->put_back(event_);
}

PooledEvent EventPool::record(Stream stream) {
  auto event = take();
  health_.check(gpu_.driver.cuEventRecord(event.get(), stream), "cuEventRecord");
  return event;
}

PooledEvent EventPool::take() {
  {
    std::lock_guard const lock{mutex_};
    if (!free_.empty()) {
      auto* const event = free_.back();
      free_.pop_back();
      return {*this, event};
    }
    // So that nothing has to be had when an event goes back.
    if (++made_ > free_.capacity()) free_.reserve(2 * made_);
  }
  Event event = nullptr;
  auto const flags = (use_.timed ? 0 : event_disable_timing) | (use_.blocks ? event_blocking_sync : 0);
  health_.check(gpu_.driver.cuEventCreate(&event, flags), "cuEventCreate");
  return {*this, event};
}

void EventPool::put_back(Event event) noexcept {
  std::lock_guard const lock{mutex_};
  free_.push_back(event);
}

}  // namespace unimem::detail::cuda
