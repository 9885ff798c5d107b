#pragma once

#include <unimem/device/event.hpp>

#include "device/opencl/command.hpp"
#include "device/opencl/handle.hpp"
#include "device/queue_control.hpp"

#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace unimem::detail::opencl {

class OpenClDevice;

/// The driver's in-order queue and the commands in it that are not known to have ended.
///
/// Nothing here waits for a callback of the driver: who wants to know asks (`poll`), who must know waits in
/// clWaitForEvents, and every submission collects what has ended. A callback would run on a driver's thread at a moment
/// of the driver's choosing, also while the process exits, and on drivers that execute lazily it never comes.
///
/// Thread-safe. Shared by its queue and by whoever waits at the moment the queue goes.
class CommandStream final : public Waiter {
 public:
  CommandStream(OpenClDevice& device, QueueHandle queue, QueueControl& control);
  ~CommandStream() override;

  [[nodiscard]] cl_command_queue queue() const noexcept { return queue_.get(); }

  /// Held from the first driver call of a command to `append`, so that tickets count in the driver's order.
  [[nodiscard]] std::unique_lock<std::mutex> submission() { return std::unique_lock{submission_mutex_}; }

  /// Takes a ticket for a command just enqueued, and sets it going. The caller holds `submission()`.
  Event append(Command command);

  /// References to what ends the work of `ticket`: empty if it has ended.
  [[nodiscard]] std::vector<DriverEvent> events_of(Ticket ticket);

  void wait_for(Ticket ticket) noexcept override;
  void poll() noexcept override;

  /// Waits for everything submitted so far.
  void wait_for_all() noexcept { wait_for(control_.submitted()); }

  /// Whether everything submitted so far has ended. Never blocks.
  [[nodiscard]] bool is_idle() noexcept;

 private:
  struct Pending {
    Ticket ticket = 0;
    Command command;
  };

  /// Reports the commands at the front that have ended, in order. The commands themselves are handed back to be
  /// destroyed outside the lock. The caller holds `pending_mutex_`.
  [[nodiscard]] std::vector<Command> collect() noexcept;
  [[nodiscard]] std::vector<DriverEvent> share(Command const& command) const;
  [[nodiscard]] Pending& find(Ticket ticket) noexcept;
  void count(Command const& command) noexcept;
  /// How long an ended command was at work, by the device's clock; nothing where the driver does not tell.
  [[nodiscard]] std::optional<std::chrono::nanoseconds> time_of(Command const& command) const noexcept;

  OpenClDevice& device_;
  Api const& api_;
  QueueHandle queue_;
  QueueControl& control_;
  std::mutex submission_mutex_;  ///< taken before pending_mutex_
  std::mutex pending_mutex_;
  std::deque<Pending> pending_;  ///< consecutive tickets
};

/// Gives the work of every stream of the process a fair time to end. For the end of the process, while drivers still
/// stand: work that goes on beyond it would read and write memory of static objects that are being destroyed.
void finish_all_streams() noexcept;

}  // namespace unimem::detail::opencl
