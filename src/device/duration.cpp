#include <unimem/core/error.hpp>
#include <unimem/device/device.hpp>
#include <unimem/device/duration.hpp>

#include "device/queue_control.hpp"

#include <string>

namespace unimem {

void keep_durations(Queue& queue) {
  // Its control block, which a queue has from its first ticket on.
  auto const mark = queue.mark();
  if (detail::QueueControl::of(mark)->keep_durations()) return;
  throw UnsupportedOperation("keeping durations", std::string(queue.device().id()),
                             "the driver keeps no times of this queue; open the device with profile=1");
}

std::optional<std::chrono::nanoseconds> duration(Event event) noexcept {
  auto const* const control = detail::QueueControl::of(event);
  return control == nullptr || !event.ready() ? std::nullopt : control->duration(event.ticket());
}

}  // namespace unimem
