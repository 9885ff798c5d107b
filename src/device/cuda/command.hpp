#pragma once

#include <unimem/device/event.hpp>

#include "device/cuda/event_pool.hpp"
#include "device/driver_stream.hpp"

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>

namespace unimem::detail::cuda {

/// One ticket's worth of work for a stream, and an event behind it.
///
/// It is given to the driver at once, or later (`CommandStream::hold_back`). The event comes with it, or when somebody
/// asks for the end; then it stands behind what came after the command, too.
class Command final : public DriverCommand {
 public:
  /// `call` is the driver call that errors name.
  Command(EventPool& events, char const* call, Moves moves, std::size_t bytes, SharedMeter meter, std::size_t copies)
      : DriverCommand(moves, bytes, std::move(meter), copies), events_(events), call_(call) {}

  /// What must live until the work has ended: programs, patterns.
  void keep(std::shared_ptr<void const> object) { keep_ = std::move(object); }

  /// Where the work begins, for queues that time it.
  void begin_at(PooledEvent event) noexcept { begin_ = std::move(event); }
  /// The driver has it.
  void is_given_now() noexcept { state_.store(State::given, std::memory_order_release); }
  [[nodiscard]] bool is_given() const noexcept { return state_.load(std::memory_order_acquire) != State::held_back; }
  /// It has ended, or never began, and needs no event.
  void is_over_now() noexcept { state_.store(State::over, std::memory_order_release); }
  /// Behind the work, which was given. Once.
  void end_at(std::shared_ptr<PooledEvent const> event) noexcept {
    kept_end_ = std::move(event);
    end_.store(kept_end_->get(), std::memory_order_release);
  }
  /// Null: it has none yet, or never will.
  [[nodiscard]] Event end() const noexcept { return end_.load(std::memory_order_acquire); }

  /// Before it has a ticket: what ends when the command that is held back has been given.
  void given_by(unimem::Event event) noexcept { given_by_ = event; }
  void await_given() const noexcept {
    if (!is_given()) static_cast<void>(given_by_.wait_for_error());
  }

  [[nodiscard]] bool has_begun() const noexcept override { return is_given(); }
  [[nodiscard]] Outcome outcome() noexcept override;
  /// Whether it is known to have ended, and the context to be well.
  [[nodiscard]] bool has_ended_well() const noexcept;
  void wait() const noexcept override;
  [[nodiscard]] char const* call() const noexcept override { return call_; }
  [[nodiscard]] std::optional<std::chrono::nanoseconds> took() const noexcept override;

 private:
  enum class State : unsigned char { held_back, given, over };

  EventPool& events_;
  char const* call_;
  PooledEvent begin_;
  std::shared_ptr<PooledEvent const> kept_end_;  ///< for whoever gives it alone
  std::atomic<Event> end_{nullptr};
  std::atomic<State> state_{State::held_back};
  unimem::Event given_by_;
  std::shared_ptr<void const> keep_;
};

}  // namespace unimem::detail::cuda
