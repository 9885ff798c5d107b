#pragma once

#include "device/driver_stream.hpp"
#include "device/opencl/command.hpp"
#include "device/opencl/handle.hpp"

#include <memory>
#include <utility>
#include <vector>

namespace unimem::detail::opencl {

/// The driver's in-order queue and the commands in it that are not known to have ended.
class CommandStream final : public DriverStream {
 public:
  /// `profiles`: the driver keeps the times of this queue's commands.
  CommandStream(Device& device, Api const& api, QueueHandle queue, QueueControl& control, bool profiles)
      : DriverStream(device, control), api_(api), queue_(std::move(queue)), profiles_(profiles) {
    enlist();
  }
  CommandStream(CommandStream const&) = delete;
  CommandStream& operator=(CommandStream const&) = delete;
  ~CommandStream() override { leave(); }

  [[nodiscard]] cl_command_queue queue() const noexcept { return queue_.get(); }
  [[nodiscard]] bool tells_durations() const noexcept override { return profiles_; }

  /// As `DriverStream::append`, and sets the work going: nothing would make a lazy driver begin before a thread waits.
  /// A failure shows in the event.
  Event append(std::shared_ptr<Command> command) {
    api_.clFlush(queue());
    return DriverStream::append(std::move(command));
  }

  /// References to what ends the work of `ticket`: empty if it has ended.
  [[nodiscard]] std::vector<DriverEvent> events_of(Ticket ticket) {
    auto const command = pending(ticket);
    return command ? static_cast<Command const&>(*command).share() : std::vector<DriverEvent>{};
  }

 private:
  Api const& api_;
  QueueHandle queue_;
  bool profiles_;
};

}  // namespace unimem::detail::opencl
