#include "manager/use_history.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace unimem::detail {
namespace {

/// As many gaps as the long mean remembers.
constexpr double long_memory = 64;

/// Draws that come independently of one another rest as long as they rest on average; their variance is the square of
/// that. Loops scatter less, bursts and nested loops more. Measured by simulation over both kinds.
constexpr double least_scatter = 0.3;
constexpr double most_scatter = 1.8;

/// Of random draws one in fifty rests longer than so many means: then it is rather that it has fallen out of use.
constexpr double longest_rest = 4;

}  // namespace

double expected_rest(std::span<const float> gaps, double age) noexcept {
  double sum = 0;
  std::size_t count = 0;
  for (auto const gap : gaps) {
    if (gap <= age) continue;
    sum += gap - age;
    ++count;
  }
  return count == 0 ? age : sum / static_cast<double>(count);
}

void UseClock::learn(float gap) noexcept {
  // Relaxed: estimates alone. Not in one step: two threads at once may lose one of their gaps, which is as good as
  // another.
  auto const count = learned_.load(std::memory_order_relaxed);
  learned_.store(count + 1, std::memory_order_relaxed);
  gaps_[count % gaps_.size()].store(gap, std::memory_order_relaxed);
}

double UseClock::expected_rest(double age) const noexcept {
  std::array<float, remembered_gaps> known{};
  auto const count = std::min<std::size_t>(learned_.load(std::memory_order_relaxed), known.size());
  for (std::size_t i = 0; i < count; ++i) known[i] = gaps_[i].load(std::memory_order_relaxed);
  if (count != 0) return detail::expected_rest({known.data(), count}, age);
  // Later than all that anything is known of, the oldest last.
  return static_cast<double>(now()) + age;
}

void UseHistory::used(UseClock& clock, std::size_t bytes) noexcept {
  auto const now = clock.advance(bytes);
  if (last_ != never) {
    auto const gap = static_cast<float>(now - std::min(last_, now));
    gaps_[count_ % gaps_.size()] = gap;
    ++count_;
    mean_ += (gap - mean_) / std::min(static_cast<double>(count_), long_memory);
    clock.learn(gap);
  }
  last_ = now;
}

bool UseHistory::looks_random() const noexcept {
  if (count_ < gaps_.size()) return false;
  auto const count = static_cast<double>(gaps_.size());
  auto const mean = std::accumulate(gaps_.begin(), gaps_.end(), 0.0) / count;
  double squares = 0;
  for (auto const gap : gaps_) squares += (gap - mean) * (gap - mean);
  auto const scatter = squares / count / (mean * mean);
  return scatter >= least_scatter && scatter <= most_scatter;
}

double UseHistory::expected_wait(UseClock const& clock) const noexcept {
  auto const now = clock.now();
  auto const age = last_ == never ? static_cast<double>(now) : static_cast<double>(now - std::min(last_, now));
  if (count_ == 0) return clock.expected_rest(age);
  if (looks_random()) return age < longest_rest * mean_ ? mean_ : age;
  return expected_rest(gaps(), age);
}

}  // namespace unimem::detail
