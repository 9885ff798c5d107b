#include "interruption.hpp"
#include "standard_streams.hpp"

#include <unimem/core/error.hpp>

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <ctime>
#include <system_error>
#include <utility>

namespace unimem::cli {
namespace {

/// "Within a second" is the promise; what is left of it is for cleaning up.
constexpr std::chrono::nanoseconds grace = std::chrono::milliseconds(500);

bool is_ignored(int signal) {
  struct sigaction current{};
  return ::sigaction(signal, nullptr, &current) == 0 && current.sa_handler == SIG_IGN;
}

}  // namespace

char const* word_for(int signal) noexcept {
  switch (signal) {
    case SIGINT:
      return "interrupted";
    case SIGTERM:
      return "terminated";
    case SIGHUP:
      return "hung up";
    default:
      return "stopped";
  }
}

Interruption::Interruption(std::function<void()> clean_up) : clean_up_(std::move(clean_up)) {
  sigemptyset(&watched_);
  for (int const signal : {SIGINT, SIGTERM, SIGHUP}) {
    // A blocked signal is queued even where it is ignored, and would be noticed after all.
    if (!is_ignored(signal)) sigaddset(&watched_, signal);
  }
  // Wakes the thread at the end: a signal of its own, or one of the user's would be mistaken for it.
  sigaddset(&watched_, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &watched_, &mask_before_);
  // A thread that is still starting holds locks of the runtime, which a process forked at that moment (to look at a
  // driver, say) inherits for good.
  try {
    thread_ = std::thread([this] {
      started_.count_down();
      watch();
    });
  } catch (std::system_error const& error) {
    pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
    throw DeviceError("the system",
                      "starting a thread for signals (limits: `ulimit -u`, pids.max of the control group, memory)",
                      error.code().value(), error.code().message());
  }
  started_.wait();
}

Interruption::~Interruption() {
  ending_.store(true);
  pthread_kill(thread_.native_handle(), SIGUSR1);
  thread_.join();
  pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
}

void Interruption::watch() {
  int signal = 0;
  do {
    if (sigwait(&watched_, &signal) != 0) return;
    if (ending_.load()) return;
  } while (signal == SIGUSR1);

  signal_.store(signal);
  stop_.request_stop();
  // Further signals change nothing: the end is less than a second away, and some senders (timeout, terminals) send two.
  auto const deadline = std::chrono::steady_clock::now() + grace;
  for (auto left = grace; left.count() > 0; left = deadline - std::chrono::steady_clock::now()) {
    timespec const wait{.tv_sec = 0, .tv_nsec = left.count()};
    static_cast<void>(sigtimedwait(&watched_, nullptr, &wait));
    if (ending_.load()) return;
  }

  clean_up_();
  complain(fmt::format("unimem: {}, without waiting for the device", word_for(signal)));
  // Not exit(): that would run destructors under the feet of threads that are still at work.
  ::_exit(exit_code_of(signal));
}

}  // namespace unimem::cli
