#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace unimem::detail {

/// What a stretch of reserved addresses is at the moment.
enum class SpanKind : std::uint8_t {
  used,  ///< memory in use
  free,  ///< unused memory
  hole,  ///< addresses alone, whole pages of them
};

/// A stretch of addresses between two boundaries. Never adjacent to another of its kind unless it is used. The
/// descriptor lives apart from the memory, which the host may be unable to reach.
struct Span {
  std::uintptr_t base = 0;
  std::size_t bytes = 0;
  SpanKind kind = SpanKind::hole;

  Span* before = nullptr;  ///< its neighbours by address, null at the ends of a reservation
  Span* after = nullptr;
  Span* earlier = nullptr;  ///< its neighbours in the index, while it is free or a hole
  Span* later = nullptr;

  [[nodiscard]] std::uintptr_t end() const noexcept { return base + bytes; }
};

/// Spans found by size: sixteen lists for every doubling and a bit for each list that is not empty.
///
/// A search tree would find the very best as well, but costs a cache miss a level and a rotation for each of the three
/// changes that a release makes; here adding and removing touch one list head. Sizes within one list differ by at most
/// a sixteenth, and below 32 granules not at all.
///
/// Not thread-safe; allocates nothing.
class SpanIndex {
 public:
  /// All sizes are multiples of `granule`, a power of two.
  explicit SpanIndex(std::size_t granule) noexcept : shift_(static_cast<unsigned>(std::countr_zero(granule))) {}

  void add(Span& span) noexcept;
  void remove(Span& span) noexcept;

  /// The smallest span with room for `bytes` at a multiple of `alignment`, or null. Settles for the best
  /// of `most_looks` that fit in one list; only among so many of nearly one size it may be a sixteenth off.
  [[nodiscard]] Span* best_fit(std::size_t bytes, std::size_t alignment) const noexcept;

  /// Shows spans to `wants_more(Span&) -> bool`, larger lists first, until it says false. Must not be changed
  /// meanwhile.
  template <class Visit>
  void from_largest(Visit&& wants_more) const {
    for (auto list = last_list(); list >= 0; list = list_before(static_cast<std::size_t>(list))) {
      for (auto* span = lists_[static_cast<std::size_t>(list)]; span != nullptr; span = span->later) {
        if (!wants_more(*span)) return;
      }
    }
  }

  /// The size of the largest span; 0 if there is none.
  [[nodiscard]] std::size_t largest() const noexcept;

  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::size_t count() const noexcept { return count_; }

  /// Throws std::logic_error unless every span is in its list, every bit says the truth and the sums are right.
  void validate(SpanKind kind) const;

  static constexpr int most_looks = 256;

 private:
  static constexpr std::size_t list_count = 768;
  static constexpr std::size_t word_bits = 64;

  [[nodiscard]] std::size_t list_of(std::size_t bytes) const noexcept;
  /// The first list from `list` on that is not empty, or `list_count`.
  [[nodiscard]] std::size_t list_from(std::size_t list) const noexcept;
  [[nodiscard]] int last_list() const noexcept { return list_before(list_count); }
  /// The last list before `list` that is not empty, or -1.
  [[nodiscard]] int list_before(std::size_t list) const noexcept;

  unsigned shift_;
  std::array<std::uint64_t, list_count / word_bits> occupied_{};
  std::array<Span*, list_count> lists_{};
  std::size_t bytes_ = 0;
  std::size_t count_ = 0;
};

}  // namespace unimem::detail
