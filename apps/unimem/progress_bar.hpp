#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace unimem::cli {

/// What the bar shows: without a total (0) the amount done and the rate; else share done, bar, rate and time left, in
/// at most `columns` characters. A narrow terminal loses the amounts first, then the time left, the bar, and the rate;
/// the percentage stays. Pure, so that every width is tested.
[[nodiscard]] std::string progress_line(std::uint64_t bytes_done, std::uint64_t bytes_total, double seconds,
                                        std::size_t columns);

/// One line on the terminal of standard error, redrawn at most ten times a second and cleared at the end.
///
/// Our own: one line is less code than any binding to a library for it, and Debian packages none. Not thread-safe;
/// the stream calls its progress function from one thread.
class ProgressBar {
 public:
  ProgressBar() = default;
  ProgressBar(ProgressBar const&) = delete;
  ProgressBar& operator=(ProgressBar const&) = delete;

  /// Clears the line.
  ~ProgressBar();

  void update(std::uint64_t bytes_done, std::uint64_t bytes_total);

 private:
  using Clock = std::chrono::steady_clock;

  Clock::time_point started_ = Clock::now();
  Clock::time_point drawn_{};
  bool visible_ = false;
};

}  // namespace unimem::cli
