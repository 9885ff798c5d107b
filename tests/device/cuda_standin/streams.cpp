#include "device/cuda_standin/streams.hpp"

#include "device/cuda_standin/capture.hpp"
#include "device/cuda_standin/workers.hpp"

#include <algorithm>

namespace unimem::standin {
namespace {

Stream special(std::uintptr_t number) {
  return reinterpret_cast<Stream>(number);
}

bool is_default(Stream handle) {
  return handle == nullptr || handle == special(1) || handle == special(2);
}

/// The default streams wait for each other: the legacy one for all blocking ones of its context, and they for it.
void add_implicit_waits(StreamState& stream, Command& command) {
  auto const wait_for = [&](StreamState const& other) {
    if (other.last != nullptr && !other.last->done) command.waits.push_back(other.last);
  };
  if (!stream.legacy) {
    if (!stream.blocking) return;
    wait_for(*stream.context->legacy);
    stream.clock.join(stream.context->legacy->clock);
    return;
  }
  stream.clock.join(stream.context->blocking_clock);
  for (auto const& other : machine().working)
    if (other->context == stream.context && other->blocking && other.get() != &stream) wait_for(*other);
}

/// The place of a command behind everything it is ordered behind, and what lies in the way of that.
void take_place(StreamState& stream, Command const& command) {
  auto& all = machine();
  follow_host(stream);
  Stamp const stamp{stream.number, ++stream.tickets};
  stream.clock.add(stamp);
  for (auto const& use : command.uses) {
    auto const allocation = all.memory.around(use.begin);
    if (allocation != nullptr && allocation->kind == MemoryKind::stream_ordered &&
        !stream.clock.covers(allocation->born) && !all.known_ends.contains(allocation->born.stream))
      violation(std::string{command.name} + " of memory whose cuMemAllocAsync does not come before it");
  }
  all.history.add(command.name, command.uses, stamp, stream.clock);
  if (stream.blocking) stream.context->blocking_clock.join(stream.clock);
}

}  // namespace

std::shared_ptr<StreamState> make_stream(std::shared_ptr<ContextState> const& context, bool blocking) {
  auto stream = std::make_shared<StreamState>();
  stream->context = context;
  stream->blocking = blocking;
  stream->number = ++machine().streams_made;
  return stream;
}

std::shared_ptr<StreamState> stream_of(Stream handle) {
  auto const context = current();
  if (handle == nullptr || handle == special(1)) return context->legacy;
  if (handle == special(2)) {
    auto& own = context->own_streams[std::this_thread::get_id()];
    if (own == nullptr) own = make_stream(context, true);
    return own;
  }
  auto stream = machine().streams.at(handle);
  require(stream->context->error == Result::success, stream->context->error);
  return stream;
}

std::shared_ptr<StreamState> stream_for_work(Stream handle, char const* call) {
  auto stream = stream_of(handle);
  if (stream->context != current()) {
    violation(std::string{call} + " on a stream of device " + std::to_string(stream->context->device) +
              " while device " + std::to_string(current()->device) + " is current");
  }
  return stream;
}

std::shared_ptr<Completion> submit(std::shared_ptr<StreamState> const& stream, Command command) {
  auto& all = machine();
  command.fault = std::exchange(all.late_fault, Result::success);
  if (stream->capture != nullptr) {
    capture_command(*stream, std::move(command));
    return nullptr;
  }
  if (stream->legacy) refuse_legacy_during_capture(*stream->context);
  add_implicit_waits(*stream, command);
  take_place(*stream, command);
  auto completion = std::make_shared<Completion>();
  completion->clock = stream->clock;
  command.completion = completion;
  command.place = ++all.submissions;
  stream->last = completion;
  stream->commands.push_back(std::move(command));
  if (!stream->has_worker) start_worker(stream);
  stream->turn.notify_one();
  return completion;
}

Result await(Lock& lock, ContextState const& context, std::shared_ptr<Completion> const& completion) {
  machine().changed.wait(lock, [&] { return completion->done || context.error != Result::success; });
  if (context.error != Result::success) return context.error;
  host_knows(completion->clock);
  return completion->result;
}

void wait_implicitly(Lock& lock, ContextState& context) {
  auto& all = machine();
  if (all.hardware_queues == 0) return;
  auto const kept = context.shared_from_this();  // the lock is let go meanwhile
  auto const last = all.submissions;
  all.changed.wait(lock, [&] {
    auto const is_done = [&](std::shared_ptr<StreamState> const& stream) {
      return stream->context != kept || stream->commands.empty() || stream->commands.front().place > last;
    };
    return kept->error != Result::success || std::ranges::all_of(all.working, is_done);
  });
}

Result ask(std::shared_ptr<Completion> const& completion) {
  if (completion == nullptr) return Result::success;
  if (!completion->done) return Result::not_ready;
  host_knows(completion->clock);
  return completion->result;
}

void lose(ContextState& context, Result code) {
  if (context.breaking == Result::success) context.breaking = code;
  machine().history.clear();
  settle(context);
}

void lose_and_wait(Lock& lock, ContextState& context, Result code) {
  auto const kept = context.shared_from_this();  // the lock is let go meanwhile
  lose(context, code);
  machine().changed.wait(lock, [&] { return context.error != Result::success; });
}

void retire(StreamState& stream) {
  if (stream.capture != nullptr) leave_capture(stream);
  stream.destroyed = true;
  stream.turn.notify_one();
}

char const* user_of(Allocation const& allocation) {
  auto const touches = [&](Use const& use) {
    return use.begin < allocation.end() && allocation.base < use.begin + std::max<std::size_t>(use.bytes, 1);
  };
  for (auto const& stream : machine().working) {
    for (auto const& command : stream->commands)
      if (std::ranges::any_of(command.uses, touches)) return command.name;
  }
  return nullptr;
}

namespace calls {

Result cuStreamCreate(Lock& /*lock*/, Stream* stream, unsigned flags) {
  require(stream != nullptr && (flags == 0 || flags == stream_non_blocking));
  auto state = make_stream(current(), flags == 0);
  *stream = machine().streams.add(state);
  state->handle = *stream;
  return Result::success;
}

Result cuStreamDestroy(Lock& /*lock*/, Stream stream) {
  require(!is_default(stream), Result::invalid_handle);
  auto const context = current_even_if_lost();
  auto const state = machine().streams.at(stream);
  if (state->capture != nullptr) violation("cuStreamDestroy of a stream that is being captured");
  machine().streams.erase(stream);
  retire(*state);
  return context->error;
}

Result cuStreamQuery(Lock& /*lock*/, Stream stream) {
  auto const state = stream_of(stream);
  refuse_on_captured(*state);
  refuse_during_capture();
  if (state->legacy) {
    for (auto const& other : machine().working)
      if (other->context == state->context && other->blocking && !other->commands.empty()) return Result::not_ready;
    host_knows(state->context->blocking_clock);
  }
  auto const result = ask(state->last);
  if (result == Result::success) host_knows(state->clock);
  return result;
}

Result cuStreamSynchronize(Lock& lock, Stream stream) {
  auto const state = stream_of(stream);
  refuse_on_captured(*state);
  refuse_during_capture();
  if (state->legacy) {
    // What waits for it is what it waits for: all blocking streams.
    Command command;
    command.name = "cuStreamSynchronize";
    return await(lock, *state->context, submit(state, std::move(command)));
  }
  // Not only what its last command comes after: what ended before it was waited for made no command of it.
  auto const clock = state->clock;
  auto const result = state->last == nullptr ? Result::success : await(lock, *state->context, state->last);
  if (result == Result::success) host_knows(clock);
  return result;
}

Result cuStreamGetCtx(Lock& /*lock*/, Stream stream, Context* context) {
  require(context != nullptr);
  *context = stream_of(stream)->context->handle;
  return Result::success;
}

}  // namespace calls

}  // namespace unimem::standin
