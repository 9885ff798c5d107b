#pragma once

#include <unimem/device/detail/pages.hpp>

#include <cstddef>
#include <cstdint>
#include <map>

namespace unimem::detail {

/// Which memory a source has created in pieces larger than a page: each of them moves, and goes back, as a whole only.
/// What is in none is single pages. Not thread-safe.
class PagePieces {
 public:
  PagePieces() = default;
  /// The pieces that fresh memory there is made of. Throws std::bad_alloc.
  PagePieces(AddressRange range, std::size_t piece, std::size_t page);

  void add(PagePieces fresh) noexcept;
  /// What was behind `from` is behind as many bytes from `to` on now.
  void move(AddressRange from, std::uintptr_t to) noexcept;
  void remove(AddressRange range) noexcept;

  /// The boundary of a page, unless that lies within a piece: then the end of the piece, or its begin.
  [[nodiscard]] std::uintptr_t at_or_after(std::uintptr_t boundary) const noexcept;
  [[nodiscard]] std::uintptr_t at_or_before(std::uintptr_t boundary) const noexcept;

  /// The largest there ever was; 0 if there was none.
  [[nodiscard]] std::size_t largest() const noexcept { return largest_; }

 private:
  using Map = std::map<std::uintptr_t, std::size_t>;

  /// The piece that a boundary lies within, or null.
  [[nodiscard]] Map::value_type const* around(std::uintptr_t boundary) const noexcept;

  Map pieces_;  ///< address to bytes
  std::size_t largest_ = 0;
};

}  // namespace unimem::detail
