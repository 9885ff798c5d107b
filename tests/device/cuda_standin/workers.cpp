#include "device/cuda_standin/workers.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>

namespace unimem::standin {
namespace {

/// Whether the hardware has come to a command, where streams share queues to it: a queue begins what is in there in the
/// order in which it was submitted, and what waits at its front, for an event or a word, keeps all behind it from
/// beginning, whatever their streams. CUDA Programming Guide, CUDA_DEVICE_MAX_CONNECTIONS; an order by words is not
/// visible to the scheduler, which may "serialize them in an improper order" (cuda.h, cuStreamWaitValue32); an H100
/// with one queue does (docs/gpu-results.md).
bool is_at_front_of_hardware(StreamState const& stream) {
  auto const queues = machine().hardware_queues;
  if (queues == 0) return true;
  auto const place = stream.commands.front().place;
  return std::ranges::all_of(machine().working, [&](std::shared_ptr<StreamState> const& other) {
    if (other->context != stream.context || other->number % queues != stream.number % queues) return true;
    auto const next = std::ranges::find(other->commands, false, &Command::begun);
    return next == other->commands.end() || next->place >= place;
  });
}

/// Whether the worker has anything to do: begin the command at the front, or drop it.
bool has_turn(StreamState const& stream) {
  if (stream.commands.empty()) return stream.destroyed;
  if (stream.context->breaking != Result::success) return true;
  if (stream.held || machine().held) return false;
  auto const& front = stream.commands.front();
  if (!is_at_front_of_hardware(stream)) return false;
  if (!std::ranges::all_of(front.waits, [](auto const& wait) { return wait->done; })) return false;
  return !front.until || front.until();
}

/// Sleeps until there is something to do. Nobody tells when a word of memory changes: that is looked at again and
/// again.
void await_turn(Lock& lock, StreamState& stream) {
  while (!has_turn(stream)) {
    bool const looks = !stream.commands.empty() && stream.commands.front().until;
    if (looks) {
      stream.turn.wait_for(lock, std::chrono::microseconds{50});
    } else {
      stream.turn.wait(lock);
    }
  }
}

/// What the command may touch, kept alive while it runs, or the error of a command that may not touch it.
Result reach_all(Command const& command, std::vector<std::shared_ptr<Allocation>>& kept) {
  for (auto const& use : command.uses) {
    auto reached = machine().memory.reach(use);
    if (reached.empty()) return Result::illegal_address;
    std::ranges::move(reached, std::back_inserter(kept));
  }
  return Result::success;
}

unsigned latency_of(Cost cost) {
  switch (cost) {
    case Cost::copy:
      return machine().copy_us;
    case Cost::kernel:
      return machine().kernel_us;
    case Cost::nothing:
      break;
  }
  return 0;
}

/// The command itself, with the lock released while it works.
Result carry_out(Lock& lock, ContextState& context, Command& command) {
  if (context.breaking != Result::success) return context.breaking;
  if (auto const latency = latency_of(command.cost); latency > 0) {
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds{latency});
    lock.lock();
    if (context.breaking != Result::success) return context.breaking;
  }
  std::vector<std::shared_ptr<Allocation>> kept;
  if (auto const result = command.fault != Result::success ? command.fault : reach_all(command, kept);
      result != Result::success) {
    lose(context, result);
    return result;
  }
  if (command.work) {
    if (command.cost == Cost::copy) ++context.running_copies;
    lock.unlock();
    command.work();
    lock.lock();
    if (command.cost == Cost::copy) --context.running_copies;
    settle(context);
  }
  if (command.effect) command.effect();
  return Result::success;
}

void work(std::shared_ptr<StreamState> const& stream) {
  auto& all = machine();
  Lock lock{all.mutex};
  while (true) {
    await_turn(lock, *stream);
    if (stream->commands.empty()) break;
    auto& command = stream->commands.front();
    auto const completion = command.completion;
    command.begun = true;
    if (all.hardware_queues != 0) wake_workers();
    completion->result = carry_out(lock, *stream->context, command);
    completion->done = true;
    completion->at = std::chrono::steady_clock::now();
    stream->commands.pop_front();
    all.changed.notify_all();
    wake_workers();
  }
  all.working.erase(stream);
  end_of_stream(*stream);
}

/// The program's signals are for its own threads; what a crash of this one raises cannot be blocked anyway.
void block_signals() {
  sigset_t all;
  sigfillset(&all);
  for (auto const crash : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) sigdelset(&all, crash);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace

void start_worker(std::shared_ptr<StreamState> const& stream) {
  stream->has_worker = true;
  machine().working.insert(stream);
  std::thread([stream] {
    block_signals();
    work(stream);
  }).detach();
}

void settle(ContextState& context) {
  if (context.breaking == Result::success || context.running_copies > 0) return;
  if (context.error != Result::success) return;
  context.error = context.breaking;
  machine().changed.notify_all();
  wake_workers();
}

void wake_workers() {
  for (auto const& stream : machine().working)
    if (!stream->commands.empty()) stream->turn.notify_one();
}

}  // namespace unimem::standin
