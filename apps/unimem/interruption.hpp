#pragma once

#include <atomic>
#include <csignal>
#include <functional>
#include <latch>
#include <stop_token>
#include <thread>

namespace unimem::cli {

/// Turns Ctrl-C (SIGINT), SIGTERM and SIGHUP into a request to stop, for as long as it lives.
///
/// A thread of its own waits for the signals, which are blocked everywhere else: what a signal handler may not do
/// (lock, allocate, wake a condition variable) this thread may. So it must be made before any other thread is, or that
/// one would take the signal and end the process. When the work has not stopped in time the process is ended from here:
/// a kernel that runs for minutes cannot be called back from its device.
///
/// A signal that was ignored when the process started (nohup, a shell's background job) stays ignored.
class Interruption {
 public:
  /// `clean_up` is called on the watching thread just before it ends the process, while the work may still be running:
  /// it removes what the work would have removed.
  explicit Interruption(std::function<void()> clean_up);
  Interruption(Interruption const&) = delete;
  Interruption& operator=(Interruption const&) = delete;
  /// Ends the thread; the signals do again what they did before.
  ~Interruption();

  /// Asked to stop by the first signal.
  [[nodiscard]] std::stop_token token() const noexcept { return stop_.get_token(); }

  /// The signal that came, or 0.
  [[nodiscard]] int signal() const noexcept { return signal_.load(); }

 private:
  void watch();

  std::function<void()> clean_up_;
  std::stop_source stop_;
  std::atomic<int> signal_{0};
  std::atomic<bool> ending_{false};
  sigset_t watched_{};
  sigset_t mask_before_{};
  std::latch started_{1};
  std::thread thread_;
};

/// The exit code that shells give a process ended by `signal`: 130 for SIGINT, 143 for SIGTERM.
[[nodiscard]] constexpr int exit_code_of(int signal) noexcept {
  return 128 + signal;
}

/// What is said of a process ended by `signal`: "interrupted", "terminated", "hung up".
[[nodiscard]] char const* word_for(int signal) noexcept;

}  // namespace unimem::cli
