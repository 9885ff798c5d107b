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
  }
  Event event = nullptr;
  health_.check(gpu_.driver.cuEventCreate(&event, timed_ ? 0 : event_disable_timing), "cuEventCreate");
  return {*this, event};
}

void EventPool::put_back(Event event) noexcept {
  std::lock_guard const lock{mutex_};
  try {
    free_.push_back(event);
  } catch (...) {
    // No memory to remember it by: the driver has one event more than anybody needs.
  }
}

}  // namespace unimem::detail::cuda
