#pragma once

#include <unimem/device/event.hpp>

#include "core/fork.hpp"
#include "device/continuations.hpp"
#include "device/ticket_set.hpp"

#include <boost/container/small_vector.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

namespace unimem::detail {

class QueueControl;

/// What can make a queue's work end: it waits in the driver, or runs the work itself.
class Waiter {
 public:
  Waiter() = default;
  Waiter(Waiter const&) = delete;
  Waiter& operator=(Waiter const&) = delete;
  virtual ~Waiter() = default;

  /// Returns once `QueueControl::finish` has been called for `ticket`, or when `until` has come.
  virtual void wait_until(Ticket ticket, std::chrono::steady_clock::time_point until) noexcept = 0;

  /// Gives the driver a chance to tell that work has ended. Never blocks.
  virtual void poll() noexcept = 0;

  /// Whether work may have ended without `QueueControl::finish` being called until a thread polls or waits.
  [[nodiscard]] virtual bool needs_polling() const noexcept { return true; }

  /// Which thread is in the middle of carrying out the queue's work, if one of the host's does.
  [[nodiscard]] virtual std::thread::id works_on() noexcept { return {}; }

  /// Whether what ends has its duration, once `QueueControl::keeps_durations`.
  [[nodiscard]] virtual bool tells_durations() const noexcept { return false; }
};

/// What events point to: the ids, counts and errors of one queue. Control blocks are never freed, so that an event
/// needs no reference count and outlives its queue; a queue costs the process these few hundred bytes for good.
///
/// Which events are still held is not known, so that a ticket failed is kept permanently, too: in two bytes or so. Its
/// error is kept whole until `kept_failures` more have come to be known of; a later caller is told that it failed, and
/// why not how.
class QueueControl {
 public:
  /// The errors a queue keeps whole, which a program that fails and goes on would fill memory with.
  static constexpr std::size_t kept_failures = 256;

  /// A new block with an id of its own.
  [[nodiscard]] static QueueControl& create() { return create(Work::of_a_queue); }
  /// The same for work that no queue carries out: each ticket is the whole of its work.
  [[nodiscard]] static QueueControl& create_external() { return create(Work::external); }
  [[nodiscard]] static bool is_external(Event event) noexcept {
    return event.control_ != nullptr && event.control_->work_ == Work::external;
  }

  QueueControl(QueueControl const&) = delete;
  QueueControl& operator=(QueueControl const&) = delete;

  [[nodiscard]] std::uint64_t id() const noexcept { return id_; }

  /// Takes the next ticket. The queue serializes calls with its submissions.
  [[nodiscard]] Event submit() noexcept { return {this, submitted_.fetch_add(1, std::memory_order_acq_rel) + 1}; }

  [[nodiscard]] Ticket submitted() const noexcept { return submitted_.load(std::memory_order_acquire); }

  /// The highest ticket that has ended. Acquire: what the work wrote is visible to a thread that sees its ticket here.
  [[nodiscard]] Ticket completed() const noexcept { return completed_.load(std::memory_order_acquire); }

  using Duration = std::optional<std::chrono::nanoseconds>;

  /// Records that everything up to `ticket` has ended; `failure` and `took` belong to `ticket` alone.
  void finish(Ticket ticket, std::exception_ptr failure = nullptr, Duration took = std::nullopt) noexcept;

  /// How many durations are kept.
  static constexpr std::size_t kept_durations = 1024;
  /// Keeps them from now on; false if the queue's driver does not tell them.
  [[nodiscard]] bool keep_durations();
  [[nodiscard]] bool keeps_durations() const noexcept { return keeps_durations_.load(std::memory_order_relaxed); }
  /// Of work that has ended, if it is known and still kept.
  [[nodiscard]] Duration duration(Ticket ticket) const noexcept;

  /// The work of `ticket`, which has not ended, or in whose place nothing was submitted, never begins: what it needs
  /// has failed.
  void skip(Ticket ticket);
  [[nodiscard]] bool never_began(Ticket ticket) noexcept;

  /// The work of `ticket` counts as failed, whatever becomes of it: more should have come behind it, and did not.
  void fail(Ticket ticket, std::exception_ptr failure);

  /// What work may inherit from what it needs. Found out before the work is submitted, since to record it takes memory,
  /// and work that has been submitted cannot be called back.
  class InheritedErrors;
  [[nodiscard]] static InheritedErrors inherited_errors_of(std::span<const Event> needs);

  /// `ticket` fails, too, if one of its needs has failed, which its work was ordered behind.
  void inherit(Ticket ticket, InheritedErrors inherited) noexcept;
  void inherit(Ticket ticket, std::span<const Event> needs);

  /// `ticket` does nothing itself but stand for `events`: it fails with them, and never began if none of them did.
  void join(Ticket ticket, std::span<const Event> events);

  /// The error of work that has ended: its own, or the one it inherits; a DeviceError that says that it failed, where
  /// that is no longer kept.
  [[nodiscard]] std::exception_ptr error(Ticket ticket) noexcept;

  /// The first error that is kept later than what was last taken; null if there was none.
  [[nodiscard]] std::exception_ptr take_error() noexcept;

