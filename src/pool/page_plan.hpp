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

  /// Collects runs of free pages that make up `bytes`, as few as possible; returns what they make up, which is more
  /// where the last of them is of larger pieces.
  std::size_t collect(std::size_t bytes);

  /// The site for the pieces to make a span of `bytes`, without those that need not move: they are taken out. What the
  /// one that stays has at its ends, which no piece could have brought along, may make up for pages of others.
  [[nodiscard]] SpanMap::Site site(std::size_t bytes, std::size_t alignment) noexcept;
  /// The site for all of them to lie side by side.
  [[nodiscard]] SpanMap::Site site_of_all() noexcept;
  /// The same for a plan of all runs of which at most `most` bytes may move; takes those out of it that would not gain
  /// anything, so that it may be left empty.
  [[nodiscard]] SpanMap::Site site_within(std::size_t most) noexcept;

 private:
  /// Whether the parts of pages at a span's ends count as memory that need not come.
  enum class Ends : bool { count, do_not_count };

  /// Beside the first of the pieces that can stay where it is; it is taken out of the plan. No span if none can.
  [[nodiscard]] SpanMap::Site staying(std::size_t bytes, std::size_t alignment, Ends ends) noexcept;
  [[nodiscard]] SpanMap::Site elsewhere(std::size_t bytes) const noexcept;
  /// Takes up to `bytes` out of the plan, from its end, as far as no piece is cut.
  void leave_out(std::size_t bytes) noexcept;
  [[nodiscard]] Span& last_piece(Span& largest, std::size_t bytes) const noexcept;

  SpanMap const& map_;
  std::vector<Piece> pieces_;  ///< kept for its memory
};

}  // namespace unimem::detail
