#include <unimem/core/error.hpp>
#include <unimem/device/detail/blocking_wait.hpp>
#include <unimem/device/event.hpp>
#include <unimem/device/timed_wait.hpp>

#include "device/queue_control.hpp"
#include "device/worker_threads.hpp"

#include <fmt/format.h>

namespace unimem {

bool Event::ready() const noexcept {
  if (control_ == nullptr || control_->completed() >= ticket_) return true;
  if (detail::is_forked_child()) return false;  // the control block's lock may be held by a thread that is not here
  control_->poll();
  return control_->completed() >= ticket_;
}

std::exception_ptr Event::wait_for_error() const noexcept {
  if (control_ == nullptr) return nullptr;
  if (control_->completed() < ticket_) {
    if (detail::is_forked_child()) {
      return std::make_exception_ptr(UnsupportedOperation("waiting for work of the parent process",
                                                          "a forked child process", "nobody here carries it out"));
    }
    {
      detail::BlockingWait const recorded{*this};
      control_->wait(ticket_);
    }
    if (control_->completed() < ticket_) {
      return std::make_exception_ptr(UnsupportedOperation("waiting for work that has called exit",
                                                          fmt::format("queue {}", control_->id()),
                                                          "it does not end any more"));
    }
  }
  return control_->error(ticket_);
}

bool wait_until(Event event, std::chrono::steady_clock::time_point until) noexcept {
  auto* const control = detail::QueueControl::of(event);
  if (control == nullptr || control->completed() >= event.ticket() || detail::is_forked_child()) return true;
  control->wait_until(event.ticket(), until);
  return control->completed() >= event.ticket();
}

void Event::wait() const {
  detail::await_end(*this, detail::Watched::no);
  if (auto const failure = wait_for_error()) std::rethrow_exception(failure);
}

std::exception_ptr Event::error() const noexcept {
  return control_ == nullptr || control_->completed() < ticket_ ? nullptr : control_->error(ticket_);
}

bool Event::never_began() const noexcept {
  return control_ != nullptr && control_->completed() >= ticket_ && control_->never_began(ticket_);
}

std::uint64_t Event::queue_id() const noexcept {
  return control_ == nullptr ? 0 : control_->id();
}

}  // namespace unimem
