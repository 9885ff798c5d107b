#pragma once

#include "device/opencl/code.hpp"
#include "device/opencl/handle.hpp"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

namespace unimem::detail::opencl {

/// An event of the driver and the call it came from, which an error will name.
struct DriverEvent {
  EventHandle event;
  char const* call = "";
};

/// What a command moves, to be counted once it has.
enum class Moves : std::uint8_t { nothing, upload, download, copy };

/// One ticket's worth of driver commands, with all that must live until they have ended.
struct Command {
  std::vector<DriverEvent> events{};  ///< in the order of submission; the ticket ends when all have
  Moves moves = Moves::nothing;
  std::size_t bytes = 0;
  bool orders_only = false;             ///< failures of its events are others' to report
  std::shared_ptr<void const> keep{};   ///< programs, patterns
  std::vector<MemoryHandle> windows{};  ///< sub-buffers made for this command alone

  /// Makes one driver call that enqueues, `enqueue(cl_event*)`, and adds its event. If the driver refuses, throws
  /// DeviceError after what this command has enqueued before has ended: it may use memory that goes with the command.
  template <class Enqueue>
  void add(Api const& api, char const* call, Enqueue const& enqueue) {
    cl_event event = nullptr;
    auto const code = enqueue(&event);
    if (code != CL_SUCCESS) {
      for (auto const& earlier : events) {
        auto* const handle = earlier.event.get();
        api.clWaitForEvents(1, &handle);
      }
      check(code, call);
    }
    events.push_back({EventHandle{api, event}, call});
  }
};

}  // namespace unimem::detail::opencl