  /// Blocks until `ticket` has ended, helping through the waiter if there is one, or until that moment has come.
  void wait_until(Ticket ticket, std::chrono::steady_clock::time_point until) noexcept;
  void wait(Ticket ticket) noexcept { wait_until(ticket, std::chrono::steady_clock::time_point::max()); }

  /// Which thread is in the middle of the queue's work, if one of the host's does.
  [[nodiscard]] std::thread::id works_on() noexcept;

  /// What an event points to; null for none.
  [[nodiscard]] static QueueControl* of(Event event) noexcept { return event.control_; }

  /// Whether that work is known to have ended. The driver, which may know better, is not asked: that costs a call.
  [[nodiscard]] static bool knows_end_of(Event event) noexcept {
    return event.control_ == nullptr || event.control_->completed() >= event.ticket_;
  }

  /// Whether that work is known to have ended, and not to have failed.
  [[nodiscard]] static bool knows_good_end_of(Event event) noexcept {
    if (event.control_ == nullptr) return true;
    auto& control = *event.control_;
    if (control.completed() < event.ticket_) return false;
    return !control.may_fail_.load(std::memory_order_acquire) || control.error(event.ticket_) == nullptr;
  }

  void poll() noexcept;

  /// Has the coroutine resumed, by the CoroutineThread, which has been started, once its ticket has ended, or what
  /// stands in its place told; that may be before this returns. Returns false, and does nothing, if the ticket has
  /// ended already, or the driver would have to be asked and is not any more, as the process is ending.
  [[nodiscard]] bool resume_after(Continuation& continuation);

  /// Takes back what `resume_after` was told, if the coroutine has not been resumed.
  void withdraw(Continuation& continuation) noexcept;

  /// Returns whether anything awaits this queue, having polled if so. Otherwise the watcher forgets the queue, and
  /// is told when there is one again.
  [[nodiscard]] bool poll_if_awaited() noexcept;

  /// The queue comes and goes; all its work has ended before it is taken away.
  void set_waiter(std::shared_ptr<Waiter> waiter) noexcept;

 private:
  enum class Work : bool { of_a_queue, external };
  [[nodiscard]] static QueueControl& create(Work work);
  QueueControl(std::uint64_t id, Work work) noexcept : id_(id), work_(work) {}

  /// The failure of work for which there was no memory when it came to be known.
  struct SetAside {
    Ticket first = 0, last = 0;  ///< the same, but in the last place, which all those share that come when all are full
    std::exception_ptr failure;
  };

  /// What `ticket` needs and may have failed, or what it stands for.
  struct Inheritance {
    boost::container::small_vector<Event, 2> from;
    bool joins_all = false;  ///< nothing beside them has ended well
  };
  using Inheritances = std::map<Ticket, std::shared_ptr<Inheritance const>>;
  [[nodiscard]] static InheritedErrors inherited_errors_of(std::span<const Event> needs, bool joins_them);

  /// Under the lock. Returns an error that is no longer kept: it may be a user's, whose destructor is not called under
  /// a lock.
  [[nodiscard]] std::exception_ptr keep(Ticket ticket, std::exception_ptr failure) noexcept;
  /// The same in the map; nothing has changed where there is no memory for it.
  [[nodiscard]] std::exception_ptr enter(Ticket ticket, std::exception_ptr const& failure);
  void set_aside(Ticket ticket, std::exception_ptr failure) noexcept;
  /// Those that were set aside, now that there may be memory. Drops none.
  void enter_set_aside();

  [[nodiscard]] std::shared_ptr<Waiter> waiter() noexcept;

  /// Finds out what the work up to `ticket`, all of which has ended, inherits.
  void settle_inheritance(Ticket ticket) noexcept;

  MadeHere const made_{};
  std::uint64_t const id_;
  Work const work_;
  QueueControl* made_before_ = nullptr;  ///< keeps all reachable
  std::atomic<Ticket> submitted_{0};
  std::atomic<Ticket> completed_{0};
  std::atomic<bool> may_fail_{false};  ///< some work has failed, or inherits
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  bool some_failed_ = false;
  std::map<Ticket, std::exception_ptr> failures_;  ///< with their errors
  std::vector<Ticket> latest_;                     ///< the same in the order in which they came to be known
  std::array<SetAside, 4> set_aside_;              ///< from the front
  std::size_t set_aside_count_ = 0;
  TicketSet failed_;              ///< those before them
  std::exception_ptr forgotten_;  ///< the error of those; null while there are none
  Ticket last_forgotten_ = 0;     ///< the highest of them
  Inheritances inherits_;         ///< not looked into yet
  TicketSet skipped_;
  Ticket reported_ = 0;
  std::shared_ptr<Waiter> waiter_;
  Continuations awaiting_;      ///< for tickets that have not ended
  bool watcher_polls_ = false;  ///< the watcher knows this queue
  struct Took {
    Ticket ticket = 0;
    std::chrono::nanoseconds time{};
  };
  std::vector<Took> took_;                    ///< each at the place of its ticket; empty while none are kept
  std::atomic<bool> keeps_durations_{false};  ///< relaxed: work that is under way at that moment may have none
};

class QueueControl::InheritedErrors {
 private:
  friend class QueueControl;
  Inheritances::node_type node_;  ///< empty: nothing that may fail
};

}  // namespace unimem::detail
