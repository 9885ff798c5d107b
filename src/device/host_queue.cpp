#include <unimem/core/error.hpp>

#include "core/start_thread.hpp"
#include "device/brief_wait.hpp"
#include "device/current_task.hpp"
#include "device/host_queue.hpp"
#include "device/stopwatch.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace unimem::detail {

HostExecutor::HostExecutor(QueueControl& control) : control_(control), shutting_down_(!enlist(*this)) {}

Event HostExecutor::submit(std::span<const Event> needs, Task task) {
  if (is_forked_child()) {
    throw UnsupportedOperation("queued work", "a forked child process", "the queue's thread stayed in the parent");
  }
  std::vector<Event> open;
  for (auto const need : needs) {
    if (!need.ready() || need.error()) open.push_back(need);
  }
  Lock const lock{mutex_};
  // A process that is ending gets no worker any more: its work is done by the threads that wait for it.
  if (!worker_.joinable() && !shutting_down_) worker_ = start_thread("the work of a queue", [this] { work(); });
  // The ticket last: whatever throws before it leaves no ticket that would never end.
  tasks_.push_back({0, std::move(task), std::move(open)});
  auto const event = control_.submit();
  tasks_.back().ticket = event.ticket();
  if (worker_sleeps_ && runner_ == Runner::none) {
    worker_sleeps_ = false;
    work_.notify_one();
  }
  return event;
}

bool HostExecutor::close() noexcept {
  if (may_wait_for_closer()) {
    leave_alone();
    return false;
  }
  control_.wait(control_.submitted());
  {
    Lock const lock{mutex_};
    if (control_.completed() < control_.submitted()) {
      shutting_down_ = true;
      if (worker_.joinable()) worker_.detach();
      return false;
    }
    closing_ = true;
  }
  work_.notify_one();
  if (worker_.joinable()) worker_.join();
  discharge(*this);
  return true;
}

bool HostExecutor::may_wait_for_closer() noexcept {
  Lock const lock{mutex_};
  bool const by_its_work = runner_ != Runner::none && CurrentTask::is_in_work_of(runs_on_);
  return by_its_work || (!CurrentTask::may_wait_for_any() && control_.completed() < control_.submitted());
}

void HostExecutor::leave_alone() noexcept {
  Lock const lock{mutex_};
  closing_ = true;
  if (!worker_.joinable()) return;
  worker_.detach();
  alone_ = true;
  work_.notify_one();
}

HostExecutor::Sleepers::Sleeper::Sleeper(Sleepers& among, Ticket ticket) noexcept
    : among_(among), ticket_(ticket), next_(among.first_) {
  among_.first_ = this;
  if (next_ != nullptr) next_->previous_ = this;
}

HostExecutor::Sleepers::Sleeper::~Sleeper() {
  (previous_ == nullptr ? among_.first_ : previous_->next_) = next_;
  if (next_ != nullptr) next_->previous_ = previous_;
}

bool HostExecutor::Sleepers::any_up_to(Ticket ticket) const noexcept {
  for (auto const* one = first_; one != nullptr; one = one->next_) {
    if (one->ticket_ <= ticket) return true;
  }
  return false;
}

bool HostExecutor::Sleepers::any_beyond(Ticket ticket) const noexcept {
  for (auto const* one = first_; one != nullptr; one = one->next_) {
    if (one->ticket_ > ticket) return true;
  }
  return false;
}

void HostExecutor::wait_until(Ticket ticket, Moment until) noexcept {
  if (is_forked_child()) return;
  until = std::min(until, CurrentTask::patience_ends());
  Lock lock{mutex_};
  while (control_.completed() < ticket) {
    if (!may_help(until)) {
      await_worker(ticket, until, lock);
      if (!shutting_down_) return;
      continue;  // there is no worker any more
    }
    if (runner_ == Runner::none) {
      run(Runner::waiter, ticket, lock);
      continue;
    }
    if (CurrentTask::is_ending_in_work_of(runs_on_)) return;
    lock.unlock();
    bool const soon = comes_soon([&] { return control_.completed() >= ticket; });
    lock.lock();
    if (soon || runner_ == Runner::none) continue;
    Sleepers::Sleeper mine{sleepers_, ticket};
    auto const changed = [&] { return control_.completed() >= ticket || runner_ == Runner::none; };
    if (until == Moment::max()) {
      changed_.wait(lock, changed);
    } else if (!changed_.wait_until(lock, until, changed)) {
      return;
    }
  }
}

/// In the middle of work the next task may need what comes behind that very work: on this thread it would wait for
/// ever, unseen. The worker waits for it where it can be found out (`BlockingWait`). A wait with a time, which a task
/// in hand would outlast, and which Ctrl-C may end in Python, leaves the work to the worker too. Where there is no
/// worker any more, the waiting thread has to.
bool HostExecutor::may_help(Moment until) const noexcept {
  bool const may = until == Moment::max() && CurrentTask::of_this_thread() == nullptr;
  return may || shutting_down_ || !worker_.joinable();
}

