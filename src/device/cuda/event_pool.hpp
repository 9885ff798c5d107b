#pragma once

#include "device/cuda/context.hpp"
#include "device/cuda/health.hpp"

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace unimem::detail::cuda {

class EventPool;

/// An event of the driver's that goes back to its pool. After a stream was told to wait for it, it may be recorded
/// anew: the driver took note of what it stood for. Move-only.
class PooledEvent {
 public:
  PooledEvent() = default;
  PooledEvent(EventPool& pool, Event event) noexcept : pool_(&pool), event_(event) {}
  PooledEvent(PooledEvent&& other) noexcept : pool_(other.pool_), event_(std::exchange(other.event_, nullptr)) {}
  PooledEvent& operator=(PooledEvent&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(event_, other.event_);
    return *this;
  }
  ~PooledEvent();

  [[nodiscard]] Event get() const noexcept { return event_; }
  [[nodiscard]] explicit operator bool() const noexcept { return event_ != nullptr; }

 private:
  EventPool* pool_ = nullptr;
  Event event_ = nullptr;
};

/// What the events of a device are for, beside order.
struct EventUse {
  bool timed = false;   ///< they keep the time
  bool blocks = false;  ///< a thread that waits for one sleeps, where the driver would otherwise keep asking
};

/// Events of one device, kept for reuse: making one costs the driver far more than recording it. Never given back to
/// the driver, since devices live as long as the process. Thread-safe.
class EventPool {
 public:
  EventPool(ContextRef const& gpu, Health& health, EventUse use) noexcept : gpu_(gpu), health_(health), use_(use) {}

  [[nodiscard]] ContextRef const& gpu() const noexcept { return gpu_; }
  [[nodiscard]] Health& health() const noexcept { return health_; }
  /// Whether its events keep the time.
  [[nodiscard]] bool timed() const noexcept { return use_.timed; }

  /// An event recorded behind everything in `stream` so far. The context is current. Throws DeviceError.
  [[nodiscard]] PooledEvent record(Stream stream);

 private:
  friend class PooledEvent;
  [[nodiscard]] PooledEvent take();
  void put_back(Event event) noexcept;

  ContextRef const& gpu_;
  Health& health_;
  EventUse use_;
  std::mutex mutex_;
  std::vector<Event> free_;
  std::size_t made_ = 0;  ///< or tried to
};

}  // namespace unimem::detail::cuda
