#pragma once

#include "device/driver_stream.hpp"
#include "device/opencl/code.hpp"
#include "device/opencl/handle.hpp"

#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace unimem::detail::opencl {

/// An event of the driver and the call it came from, which an error will name.
struct DriverEvent {
  EventHandle event;
  char const* call = "";
};

/// One ticket's worth of driver commands, with all that must live until they have ended.
class Command final : public DriverCommand {
 public:
  /// `timed` if the driver keeps its time.
  explicit Command(Api const& api, bool timed = false) : api_(api), timed_(timed) {}
  /// A copy of `bytes`, or several in one.
  Command(Api const& api, Moves moves, std::size_t bytes, SharedMeter meter, bool timed, std::size_t copies = 1)
      : DriverCommand(moves, bytes, std::move(meter), copies), api_(api), timed_(timed) {}

  std::vector<DriverEvent> events{};    ///< in the order of submission; the ticket ends when all have
  bool orders_only = false;             ///< failures of its events are others' to report
  std::shared_ptr<void const> keep{};   ///< programs, patterns
  std::vector<MemoryHandle> windows{};  ///< sub-buffers made for this command alone

  /// Makes one driver call that enqueues, `enqueue(cl_event*)`, and adds its event. If the driver refuses, throws
  /// DeviceError after what this command has enqueued before has ended: it may use memory that goes with the command.
  template <class Enqueue>
  void add(char const* call, Enqueue const& enqueue) {
    cl_event event = nullptr;
    auto const code = enqueue(&event);
    if (code != CL_SUCCESS) {
      wait();
      check(code, call);
    }
    events.push_back({EventHandle{api_, event}, call});
  }

  /// References to its events.
  [[nodiscard]] std::vector<DriverEvent> share() const;

  [[nodiscard]] Outcome outcome() noexcept override;
  void wait() const noexcept override;
  [[nodiscard]] char const* call() const noexcept override { return events.back().call; }
  [[nodiscard]] std::optional<std::chrono::nanoseconds> took() const noexcept override;

 private:
  Api const& api_;
  bool timed_ = false;
};

}  // namespace unimem::detail::opencl
