#pragma once

#include "pool/span_map.hpp"

#include <cstddef>
#include <span>
#include <vector>

namespace unimem::detail {

/// Which free pages of a SpanMap are to be moved, or given back, and where to. Changes nothing itself.
class PagePlan {
 public:
  /// Free pages, a run of them in one span.
  struct Piece {
    Span* span = nullptr;
    AddressRange range;
  };

  explicit PagePlan(SpanMap const& map) noexcept : map_(map) {}

  [[nodiscard]] std::span<Piece const> pieces() const noexcept { return pieces_; }
  [[nodiscard]] std::size_t bytes() const noexcept;
  void clear() noexcept { pieces_.clear(); }

  /// Collects runs of free pages that make up `bytes`, as few as possible; returns what they make up.
  std::size_t collect(std::size_t bytes);

  /// The site for the pieces, without those that need not move: they are taken out.
  [[nodiscard]] SpanMap::Site site(std::size_t bytes, std::size_t alignment) noexcept;
  /// The same for a plan of all runs of which at most `most` bytes may move; takes those out of it that would not gain
  /// anything, so that it may be left empty.
  [[nodiscard]] SpanMap::Site site_within(std::size_t most) noexcept;

 private:
  [[nodiscard]] Span& last_piece(Span& largest, std::size_t bytes) const noexcept;

  SpanMap const& map_;
  std::vector<Piece> pieces_;  ///< kept for its memory
};

}  // namespace unimem::detail
