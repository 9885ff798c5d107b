#pragma once

#include <unimem/device/event.hpp>

#include "device/cuda/command.hpp"
#include "device/driver_stream.hpp"

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace unimem::detail::cuda {

/// A stream and the commands in it that are not known to have ended.
class CommandStream final : public DriverStream {
 public:
  /// A stream of our own, which does not wait for the legacy default stream, or one of the user's, which stays the
  /// user's. Throws DeviceError if there is none to be had.
  CommandStream(unimem::Device& device, EventPool& events, QueueControl& control);
  CommandStream(unimem::Device& device, EventPool& events, QueueControl& control, Stream foreign);
  ~CommandStream() override;

  [[nodiscard]] EventPool& events() const noexcept { return events_; }
  [[nodiscard]] Stream stream() const noexcept { return stream_; }

  /// The command of `ticket`, whose event another stream may wait for; null if it has ended.
  [[nodiscard]] std::shared_ptr<Command const> command(Ticket ticket) {
    return std::static_pointer_cast<Command const>(pending(ticket));
  }

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

 private:
  EventPool& events_;
  QueueControl const& control_;
  Stream stream_ = nullptr;
  bool owned_;
  mutable std::mutex host_work_mutex_;
  mutable std::vector<unimem::Event> host_work_;
};

}  // namespace unimem::detail::cuda
