#include "device/cuda/command_stream.hpp"

#include <unimem/core/error.hpp>

#include "device/process_end.hpp"

#include <algorithm>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

namespace unimem::detail::cuda {
namespace {

/// The driver is asked for the end of one in so many, where nobody wants to know sooner.
constexpr std::size_t most_without_event = 16;

/// Every stream of every GPU, by the id of its queue: a stream may wait for events of any of them.
struct Streams {
  std::mutex mutex;
  std::map<std::uint64_t, std::weak_ptr<CommandStream>> all;
};

Streams& streams() {
  static auto& instance = *new Streams;  // never destroyed: static queues may go after any static of ours
  return instance;
}

}  // namespace

CommandStream::CommandStream(unimem::Device& device, EventPool& events, QueueControl& control)
    : DriverStream(device, control), events_(events), control_(control), owned_(true), shared_(false) {
  CurrentContext const current{events.gpu()};
  events.health().check(events.gpu().driver.cuStreamCreate(&stream_, stream_non_blocking), "cuStreamCreate");
  enlist();
}

CommandStream::CommandStream(unimem::Device& device, EventPool& events, QueueControl& control, Stream foreign)
    : DriverStream(device, control),
      events_(events),
      control_(control),
      stream_(foreign),
      owned_(false),
      shared_(true) {
  enlist();
}

CommandStream::~CommandStream() {
  leave();
  {
    std::lock_guard const lock{streams().mutex};
    streams().all.erase(control_.id());
  }
  if (feeder_ && !is_forked_child()) feeder_->leave_alone();
  if (!owned_ || stream_ == nullptr || driver_gone()) return;
  CurrentContext const current{events_.gpu(), std::nothrow};
  if (current.code() == Result::success) static_cast<void>(events_.gpu().driver.cuStreamDestroy(stream_));
}

void CommandStream::begin(Command& command, Moves moves) {
  without_event_.reserve(most_without_event);  // nothing has to be had once the driver has the work
  if (without_event_.size() == without_event_.capacity()) without_event_.reserve(2 * without_event_.size());
  if (events_.timed() && (moves != Moves::nothing || control_.keeps_durations()))
    command.begin_at(events_.record(stream_));
}

void CommandStream::end(std::shared_ptr<Command> const& command, Moves moves, bool orders) {
  without_event_.push_back(command);
  command->is_given_now();
  // What has moved bytes makes room for more, and is not to seem at work for longer than it is.
  bool const wanted = is_shared() || orders || moves != Moves::nothing || control_.keeps_durations();
  if (!wanted && without_event_.size() < most_without_event) return;
  try {
    record();
  } catch (...) {
    if (!wanted) return;
    without_event_.pop_back();
    if (orders) throw;
    // The work is on its way and cannot be called off: it has a ticket, and since nothing tells its end, it is waited
    // for here and has failed.
    command->fail(std::current_exception());
    drain();
    command->is_over_now();
  }
}

void CommandStream::record() {
  auto const event = std::make_shared<PooledEvent const>(events_.record(stream_));
  for (auto const& command : without_event_) command->end_at(event);
  without_event_.clear();
}

void CommandStream::prepare_to_ask() noexcept {
  auto const lock = submission_if_free();
  if (!lock || without_event_.empty()) return;
  CurrentContext const current{events_.gpu(), std::nothrow};
  // An event that is recorded now comes a moment later, also where all has ended.
  if (current.code() == Result::success && events_.gpu().driver.cuStreamQuery(stream_) == Result::success) {
    for (auto const& command : without_event_) command->is_over_now();
    return without_event_.clear();
  }
  try_to_record();
}

void CommandStream::prepare_to_wait(DriverCommand const& command) noexcept {
  auto const& ours = static_cast<Command const&>(command);
  ours.await_given();
  if (ours.end() != nullptr || driver_gone()) return;
  auto const lock = submission();
  try_to_record();
}

void CommandStream::try_to_record() noexcept {
  if (without_event_.empty()) return;
  try {
    CurrentContext const current{events_.gpu()};
    record();
  } catch (DeviceError const& error) {
    events_.health().note(static_cast<Result>(error.code));
    if (!events_.health().lost()) return;  // it is asked for again
    for (auto const& command : without_event_) {
      command->fail(std::current_exception());
      command->is_over_now();
    }
    without_event_.clear();
  } catch (std::exception const&) {  // NOLINT(bugprone-empty-catch): no memory for now
  }
}

void CommandStream::hold_back(Held held) {
  if (!feeder_) {
    auto& control = QueueControl::create();
    feeder_ = std::make_shared<HostExecutor>(control);
    control.set_waiter(feeder_);
  }
  held_.push_back(std::move(held));
  try {
    auto const given = feeder_->submit([self = shared_from_this()] { self->feed(); });
    if (auto const& command = held_.back().command) command->given_by(given);
  } catch (...) {
    held_.pop_back();
    throw;
  }
}

void CommandStream::give(Held const& held) noexcept {
  if (driver_gone()) return;
  auto& command = *held.command;
  try {
    CurrentContext const current{events_.gpu()};
    begin(command, held.moves);
    held.give(command);
    end(held.command, held.moves);
  } catch (...) {
    command.fail(std::current_exception());
    command.is_over_now();
  }
}

void CommandStream::feed() noexcept {
  auto lock = submission();
  if (held_.empty()) return;  // the stream was shared meanwhile, and has all of it
  auto const behind = held_.front().behind;
  if (behind.queue_id() == 0) {
    auto const held = std::move(held_.front());
    drop_held();
    give(held);
    return lock.unlock();  // what it kept goes without
  }
  auto const other = held_.front().to_its_end ? nullptr : find(behind.queue_id());
  lock.unlock();
  auto const awaited = other ? other->command(behind.ticket()) : nullptr;
  if (awaited) {
    other->prepare_to_wait(*awaited);
    CurrentContext const current{events_.gpu(), std::nothrow};
    lock.lock();
    if (!held_.empty() && wait_in_driver(*awaited) == Result::success) return drop_held();
    lock.unlock();
  }
  if (!other || awaited) static_cast<void>(behind.wait_for_error());
  lock.lock();
  if (!held_.empty()) drop_held();
}

void CommandStream::share() {
  shared_.store(true, std::memory_order_release);
  if (!without_event_.empty()) record();
}

Result CommandStream::wait_in_driver(Command const& command) const noexcept {
  if (driver_gone()) return Result::deinitialized;
  if (command.end() == nullptr) return Result::not_ready;
  return events_.gpu().driver.cuStreamWaitEvent(stream_, command.end(), 0);
}

void CommandStream::drain() noexcept {
  auto const& driver = events_.gpu().driver;
  auto& health = events_.health();
  auto code = driver.cuStreamSynchronize(stream_);
  health.note(code);
  while (code != Result::success && !health.lost()) {  // refused by itself: what is in there goes on all the same
    std::this_thread::yield();
    code = driver.cuStreamQuery(stream_);
    if (code != Result::success && code != Result::not_ready) return health.note(code);
  }
}

void CommandStream::waits_for(std::span<const unimem::Event> host_work) {
  constexpr std::size_t many = 32;
  std::lock_guard const lock{host_work_mutex_};
  if (host_work_.size() >= many) std::erase_if(host_work_, [](auto event) { return event.ready(); });
  host_work_.insert(host_work_.end(), host_work.begin(), host_work.end());
}

std::vector<unimem::Event> CommandStream::host_work() const {
  std::lock_guard const lock{host_work_mutex_};
  std::erase_if(host_work_, [](auto event) { return event.ready(); });
  return host_work_;
}

void CommandStream::enter(std::shared_ptr<CommandStream> const& stream) {
  std::lock_guard const lock{streams().mutex};
  streams().all.emplace(stream->control_.id(), stream);
}

std::shared_ptr<CommandStream> CommandStream::find(std::uint64_t queue_id) {
  std::lock_guard const lock{streams().mutex};
  auto const found = streams().all.find(queue_id);
  return found == streams().all.end() ? nullptr : found->second.lock();
}

std::size_t CommandStream::ended_at_front(Pending const& pending) const noexcept {
  Event asked = nullptr;  // many commands have one event
  bool answer = false;
  auto const has_ended = [&](auto const& pointer) {
    auto const& command = static_cast<Command const&>(*pointer);
    auto* const event = command.end();
    if (event == nullptr) return false;
    if (event != std::exchange(asked, event)) answer = command.has_ended_well();
    return answer;
  };
  return static_cast<std::size_t>(std::ranges::partition_point(pending, has_ended) - pending.begin());
}

}  // namespace unimem::detail::cuda
