#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace unimem::detail {

/// Which pages of one reservation have some property: a bit for each, by the page's number.
///
/// A tree of ranges would say it in less memory where ranges are few, but each change of one costs several searches and
/// a rotation or two; here it costs a step for every 64 pages.
///
/// Numbers are below `size()`, ranges end at most there: the caller has checked. Not thread-safe.
class PageSet {
 public:
  /// No page has it yet. Throws std::bad_alloc.
  explicit PageSet(std::size_t pages);

  [[nodiscard]] std::size_t size() const noexcept { return size_; }

  void add(std::size_t first, std::size_t count) noexcept;
  void remove(std::size_t first, std::size_t count) noexcept;

  /// The first page of `[from, end)` that is in the set, or that is not; `end` if there is none.
  [[nodiscard]] std::size_t next_in(std::size_t from, std::size_t end) const noexcept { return next(from, end, 0); }
  [[nodiscard]] std::size_t next_out(std::size_t from, std::size_t end) const noexcept {
    return next(from, end, ~std::uint64_t{0});
  }

  [[nodiscard]] bool has_all(std::size_t first, std::size_t count) const noexcept {
    return next_out(first, first + count) == first + count;
  }
  [[nodiscard]] bool has_none(std::size_t first, std::size_t count) const noexcept {
    return next_in(first, first + count) == first + count;
  }

 private:
  static constexpr std::size_t word_bits = 64;

  /// Calls `change(std::uint64_t& word, std::uint64_t mask)` for every word that the range has pages in.
  template <class Change>
  void for_each_word(std::size_t first, std::size_t count, Change change) noexcept;
  /// The first page of a range whose bit, after this exclusive or, is set.
  [[nodiscard]] std::size_t next(std::size_t from, std::size_t end, std::uint64_t flipped) const noexcept;

  std::size_t size_;
  std::vector<std::uint64_t> words_;
};

}  // namespace unimem::detail
