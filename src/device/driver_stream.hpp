#pragma once

#include <unimem/device/detail/transfer_meter.hpp>
#include <unimem/device/device.hpp>
#include <unimem/device/event.hpp>

#include "device/queue_control.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace unimem::detail {

/// What a command moves, to be counted once it has.
enum class Moves : std::uint8_t { nothing, upload, download, copy };

/// One ticket's worth of work that was given to a driver, with all that must live until it has ended.
class DriverCommand {
 public:
  /// `copies`: how many it counts as, once it has moved its bytes.
  explicit DriverCommand(Moves moves = Moves::nothing, std::size_t bytes = 0, SharedMeter meter = {},
                         std::size_t copies = 1) noexcept
      : moves_(moves), bytes_(bytes), copies_(copies), meter_(std::move(meter)) {}
  DriverCommand(DriverCommand const&) = delete;
  DriverCommand& operator=(DriverCommand const&) = delete;
  virtual ~DriverCommand() = default;

  /// How a command stands.
  struct Outcome {
    bool running = false;
    std::exception_ptr failure;
  };

  /// Whether the driver has it.
  [[nodiscard]] virtual bool has_begun() const noexcept { return true; }

  /// Asks the driver. Does not block where the driver can tell.
  [[nodiscard]] virtual Outcome outcome() noexcept = 0;

  /// Blocks until the driver says that the work has ended. Its outcome is asked for afterwards.
  virtual void wait() const noexcept = 0;

  /// The driver call that errors name.
  [[nodiscard]] virtual char const* call() const noexcept = 0;

  /// How long an ended command was at work; nothing where the driver does not tell.
  [[nodiscard]] virtual std::optional<std::chrono::nanoseconds> took() const noexcept { return std::nullopt; }

  /// The work counts as failed once it has ended, whatever the driver says: the callable that put it there did not
  /// finish.
  void fail(std::exception_ptr failure) noexcept { failure_ = std::move(failure); }
  [[nodiscard]] std::exception_ptr const& failure() const noexcept { return failure_; }

  /// Adds what has moved to the counters of its device.
  void count(Device& device) const noexcept;

 private:
  Moves moves_;
  std::size_t bytes_;
  std::size_t copies_;
  SharedMeter meter_;
  std::exception_ptr failure_;
};

/// The commands of a driver's in-order queue that are not known to have ended.
///
/// Nothing here waits for a callback of the driver: to know it is to ask (`poll`), to be sure is to wait in the driver,
/// and now and then a submission collects what has ended. (Not each: to ask can cost half of a launch.) A callback
/// would run on a driver's thread at a moment of the driver's choosing, also while the process exits, and on drivers
/// that execute lazily it never comes.
///
/// Thread-safe. Shared by its queue and by the threads that wait at the moment the queue goes.
class DriverStream : public Waiter {
 public:
  DriverStream(Device& device, QueueControl& control) : device_(device), control_(control) {}

  /// Held from the first driver call of a command to `append`, so that tickets count in the driver's order.
  [[nodiscard]] std::unique_lock<std::mutex> submission() { return std::unique_lock{submission_mutex_}; }
  /// The same where nobody may wait for it: a lock of nothing if another thread has it.
  [[nodiscard]] std::unique_lock<std::mutex> submission_if_free() {
    return std::unique_lock{submission_mutex_, std::try_to_lock};
  }

  /// Takes a ticket for a command that the driver was just given. The caller holds `submission()`.
  Event append(std::shared_ptr<DriverCommand> command);

  /// The command of `ticket`; null if it has ended.
  [[nodiscard]] std::shared_ptr<DriverCommand> pending(Ticket ticket);

  /// In the driver, or, until a moment, by polling, ever less often.
  void wait_until(Ticket ticket, std::chrono::steady_clock::time_point until) noexcept override;
  void poll() noexcept override;

  /// The end of a queue: returns when its work has ended, and the control block has let go of the stream. In the middle
  /// of work, which it may come behind, that is left to another thread, and the stream lives until then.
  static void end(std::shared_ptr<DriverStream> stream) noexcept;

  /// Whether everything submitted so far has ended. Never blocks.
  [[nodiscard]] bool is_idle() noexcept;
  /// Whether the driver has nothing of it that has not ended. Never blocks.
  [[nodiscard]] bool leaves_driver_alone() noexcept;

 protected:
  using Pending = std::deque<std::shared_ptr<DriverCommand>>;  ///< consecutive tickets
  /// How many of these, from the front, are sure to have ended well, as the end of a later one tells. Does not block.
  [[nodiscard]] virtual std::size_t ended_at_front(Pending const& /*pending*/) const noexcept { return 0; }
  /// Before the driver is asked for the end of what has no event yet. Does not block.
  virtual void prepare_to_ask() noexcept {}
  /// The last thing in the constructor of a class that is derived, and the first in its destructor: in between the end
  /// of the process waits for the stream, on another thread, and calls what the class has overridden.
  void enlist();
  void leave() noexcept;

  /// Before this thread waits in the driver for a command. May block, as that wait will.
  virtual void prepare_to_wait(DriverCommand const& /*command*/) noexcept {}

 private:
  void wait_for(Ticket ticket) noexcept;

  using Commands = std::vector<std::shared_ptr<DriverCommand>>;

  /// Reports the commands at the front that have ended, in order, and hands them back to be destroyed outside the lock.
  /// The caller holds `pending_mutex_`.
  [[nodiscard]] Commands collect() noexcept;
  [[nodiscard]] std::shared_ptr<DriverCommand> const& find(Ticket ticket) const noexcept;

  Device& device_;
  QueueControl& control_;
  std::mutex submission_mutex_;  ///< taken before pending_mutex_
  std::mutex pending_mutex_;
  Ticket first_ = 0;  ///< of the front of `pending_`
  Pending pending_;
};

/// Gives the work of every driver's stream of the process a fair time to end. For the end of the process, while drivers
/// still stand: work that goes on beyond it would read and write memory of static objects that are being destroyed.
void finish_all_streams() noexcept;

}  // namespace unimem::detail
