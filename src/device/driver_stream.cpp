#include "device/driver_stream.hpp"

#include <unimem/core/error.hpp>

#include "device/call_after.hpp"
#include "device/current_task.hpp"
#include "device/process_end.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <thread>
#include <utility>

namespace unimem::detail {
namespace {

/// Every stream that is whole, so that the exit handler can wait for them.
struct Streams {
  std::mutex mutex;
  std::set<DriverStream*> all;
};

Streams& streams() {
  static auto& instance = *new Streams;  // never destroyed: static queues may go after any static of ours
  return instance;
}

constexpr std::size_t commands_between_looks = 16;

/// Why work failed whose outcome is not asked for any more.
std::exception_ptr gone_failure(char const* call, Device const& device) noexcept {
  return std::make_exception_ptr(
      UnsupportedOperation(fmt::format("waiting for {}", call), std::string(device.id()), process_end_reason));
}

}  // namespace

void DriverCommand::count(Device& device) const noexcept {
  switch (moves_) {
    case Moves::nothing:
      break;
    case Moves::upload:
      device.count_upload(bytes_, took(), meter_.get(), copies_);
      break;
    case Moves::download:
      device.count_download(bytes_, took(), meter_.get(), copies_);
      break;
    case Moves::copy:
      device.count_copy(bytes_, took(), meter_.get(), copies_);
      break;
  }
}

void DriverStream::enlist() {
  std::lock_guard const lock{streams().mutex};
  streams().all.insert(this);
}

void DriverStream::leave() noexcept {
  std::lock_guard const lock{streams().mutex};
  streams().all.erase(this);
}

Event DriverStream::append(std::shared_ptr<DriverCommand> command) {
  watch_main_thread();
  Commands ended;
  std::lock_guard const lock{pending_mutex_};
  pending_.push_back(std::move(command));
  auto const event = control_.submit();
  if (pending_.size() == 1) first_ = event.ticket();
  if (pending_.size() % commands_between_looks == 0) ended = collect();
  return event;
}

DriverStream::Commands DriverStream::collect() noexcept {
  Commands ended;
  auto sure = pending_.size() > 1 && !driver_gone() ? ended_at_front(pending_) : 0;
  while (!pending_.empty()) {
    auto& command = pending_.front();
    DriverCommand::Outcome outcome;
    if (sure != 0) {
      --sure;
    } else {
      outcome =
          driver_gone() ? DriverCommand::Outcome{false, gone_failure(command->call(), device_)} : command->outcome();
    }
    if (outcome.running) break;
    if (command->failure()) outcome.failure = command->failure();
    if (!outcome.failure) command->count(device_);
    auto const took = control_.keeps_durations() ? command->took() : std::nullopt;
    ended.push_back(std::move(command));
    auto const done = first_++;
    pending_.pop_front();
    control_.finish(done, std::move(outcome.failure), took);
  }
  return ended;
}

std::shared_ptr<DriverCommand> const& DriverStream::find(Ticket ticket) const noexcept {
  return pending_[static_cast<std::size_t>(ticket - first_)];
}

std::shared_ptr<DriverCommand> DriverStream::pending(Ticket ticket) {
  Commands ended;
  std::lock_guard const lock{pending_mutex_};
  ended = collect();
  return control_.completed() >= ticket ? nullptr : find(ticket);
}

void DriverStream::wait_until(Ticket ticket, std::chrono::steady_clock::time_point until) noexcept {
  using namespace std::chrono_literals;
  if (until == std::chrono::steady_clock::time_point::max()) return wait_for(ticket);
  std::chrono::nanoseconds pause = 10us;
  while (true) {
    poll();
    auto const now = std::chrono::steady_clock::now();
    if (control_.completed() >= ticket || now >= until) return;
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(pause, until - now));
    pause = std::min<std::chrono::nanoseconds>(2 * pause, 1ms);
  }
}

void DriverStream::wait_for(Ticket ticket) noexcept {
  // The ticket's own command first: usually one wait is all. Should the driver end it before an earlier one, as with a
  // command that never started, the earlier ones are waited for in turn.
  bool first = true;
  while (control_.completed() < ticket) {
    std::shared_ptr<DriverCommand> waited_for;
    {
      Commands ended;
      std::lock_guard const lock{pending_mutex_};
      ended = collect();
      if (control_.completed() >= ticket) return;
      waited_for = first ? find(ticket) : pending_.front();
    }
    prepare_to_wait(*waited_for);
    waited_for->wait();  // the outcome is read when the command is collected
    if (!waited_for->has_begun() && std::chrono::steady_clock::now() >= CurrentTask::patience_ends()) return;
    if (!first) std::this_thread::yield();
    first = false;
  }
}

void DriverStream::poll() noexcept {
  static_cast<void>(is_idle());
}

bool DriverStream::is_idle() noexcept {
  if (!driver_gone()) prepare_to_ask();
  Commands ended;
  std::lock_guard const lock{pending_mutex_};
  ended = collect();
  return pending_.empty();
}

bool DriverStream::leaves_driver_alone() noexcept {
  if (is_idle()) return true;
  std::lock_guard const lock{pending_mutex_};
  return pending_.empty() || !pending_.front()->has_begun();
}

void DriverStream::end(std::shared_ptr<DriverStream> stream) noexcept {
  auto& control = stream->control_;
  if (CurrentTask::may_wait_for_any() || stream->is_idle()) {
    stream->wait_for(control.submitted());
    control.set_waiter(nullptr);
    return;
  }
  try {
    Event const last{&control, control.submitted()};
    call_after({last}, [stream = std::move(stream), &control] { control.set_waiter(nullptr); });
  } catch (std::exception const&) {  // NOLINT(bugprone-empty-catch): then the control block keeps it for good
  }
}

void finish_all_streams() noexcept {
  using Clock = std::chrono::steady_clock;
  // No longer for all of them together: work that is not waited for need not be done, and it may never end. No shorter
  // either: PoCL crashes if the process ends while it compiles a kernel, which takes seconds.
  auto const deadline = Clock::now() + std::chrono::seconds{10};
  std::lock_guard const lock{streams().mutex};
  for (auto* const stream : streams().all) {
    while (!stream->leaves_driver_alone() && Clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
}

}  // namespace unimem::detail
