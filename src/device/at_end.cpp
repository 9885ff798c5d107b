#include "device/at_end.hpp"

#include "device/queue_control.hpp"

#include <exception>

namespace unimem::detail {

void AtEnd::call(Continuation& continuation) noexcept {
  std::unique_ptr<AtEnd> const done{static_cast<AtEnd*>(&continuation)};
  done->work_has_ended();
}

void AtEnd::have(Event event, std::unique_ptr<AtEnd> done) {
  auto* const control = QueueControl::of(event);
  done->ticket = event.ticket();
  auto* const line = done.release();  // its own from here on: it may be gone when this returns
  bool in_line = false;
  try {
    in_line = control != nullptr && control->resume_after(*line);
  } catch (std::exception const&) {  // NOLINT(bugprone-empty-catch): no thread or memory, and it is waited for
  }
  if (in_line) return;
  static_cast<void>(event.wait_for_error());
  call(*line);
}

}  // namespace unimem::detail