void HostExecutor::await_worker(Ticket ticket, Moment until, Lock& lock) noexcept {
  auto const is_left = [this] { return runner_ == Runner::none && worker_sleeps_; };
  auto const wake_worker = [&] {
    worker_sleeps_ = false;
    work_.notify_one();
  };
  auto const is_over = [&] { return control_.completed() >= ticket || shutting_down_; };
  bool const in_work = CurrentTask::of_this_thread() != nullptr;
  if (!in_work) {
    if (is_left()) wake_worker();
    lock.unlock();
    bool const soon = comes_soon([&] { return control_.completed() >= ticket; });
    lock.lock();
    if (soon) return;
  }
  Sleepers::Sleeper mine{sleepers_, ticket};
  while (!is_over() && !CurrentTask::is_ending_in_work_of(runs_on_)) {
    // A thread that stops with work left leaves it to a sleeper, which this one hands on.
    if (is_left()) wake_worker();
    // That the process ends in work is told to no sleeper.
    auto const now = std::chrono::steady_clock::now();
    auto const soon = in_work ? now + std::chrono::milliseconds{1} : until;
    changed_.wait_until(lock, std::min(until, soon), [&] { return is_over() || is_left(); });
    if (std::chrono::steady_clock::now() >= until) return;
  }
}

std::thread::id HostExecutor::works_on() noexcept {
  Lock const lock{mutex_};
  return runner_ == Runner::none ? std::thread::id{} : runs_on_;
}

void HostExecutor::shut_down() noexcept {
  Lock const lock{mutex_};
  shutting_down_ = true;
}

void HostExecutor::await_quiet(std::chrono::steady_clock::time_point until) noexcept {
  Lock lock{mutex_};
  changed_.wait_until(lock, until,
                      [&] { return runner_ != Runner::worker || CurrentTask::is_ending_in_work_of(runs_on_); });
}

void HostExecutor::work() noexcept {
  Lock lock{mutex_};
  bool has_worked = false;
  while (true) {
    while (!is_over() && (shutting_down_ || tasks_.empty() || runner_ != Runner::none)) {
      // More may be on its way behind what it has done: a thread that submits has no sleeper to wake then.
      if (std::exchange(has_worked, false)) {
        lock.unlock();
        static_cast<void>(comes_soon([&] { return control_.completed() != control_.submitted(); }));
        lock.lock();
        continue;
      }
      worker_sleeps_ = true;  // again at each turn: the thread that woke it took the flag away
      work_.wait(lock);
    }
    worker_sleeps_ = false;
    if (is_over()) break;
    run(Runner::worker, std::numeric_limits<Ticket>::max(), lock);
    has_worked = true;
  }
  if (!alone_) return;
  auto& control = control_;
  lock.unlock();
  discharge(*this);
  control.set_waiter(nullptr);  // which may have been the last to have this
}

void HostExecutor::run(Runner runner, Ticket last, Lock& lock) noexcept {
  runner_ = runner;
  runs_on_ = std::this_thread::get_id();
  while (!tasks_.empty() && tasks_.front().ticket <= last && !(runner == Runner::worker && shutting_down_)) {
    auto const ticket = tasks_.front().ticket;
    auto entry = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    {
      CurrentTask const at_work;
      carry_out(std::move(entry));
    }
    lock.lock();
    if (sleepers_.any_up_to(ticket)) changed_.notify_all();
  }
  runner_ = Runner::none;
  if (shutting_down_) changed_.notify_all();
  if (tasks_.empty() && !closing_) return;
  // To a waiter that still needs the work; one whose ticket has ended may not have got up yet, and would take nothing
  // over.
  if (sleepers_.any_beyond(control_.completed())) {
    changed_.notify_all();
  } else if (worker_sleeps_) {
    worker_sleeps_ = false;
    work_.notify_one();
  }
}

void HostExecutor::carry_out(Entry entry) noexcept {
  std::exception_ptr failure;
  QueueControl::Duration took;
  try {
    bool hopeless = false;
    for (auto const need : entry.needs) hopeless = need.wait_for_error() || hopeless;
    if (hopeless) {
      control_.skip(entry.ticket);
    } else if (control_.keeps_durations()) {
      Stopwatch const watch;
      entry.task();
      took = watch.elapsed();
    } else {
      entry.task();
    }
  } catch (...) {
    failure = std::current_exception();
  }
  entry.task = nullptr;  // what it held is let go before its event is done, not at some time after
  control_.finish(entry.ticket, std::move(failure), took);
}

HostQueue::HostQueue() : executor_(std::make_shared<HostExecutor>(control())) {
  control().set_waiter(executor_);
}

HostQueue::~HostQueue() {
  if (is_forked_child()) {
    // Destroying the executor would destroy a lock in an unknown state and a thread that does not exist. The control
    // block keeps it reachable.
    return;
  }
  if (executor_->close()) control().set_waiter(nullptr);  // else the control block keeps it, too
}

Event HostQueue::mark() {
  return submit([] {});
}

void HostQueue::wait(Event event) {
  submit([event] { static_cast<void>(event.wait_for_error()); });
}

}  // namespace unimem::detail
