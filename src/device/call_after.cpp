#include "device/call_after.hpp"

#include "device/host_queue.hpp"
#include "device/queue_control.hpp"

#include <memory>
#include <utility>

namespace unimem::detail {

void call_after(std::vector<Event> events, std::function<void()> then) {
  auto& control = QueueControl::create();
  auto const executor = std::make_shared<HostExecutor>(control);
  control.set_waiter(executor);
  try {
    executor->submit([events = std::move(events), then = std::move(then)] {
      for (auto const event : events) static_cast<void>(event.wait_for_error());
      then();
    });
  } catch (...) {
    if (executor->close()) control.set_waiter(nullptr);
    throw;
  }
  executor->leave_alone();
}

}  // namespace unimem::detail
