#include "device/opencl/command.hpp"

#include <algorithm>
#include <array>
#include <span>

namespace unimem::detail::opencl {

DriverCommand::Outcome Command::outcome() noexcept {
  cl_int failure = CL_SUCCESS;
  char const* failed = "";
  for (auto const& [event, call] : events) {
    cl_int status = CL_QUEUED;
    auto* const handle = event.get();
    auto const asked = api_.clGetEventInfo(handle, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, nullptr);
    if (asked != CL_SUCCESS) {
      // Not known to have ended, so waited for, though the caller may only be polling: what is reported as ended gives
      // its memory free. A driver that has lost the device returns at once.
      api_.clWaitForEvents(1, &handle);
      if (failure == CL_SUCCESS) failure = asked, failed = "clGetEventInfo";
      continue;
    }
    if (status > CL_COMPLETE) return {true, nullptr};
    if (status < 0 && failure == CL_SUCCESS) failure = status, failed = call;
  }
  if (failure != CL_SUCCESS) return {false, orders_only ? nullptr : failure_of(failure, failed)};
  // Asking for the status is no synchronization point (clGetEventInfo); having waited for the event is.
  auto* const last = events.back().event.get();
  api_.clWaitForEvents(1, &last);
  return {};
}

void Command::wait() const noexcept {
  std::array<cl_event, 64> list{};
  for (std::size_t from = 0; from < events.size(); from += list.size()) {
    auto const some = std::span{events}.subspan(from, std::min(list.size(), events.size() - from));
    std::ranges::transform(some, list.begin(), [](DriverEvent const& one) { return one.event.get(); });
    if (api_.clWaitForEvents(static_cast<cl_uint>(some.size()), list.data()) == CL_SUCCESS) continue;
    // With a failure among them a driver may return before the others have ended.
    for (std::size_t i = 0; i < some.size(); ++i) api_.clWaitForEvents(1, &list[i]);
  }
}

std::vector<DriverEvent> Command::share() const {
  std::vector<DriverEvent> result;
  for (auto const& [event, call] : events) {
    if (api_.clRetainEvent(event.get()) == CL_SUCCESS) result.push_back({EventHandle{api_, event.get()}, call});
  }
  return result;
}

std::optional<std::chrono::nanoseconds> Command::took() const noexcept {
  if (!timed_ || driver_gone()) return std::nullopt;
  auto const at = [&](cl_event event, cl_profiling_info moment) {
    cl_ulong nanoseconds = 0;
    auto const asked = api_.clGetEventProfilingInfo(event, moment, sizeof nanoseconds, &nanoseconds, nullptr);
    return asked == CL_SUCCESS ? nanoseconds : 0;
  };
  auto const begin = at(events.front().event.get(), CL_PROFILING_COMMAND_START);
  auto const end = at(events.back().event.get(), CL_PROFILING_COMMAND_END);
  // A driver that does not know says nothing, zeros, an end before the beginning, or one nanosecond (Rusticl).
  if (begin == 0 || end <= begin + 1) return std::nullopt;
  return std::chrono::nanoseconds{end - begin};
}

}  // namespace unimem::detail::opencl
