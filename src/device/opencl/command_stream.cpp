#include "device/opencl/command_stream.hpp"

#include <unimem/core/error.hpp>

#include "device/opencl/code.hpp"
#include "device/opencl/opencl_device.hpp"

#include <fmt/format.h>

#include <chrono>
#include <set>
#include <string>
#include <thread>
#include <utility>

namespace unimem::detail::opencl {
namespace {

/// Every stream there is, so that the exit handler can wait for them.
struct Streams {
  std::mutex mutex;
  std::set<CommandStream*> all;
};

Streams& streams() {
  static auto& instance = *new Streams;  // never destroyed: static queues may go after any static of ours
  return instance;
}

/// How a command stands: still running, or ended with a code from a call.
struct Outcome {
  bool running = false;
  cl_int code = CL_SUCCESS;
  char const* call = "";
};

Outcome outcome_of(Api const& api, Command const& command) noexcept {
  Outcome outcome;
  for (auto const& [event, call] : command.events) {
    cl_int status = CL_QUEUED;
    auto const asked =
        api.clGetEventInfo(event.get(), CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, nullptr);
    if (asked != CL_SUCCESS) {
      // Not known to have ended, so waited for, though the caller may only be polling: what is reported as ended gives
      // its memory free. A driver that has lost the device returns at once.
      auto* const handle = event.get();
      api.clWaitForEvents(1, &handle);
      if (outcome.code == CL_SUCCESS) outcome = {false, asked, "clGetEventInfo"};
      continue;
    }
    if (status > CL_COMPLETE) return {true, CL_SUCCESS, ""};
    if (status < 0 && outcome.code == CL_SUCCESS) outcome = {false, status, call};
  }
  return outcome;
}

/// Why work that nobody will hear of any more has failed.
std::exception_ptr gone_failure(char const* call, Device const& device) noexcept {
  return std::make_exception_ptr(
      UnsupportedOperation(fmt::format("waiting for {}", call), std::string(device.id()), process_end_reason));
}

}  // namespace

CommandStream::CommandStream(OpenClDevice& device, QueueHandle queue, QueueControl& control)
    : device_(device), api_(device.api()), queue_(std::move(queue)), control_(control) {
  std::lock_guard const lock{streams().mutex};
  streams().all.insert(this);
}

CommandStream::~CommandStream() {
  std::lock_guard const lock{streams().mutex};
  streams().all.erase(this);
}

Event CommandStream::append(Command command) {
  api_.clFlush(queue());  // nothing would make a lazy driver begin before somebody waits; a failure shows in the event
  watch_main_thread();
  std::vector<Command> ended;
  std::lock_guard const lock{pending_mutex_};
  auto const event = control_.submit();
  pending_.push_back({event.ticket(), std::move(command)});
  ended = collect();
  return event;
}

std::vector<Command> CommandStream::collect() noexcept {
  std::vector<Command> ended;
  while (!pending_.empty()) {
    auto& [ticket, command] = pending_.front();
    std::exception_ptr failure;
    if (driver_gone()) {
      failure = gone_failure(command.events.back().call, device_);
    } else {
      auto const outcome = outcome_of(api_, command);
      if (outcome.running) break;
      if (outcome.code != CL_SUCCESS) {
        if (!command.orders_only) failure = failure_of(outcome.code, outcome.call);
      } else {
        // Asking for the status is no synchronization point (clGetEventInfo); having waited for the event is.
        auto* const last = command.events.back().event.get();
        api_.clWaitForEvents(1, &last);
      }
    }
    if (!failure) count(command);
    ended.push_back(std::move(command));
    auto const done = ticket;
    pending_.pop_front();
    control_.finish(done, std::move(failure));
  }
  return ended;
}

void CommandStream::count(Command const& command) noexcept {
  switch (command.moves) {
    case Moves::nothing:
      break;
    case Moves::upload:
      device_.count_upload(command.bytes, time_of(command));
      break;
    case Moves::download:
      device_.count_download(command.bytes, time_of(command));
      break;
    case Moves::copy:
      device_.count_copy(command.bytes, time_of(command));
      break;
  }
}

std::optional<std::chrono::nanoseconds> CommandStream::time_of(Command const& command) const noexcept {
  if (!device_.profiles() || driver_gone()) return std::nullopt;
  auto const at = [&](cl_event event, cl_profiling_info moment) {
    cl_ulong nanoseconds = 0;
    auto const asked = api_.clGetEventProfilingInfo(event, moment, sizeof nanoseconds, &nanoseconds, nullptr);
    return asked == CL_SUCCESS ? nanoseconds : 0;
  };
  auto const begin = at(command.events.front().event.get(), CL_PROFILING_COMMAND_START);
  auto const end = at(command.events.back().event.get(), CL_PROFILING_COMMAND_END);
  // A driver that does not know says nothing, zeros, or an end before the beginning.
  if (begin == 0 || end <= begin) return std::nullopt;
  return std::chrono::nanoseconds{end - begin};
}

CommandStream::Pending& CommandStream::find(Ticket ticket) noexcept {
  return pending_[static_cast<std::size_t>(ticket - pending_.front().ticket)];
}

std::vector<DriverEvent> CommandStream::share(Command const& command) const {
  std::vector<DriverEvent> result;
  for (auto const& [event, call] : command.events) {
    if (api_.clRetainEvent(event.get()) == CL_SUCCESS) result.push_back({EventHandle{api_, event.get()}, call});
  }
  return result;
}

std::vector<DriverEvent> CommandStream::events_of(Ticket ticket) {
  std::vector<Command> ended;
  std::lock_guard const lock{pending_mutex_};
  ended = collect();
  return control_.completed() >= ticket ? std::vector<DriverEvent>{} : share(find(ticket).command);
}

void CommandStream::wait_for(Ticket ticket) noexcept {
  // The ticket's own event first: usually one wait is all. Should the driver end it before an earlier one, as with a
  // command that never started, the earlier ones are waited for in turn.
  bool first = true;
  while (control_.completed() < ticket) {
    std::vector<DriverEvent> waited_for;
    {
      std::vector<Command> ended;
      std::lock_guard const lock{pending_mutex_};
      ended = collect();
      if (control_.completed() >= ticket) return;
      waited_for = share((first ? find(ticket) : pending_.front()).command);
    }
    for (auto const& [event, call] : waited_for) {
      auto* const handle = event.get();
      api_.clWaitForEvents(1, &handle);  // the outcome is read when the command is collected
    }
    if (!first) std::this_thread::yield();
    first = false;
  }
}

void CommandStream::poll() noexcept {
  static_cast<void>(is_idle());
}

bool CommandStream::is_idle() noexcept {
  std::vector<Command> ended;
  std::lock_guard const lock{pending_mutex_};
  ended = collect();
  return pending_.empty();
}

void finish_all_streams() noexcept {
  using Clock = std::chrono::steady_clock;
  // No longer for all of them together: what nobody waits for need not be done, and it may never end. No shorter
  // either: PoCL crashes if the process ends while it compiles a kernel, which takes seconds.
  auto const deadline = Clock::now() + std::chrono::seconds{10};
  std::lock_guard const lock{streams().mutex};
  for (auto* const stream : streams().all) {
    while (!stream->is_idle() && Clock::now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
}

}  // namespace unimem::detail::opencl
