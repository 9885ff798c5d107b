#pragma once

#include "device/cuda/event_pool.hpp"
#include "device/driver_stream.hpp"

#include <chrono>
#include <memory>
#include <optional>
#include <utility>

namespace unimem::detail::cuda {

/// One ticket's worth of work in a stream, and the event behind it; without an event, it has ended already.
class Command final : public DriverCommand {
 public:
  /// `call` is the driver call that errors name.
  Command(EventPool& events, char const* call, Moves moves, std::size_t bytes, SharedMeter meter, std::size_t copies)
      : DriverCommand(moves, bytes, std::move(meter), copies), events_(events), call_(call) {}

  /// What must live until the work has ended: programs, patterns.
  void keep(std::shared_ptr<void const> object) { keep_ = std::move(object); }

  /// Where the work begins, for queues that time their copies.
  void begin_at(PooledEvent event) noexcept { begin_ = std::move(event); }
  /// Behind the work.
  void end_at(PooledEvent event) noexcept { end_ = std::move(event); }
  [[nodiscard]] Event end() const noexcept { return end_.get(); }

  [[nodiscard]] Outcome outcome() noexcept override;
  /// Whether it is known to have ended, and the context to be well.
  [[nodiscard]] bool has_ended_well() const noexcept;
  void wait() const noexcept override;
  [[nodiscard]] char const* call() const noexcept override { return call_; }
  [[nodiscard]] std::optional<std::chrono::nanoseconds> took() const noexcept override;

 private:
  EventPool& events_;
  char const* call_;
  PooledEvent begin_, end_;
  std::shared_ptr<void const> keep_;
};

}  // namespace unimem::detail::cuda
