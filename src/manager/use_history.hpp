#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace unimem::detail {

/// What is known of the gaps between uses that followed one another, the last few of them, in bytes.
inline constexpr std::size_t remembered_gaps = 16;

/// How long something is going to rest that has been resting for `age`, if its gaps go on as they were: the mean of
/// what is left of those that were longer. Loops that repeat themselves are foreseen exactly that way, and so are
/// buffers that come in bursts. A gap longer than all there were is expected to double.
[[nodiscard]] double expected_rest(std::span<const float> gaps, double age) noexcept;

/// The time of one device, as eviction understands it: bytes that were used there. It does not pass while no work uses
/// anything, and a large buffer is as far from its next use as the memory that others have touched by then.
///
/// Thread-safe, and exact only while no other thread counts.
class UseClock {
 public:
  [[nodiscard]] std::uint64_t now() const noexcept { return now_.load(std::memory_order_relaxed); }

  /// That many bytes were used; the time after it.
  std::uint64_t advance(std::size_t bytes) noexcept { return now_.fetch_add(bytes, std::memory_order_relaxed) + bytes; }

  /// A resident was used again after `gap`.
  void learn(float gap) noexcept;

  /// How long something rests of which nothing is known but its age: as others of this device did. Where none has
  /// been used twice, the longer it has rested, the longer it will.
  [[nodiscard]] double expected_rest(double age) const noexcept;

 private:
  // Hints to a guess: no gap depends on another, so relaxed.
  std::atomic<std::uint64_t> now_{0};
  std::atomic<std::uint32_t> learned_{0};
  std::array<std::atomic<float>, remembered_gaps> gaps_{};
};

/// When one thing was used on one device, and from that, when it will be next.
///
/// Two ways of use look alike if only the last one is remembered, and ask for opposite victims: in a loop the one
/// used last is needed last; among favourites the rare ones are. So the gaps themselves are kept: where they scatter as
/// those of random draws do, nothing can be foreseen but their mean, which is then counted over many; else
/// `expected_rest` tells.
///
/// Not thread-safe: its owner's lock guards it.
class UseHistory {
 public:
  /// It is being used now.
  void used(UseClock& clock, std::size_t bytes) noexcept;

  /// Bytes that others will have used before it is used again: a guess, never negative.
  [[nodiscard]] double expected_wait(UseClock const& clock) const noexcept;

 private:
  [[nodiscard]] std::span<const float> gaps() const noexcept {
    return {gaps_.data(), count_ < gaps_.size() ? count_ : gaps_.size()};
  }
  /// Whether the gaps are those of a thing that may be drawn at any time.
  [[nodiscard]] bool looks_random() const noexcept;

  static constexpr auto never = std::numeric_limits<std::uint64_t>::max();

  std::uint64_t last_ = never;
  std::uint32_t count_ = 0;
  double mean_ = 0;  ///< of the last hundred gaps or so
  std::array<float, remembered_gaps> gaps_{};
};

}  // namespace unimem::detail
