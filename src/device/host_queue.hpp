#pragma once

#include "device/queue_backend.hpp"
#include "device/worker_threads.hpp"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace unimem::detail {

/// Carries out the work of one queue on host threads, in order, one piece at a time.
///
/// Each executor has a thread of its own, so that work goes on while no thread waits. But waking a sleeping thread
/// costs far more (about 90 µs) than most pieces of work, so a thread that waits for an event does not wait for the
/// worker: if no thread is executing at that moment, it runs the tasks itself, in order, up to its ticket, unless it is
/// in the middle of a task already. The running thread holds `runner_`; there is never more than one, and the thread
/// that stops with work left hands it to a waiter, or wakes the worker.
///
/// Waiters hold the executor by the queue's control block, so it outlives a queue that is destroyed under them. A task
/// may wait for events of other queues (it helps them likewise): it was submitted after what it waits for, so no circle
/// can close. One can where a task calls `std::exit`, and a static object waits for that task or what is behind it: it
/// does not wait for that task then, nor long for others (`CurrentTask`), and what is not done stays undone.
///
/// Thread-safe.
class HostExecutor final : public Waiter, public BackgroundWorker {
 public:
  using Task = std::function<void()>;
  using Moment = std::chrono::steady_clock::time_point;

  explicit HostExecutor(QueueControl& control);

  /// Puts `task` at the end: it runs when `needs` have ended, and is skipped if one of them has failed. What it throws
  /// becomes the error of its ticket. Throws UnsupportedOperation in a forked child.
  Event submit(std::span<const Event> needs, Task task);
  Event submit(Task task) { return submit({}, std::move(task)); }

  /// Runs what is left and ends the worker. Nothing may be submitted any more. False if the executor must stay: it is
  /// closed in the middle of work, which what is left may come behind, and is left alone; or a task of this queue is
  /// ending the process, and the rest stays undone.
  bool close() noexcept;

  /// The same without waiting: the worker carries out what is left, and then lets go of the executor, which the control
  /// block has by now. Where there is no worker, the thread that waits for the work carries it out.
  void leave_alone() noexcept;

  /// Goes on for longer than `until` with what this thread carries out itself.
  void wait_until(Ticket ticket, Moment until) noexcept override;
  void poll() noexcept override {}  // the worker makes progress by itself
  [[nodiscard]] bool needs_polling() const noexcept override { return false; }
  [[nodiscard]] std::thread::id works_on() noexcept override;
  [[nodiscard]] bool tells_durations() const noexcept override { return true; }
  void shut_down() noexcept override;
  void await_quiet(std::chrono::steady_clock::time_point until) noexcept override;

 private:
  enum class Runner : unsigned char { none, worker, waiter };

  struct Entry {
    Ticket ticket;
    Task task;
    std::vector<Event> needs;
  };
  using Lock = std::unique_lock<std::mutex>;

  /// The tickets of sleeping waiters, so that no thread is woken for another's ticket. Each stands on its waiter's own
  /// stack: a waiting thread must not run out of memory.
  class Sleepers {
   public:
    class Sleeper {
     public:
      Sleeper(Sleepers& among, Ticket ticket) noexcept;
      Sleeper(Sleeper const&) = delete;
      Sleeper& operator=(Sleeper const&) = delete;
      ~Sleeper();

     private:
      friend class Sleepers;
      Sleepers& among_;
      Ticket const ticket_;
      Sleeper* previous_ = nullptr;
      Sleeper* next_;
    };

    /// Whether a thread waits for `ticket`, or for an earlier one; for a later one.
    [[nodiscard]] bool any_up_to(Ticket ticket) const noexcept;
    [[nodiscard]] bool any_beyond(Ticket ticket) const noexcept;

   private:
    Sleeper* first_ = nullptr;
  };

  void work() noexcept;
  void carry_out(Entry entry) noexcept;
  /// Whether what is left may come behind what this thread is in the middle of.
  [[nodiscard]] bool may_wait_for_closer() noexcept;
  /// Whether this thread may carry out tasks while it waits. The caller holds the lock.
  [[nodiscard]] bool may_help(Moment until) const noexcept;
  /// Waits for the worker alone.
  void await_worker(Ticket ticket, Moment until, Lock& lock) noexcept;
  /// Whether the worker has nothing to wait for any more.
  [[nodiscard]] bool is_over() const noexcept { return closing_ && tasks_.empty() && runner_ == Runner::none; }
  /// Runs tasks up to `last`, with the lock released during each. The caller has seen that no thread runs.
  void run(Runner runner, Ticket last, Lock& lock) noexcept;

  QueueControl& control_;
  std::mutex mutex_;
  std::condition_variable work_;     ///< for the worker: there is something to do
  std::condition_variable changed_;  ///< for waiting threads: a ticket ended, or no thread runs any more
  std::deque<Entry> tasks_;
  Sleepers sleepers_;
  std::thread worker_;
  Runner runner_ = Runner::none;
  std::thread::id runs_on_;     ///< which thread `runner_` is
  bool worker_sleeps_ = false;  ///< a wake-up is worth its system call
  bool closing_ = false;
  bool alone_ = false;  ///< no thread joins the worker
  bool shutting_down_;  ///< the process is ending: the worker takes nothing up any more
};

/// What the queues of cpu and sim have in common: an executor, and waiting for others. The backend says what a command
/// does.
class HostQueue : public QueueBackend {
 public:
  HostQueue();
  /// Waits for all work, but not in the middle of work, which it may come behind: then it is done later. In a forked
  /// child, where no thread can do it, the work is forgotten.
  ~HostQueue() override;

  Event mark() final;
  void wait(Event event) final;

 protected:
  Event submit(std::span<const Event> needs, HostExecutor::Task task) {
    return executor_->submit(needs, std::move(task));
  }
  Event submit(HostExecutor::Task task) { return executor_->submit(std::move(task)); }

 private:
  std::shared_ptr<HostExecutor> executor_;
};

}  // namespace unimem::detail
