#include "progress_bar.hpp"
#include "standard_streams.hpp"

#include <unimem/core/size.hpp>

#include <fmt/format.h>

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace unimem::cli {
namespace {

constexpr auto redraw_interval = std::chrono::milliseconds(100);
constexpr std::size_t widest_bar = 40;
constexpr std::size_t narrowest_bar = 8;
/// A rate measured over less is noise.
constexpr double settled_seconds = 0.2;

/// `0:07`, `12:30`, `3:00:00`.
std::string clock_time(double seconds) {
  auto const all = static_cast<std::uint64_t>(std::ceil(seconds));
  if (all >= 3600) return fmt::format("{}:{:02}:{:02}", all / 3600, all / 60 % 60, all % 60);
  return fmt::format("{}:{:02}", all / 60, all % 60);
}

std::string bar_of(double share, std::size_t cells) {
  auto const full = static_cast<std::size_t>(share * static_cast<double>(cells));
  return fmt::format("[{}{}]", std::string(full, '='), std::string(cells - full, ' '));
}

/// Of work whose end is not known.
std::string amount_line(std::uint64_t bytes_done, double seconds) {
  auto amount = format_size(bytes_done);
  if (bytes_done == 0 || seconds < settled_seconds) return amount;
  return fmt::format("{}  {:.2f} GB/s", amount, static_cast<double>(bytes_done) / seconds / 1e9);
}

/// Columns of the terminal; 80 where it does not say.
std::size_t terminal_columns() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

}  // namespace

std::string progress_line(std::uint64_t bytes_done, std::uint64_t bytes_total, double seconds, std::size_t columns) {
  if (bytes_total == 0) return amount_line(bytes_done, seconds).substr(0, columns);
  bytes_done = std::min(bytes_done, bytes_total);
  double const share = static_cast<double>(bytes_done) / static_cast<double>(bytes_total);
  auto const percent = fmt::format("{:3} %", static_cast<int>(share * 100));

  std::string rate, left;
  if (bytes_done > 0 && seconds >= settled_seconds) {
    double const per_second = static_cast<double>(bytes_done) / seconds;
    rate = fmt::format("{:.2f} GB/s", per_second / 1e9);
    left = clock_time(static_cast<double>(bytes_total - bytes_done) / per_second) + " left";
  }
  auto const amounts = fmt::format("{} of {}", format_size(bytes_done), format_size(bytes_total));

  // From the fullest form to the barest: the first that fits, its bar as wide as room allows.
  struct Form {
    bool amounts, left, bar, rate;
  };
  constexpr std::array forms{Form{true, true, true, true}, Form{false, true, true, true},
                             Form{false, false, true, true}, Form{false, false, false, true},
                             Form{false, false, false, false}};
  for (auto const& form : forms) {
    std::string tail;
    for (auto const& [shown, text] : {std::pair{form.amounts, amounts}, {form.rate, rate}, {form.left, left}}) {
      if (shown && !text.empty()) tail.append("  ").append(text);
    }
    auto const used = percent.size() + tail.size();
    if (!form.bar) {
      if (used <= columns) return percent + tail;
      continue;
    }
    auto const frame = std::string_view(" []").size();
    if (used + frame + narrowest_bar > columns) continue;
    return fmt::format("{} {}{}", percent, bar_of(share, std::min(columns - used - frame, widest_bar)), tail);
  }
  return percent.substr(0, columns);
}

void ProgressBar::update(std::uint64_t bytes_done, std::uint64_t bytes_total) {
  auto const now = Clock::now();
  if (visible_ && now - drawn_ < redraw_interval) return;
  drawn_ = now;
  visible_ = true;
  // One column stays free: a character in the last one makes some terminals wrap, and the line could not be redrawn.
  auto const line = progress_line(bytes_done, bytes_total, std::chrono::duration<double>(now - started_).count(),
                                  terminal_columns() - 1);
  complain_verbatim("\r" + line + "\x1b[K");
}

ProgressBar::~ProgressBar() {
  if (visible_) complain_verbatim("\r\x1b[K");
}

}  // namespace unimem::cli
