#include "device/cuda_standin/events.hpp"

#include "device/cuda_standin/capture.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>

namespace unimem::standin {
namespace {

std::shared_ptr<EventState> event_of(Event handle) {
  static_cast<void>(current());
  auto event = machine().events.at(handle);
  require(event->context->error == Result::success, event->context->error);
  return event;
}

/// For calls that ask how far an event is: those of a capture have no answer.
std::shared_ptr<EventState> uncaptured(Event handle) {
  auto event = event_of(handle);
  refuse_captured_event(*event);
  refuse_during_capture();
  return event;
}

}  // namespace

namespace calls {

Result cuEventCreate(Lock& /*lock*/, Event* event, unsigned flags) {
  require(event != nullptr && flags <= (event_blocking_sync | event_disable_timing | 4U));
  auto state = std::make_shared<EventState>();
  state->context = current();
  state->flags = flags;
  *event = machine().events.add(std::move(state));
  return Result::success;
}

Result cuEventDestroy(Lock& /*lock*/, Event event) {
  auto const context = current_even_if_lost();
  static_cast<void>(machine().events.at(event));
  machine().events.erase(event);  // what waits for it holds its completion
  return context->error;
}

Result cuEventRecord(Lock& /*lock*/, Event event, Stream stream) {
  auto const state = event_of(event);
  auto const target = stream_of(stream);
  require(state->context == target->context, Result::invalid_handle);
  if (target->capture != nullptr) {
    capture_record(*target, *state);
    return Result::success;
  }
  Command command;
  command.name = "cuEventRecord";
  state->last = submit(target, std::move(command));
  state->captured = false;
  state->capture.reset();
  return Result::success;
}

Result cuEventQuery(Lock& /*lock*/, Event event) {
  auto const state = uncaptured(event);
  return ask(state->last);
}

Result cuEventSynchronize(Lock& lock, Event event) {
  auto const state = uncaptured(event);
  if (state->last == nullptr) return Result::success;
  // cuda.h, cuEventCreate: without CU_EVENT_BLOCKING_SYNC the thread that waits may spin.
  if ((state->flags & event_blocking_sync) == 0) ++machine().spinning_waits;
  auto const last = state->last;  // a record while we sleep is not ours to wait for
  return await(lock, *state->context, last);
}

Result cuStreamWaitEvent(Lock& /*lock*/, Stream stream, Event event, unsigned flags) {
  require(flags == 0);
  auto const target = stream_of(stream);
  auto const state = machine().events.at(event);
  if (state->captured || target->capture != nullptr) {
    capture_wait(target, *state);
    return Result::success;
  }
  if (state->last == nullptr) return Result::success;
  target->clock.join(state->last->clock);
  if (state->last->done) return Result::success;
  Command command;
  command.name = "cuStreamWaitEvent";
  command.waits.push_back(state->last);
  static_cast<void>(submit(target, std::move(command)));
  return Result::success;
}

Result cuEventElapsedTime(Lock& /*lock*/, float* milliseconds, Event begin, Event end) {
  require(milliseconds != nullptr);
  auto const first = uncaptured(begin), second = uncaptured(end);
  auto const timed = [](EventState const& event) {
    return event.last != nullptr && (event.flags & event_disable_timing) == 0;
  };
  require(timed(*first) && timed(*second), Result::invalid_handle);
  if (!first->last->done || !second->last->done) return Result::not_ready;
  *milliseconds = std::chrono::duration<float, std::milli>(second->last->at - first->last->at).count();
  return Result::success;
}

Result cuStreamWaitValue32(Lock& /*lock*/, Stream stream, DevicePointer address, std::uint32_t value, unsigned flags) {
  require(address % sizeof value == 0 && flags == wait_value_at_least);
  auto const target = stream_for_work(stream, "cuStreamWaitValue32");
  require(target->capture == nullptr, Result::stream_capture_unsupported);
  auto const memory = machine().memory.around(address);
  require(memory != nullptr && memory->is_host());
  Command command;
  command.name = "cuStreamWaitValue32";
  command.uses.push_back({address, sizeof value, -1, false});
  // Cyclically at least, as the driver compares.
  command.until = [memory, value, word = reinterpret_cast<std::uint32_t*>(address)] {
    return static_cast<std::int32_t>(std::atomic_ref{*word}.load(std::memory_order_acquire) - value) >= 0;
  };
  static_cast<void>(submit(target, std::move(command)));
  // The host raises the word when whatever it knows of has come, and only it knows what that is.
  for (auto const& other : machine().working) target->clock.join(other->clock);
  return Result::success;
}

}  // namespace calls

}  // namespace unimem::standin
