#pragma once

#include <unimem/device/event.hpp>

#include "device/cuda/command.hpp"
#include "device/driver_stream.hpp"
#include "device/host_queue.hpp"

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace unimem::detail::cuda {

/// A stream and the commands in it that are not known to have ended.
///
/// In a stream of our own nothing ever stands that waits for the host: work behind host work is held back, and given
/// to the driver when that has ended, by a thread of the stream's. So whatever the driver has ends by itself, in
/// whichever of its queues streams meet, and so does every call of it that waits for that. What is held back waits for
/// what was submitted before it, so that no circle can close either.
///
/// A stream that others know is shared: what they put there is in order with ours by its place in the stream, so that
/// nothing is held back, and events are recorded in the call that submits the work, since later the stream may be gone.
class CommandStream final : public DriverStream, public std::enable_shared_from_this<CommandStream> {
 public:
  /// A stream of our own, which does not wait for the legacy default stream, or one of the user's, which stays the
  /// user's. Throws DeviceError if there is none to be had.
  CommandStream(unimem::Device& device, EventPool& events, QueueControl& control);
  CommandStream(unimem::Device& device, EventPool& events, QueueControl& control, Stream foreign);
  ~CommandStream() override;

  [[nodiscard]] EventPool& events() const noexcept { return events_; }
  [[nodiscard]] bool tells_durations() const noexcept override { return events_.timed(); }
  [[nodiscard]] Stream stream() const noexcept { return stream_; }

  /// Around what hands a command to the driver, under `submission()` and with the context current. `end` says that it
  /// has been: with an event, or without where nobody may want one. Where there is no event to be had, a command that
  /// only `orders` is refused (DeviceError), and other work is waited for and has failed.
  void begin(Command& command, Moves moves);
  void end(std::shared_ptr<Command> const& command, Moves moves, bool orders = false);

  /// Work for later, or what it comes behind.
  struct Held {
    unimem::Event behind{};   ///< of no queue: this is work
    bool to_its_end = false;  ///< in the driver, too, which would otherwise be told to wait for it
    std::shared_ptr<Command> command{};
    Moves moves = Moves::nothing;
    std::function<void(Command&)> give{};
  };
  /// Under `submission()`: whether what comes next has to be held back, behind what is.
  [[nodiscard]] bool holds_back() const noexcept { return !held_.empty(); }
  /// Under `submission()`. Throws what starting a thread throws; nothing has changed then.
  void hold_back(Held held);
  /// Under `submission()`, for who takes care of it: the oldest of what is held back, or null.
  [[nodiscard]] Held const* oldest_held() const noexcept { return held_.empty() ? nullptr : &held_.front(); }
  void drop_held() noexcept { held_.pop_front(); }
  void give(Held const& held) noexcept;

  [[nodiscard]] bool is_shared() const noexcept { return shared_.load(std::memory_order_acquire); }
  /// Under `submission()` and with the context current, when nothing is held back. Throws DeviceError.
  void share();

  /// The command of `ticket`; null if it has ended.
  [[nodiscard]] std::shared_ptr<Command const> command(Ticket ticket) {
    return std::static_pointer_cast<Command const>(pending(ticket));
  }
  /// Sees to it that a command of this stream has an event, if it has not ended: waits until it is given. Takes
  /// `submission()`.
  void prepare_to_wait(DriverCommand const& command) noexcept override;
  /// Lets this stream wait for a command of another one in the driver. Under `submission()`, with the context current.
  [[nodiscard]] Result wait_in_driver(Command const& command) const noexcept;
  /// Returns when nothing is left in the stream, or the GPU is lost. The context is current.
  void drain() noexcept;

  /// Notes what the stream waits for that is no work of a stream: what writes host memory beside the driver. Those
  /// of a stream that is waited for are noted too.
  void waits_for(std::span<const unimem::Event> host_work);
  /// All such that have not come, those of streams waited for included.
  [[nodiscard]] std::vector<unimem::Event> host_work() const;

  /// Makes the stream findable, of whatever GPU it is.
  static void enter(std::shared_ptr<CommandStream> const& stream);
  /// The stream behind a queue; null if the queue is gone or of another backend.
  [[nodiscard]] static std::shared_ptr<CommandStream> find(std::uint64_t queue_id);

 protected:
  /// A stream's commands end in their order, and what fails is the context.
  [[nodiscard]] std::size_t ended_at_front(Pending const& pending) const noexcept override;
  void prepare_to_ask() noexcept override;

 private:
  /// Gives one of what is held back, or waits for what the rest comes behind: a piece of work of the feeder's.
  void feed() noexcept;
  /// Behind all that has been given. Under `submission()`, with the context current. Throws DeviceError.
  void record();
  /// The same, if there is anything to record an event for, and as far as that is possible. Under `submission()`.
  void try_to_record() noexcept;

  EventPool& events_;
  QueueControl const& control_;
  Stream stream_ = nullptr;
  bool owned_;
  std::atomic<bool> shared_;
  std::vector<std::shared_ptr<Command>> without_event_;  ///< the newest that were given; under `submission()`
  std::deque<Held> held_;                                ///< under `submission()`
  std::shared_ptr<HostExecutor> feeder_;                 ///< made when first needed, under `submission()`
  mutable std::mutex host_work_mutex_;
  mutable std::vector<unimem::Event> host_work_;
};

}  // namespace unimem::detail::cuda
