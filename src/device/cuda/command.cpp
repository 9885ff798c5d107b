#include "device/cuda/command.hpp"
#include "device/cuda/context.hpp"
#include "device/process_end.hpp"

namespace unimem::detail::cuda {
namespace {

constexpr int most_tries = 3;

/// Whether the driver refused to say, since somebody captures a stream. Not an event that was captured itself, into
/// somebody's graph: its work is not to run.
bool says_capture(Result code) {
  return code >= Result::stream_capture_unsupported && code <= Result::stream_capture_wrong_thread &&
         code != Result::captured_event;
}

}  // namespace

DriverCommand::Outcome Command::outcome() noexcept {
  auto const state = state_.load(std::memory_order_acquire);
  if (state == State::over) return {};
  auto* const event = end();
  if (event == nullptr) return {true, nullptr};
  auto code = Result::success;
  // A refusal that says nothing of the work is no end of it: memory that is still in use would be let go.
  for (int tries = 0; tries < most_tries; ++tries) {
    CurrentContext const current{events_.gpu(), std::nothrow};
    auto const entered = current.code();
    code = entered == Result::success ? events_.gpu().driver.cuEventQuery(event) : entered;
    if (code == Result::not_ready) return {true, nullptr};
    if (code == Result::success) return {};
    if (says_capture(code)) return {true, nullptr};
    if (is_fatal(code)) break;
  }
  return {false, events_.health().failure_of(code, call_)};
}

bool Command::has_ended_well() const noexcept {
  auto* const event = end();
  if (event == nullptr) return false;
  CurrentContext const current{events_.gpu(), std::nothrow};
  return current.code() == Result::success && events_.gpu().driver.cuEventQuery(event) == Result::success;
}

void Command::wait() const noexcept {
  auto* const event = end();
  if (event == nullptr) return;
  CurrentContext const current{events_.gpu(), std::nothrow};
  // What it says is asked for again when the command is collected.
  static_cast<void>(events_.gpu().driver.cuEventSynchronize(event));
}

std::optional<std::chrono::nanoseconds> Command::took() const noexcept {
  auto* const event = end();
  if (!begin_ || event == nullptr || driver_gone()) return std::nullopt;
  CurrentContext const current{events_.gpu(), std::nothrow};
  float milliseconds = 0;
  auto const code = events_.gpu().driver.cuEventElapsedTime(&milliseconds, begin_.get(), event);
  if (code != Result::success || milliseconds < 0) return std::nullopt;
  return std::chrono::nanoseconds{static_cast<std::int64_t>(static_cast<double>(milliseconds) * 1e6)};
}

}  // namespace unimem::detail::cuda
