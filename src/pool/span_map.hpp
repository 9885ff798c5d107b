#pragma once

#include <unimem/device/detail/pages.hpp>

#include "pool/page_pieces.hpp"
#include "pool/span_index.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace unimem::detail {

/// The next multiple of a power of two.
[[nodiscard]] constexpr std::uintptr_t align_up(std::uintptr_t value, std::size_t alignment) noexcept {
  return (value + alignment - 1) & ~(std::uintptr_t{alignment} - 1);
}

/// From which end of a free span a piece is cut.
enum class SpanEnd : std::uint8_t { low, high };

/// Reserved addresses as spans that lie side by side, found by their neighbours and, free ones and holes, by size. What
/// memory is behind them is the owner's to see to: nothing here calls a source.
///
/// Descriptors lie apart from the memory and are recycled: `provide_spares` has all that the next step needs, and
/// nothing else can fail. Not thread-safe.
class SpanMap {
 public:
  /// Addresses, and the span without bytes that stands at their begin for good: nothing unites across it.
  struct Reservation {
    AddressRange range;
    Span* fence = nullptr;
  };

  /// Where a free span can be made or continued: beside a free span, or (no span) at the begin of a hole, or (no hole
  /// either) of new addresses.
  struct Site {
    Span* span = nullptr;
    Span* hole = nullptr;
    bool upwards = true;
    std::size_t missing = 0;  ///< bytes of pages
  };

  /// Holes, and what can be moved, are whole pages; everything is a multiple of `granule`.
  SpanMap(std::size_t page, std::size_t granule) noexcept;

  [[nodiscard]] std::size_t page() const noexcept { return page_; }
  [[nodiscard]] std::size_t page_up(std::size_t bytes) const noexcept { return align_up(bytes, page_); }
  /// What of a span can be taken away: its whole pages, but for those at its ends that are parts of larger pieces.
  [[nodiscard]] AddressRange whole_pages(Span const& span) const noexcept;
  /// As little from the begin of such memory as can be taken away and is at least so much (which it has).
  [[nodiscard]] AddressRange first_of(AddressRange whole, std::size_t bytes) const noexcept;
  /// The pieces that memory was created in.
  [[nodiscard]] PagePieces& pieces() noexcept { return pieces_; }
  [[nodiscard]] PagePieces const& pieces() const noexcept { return pieces_; }

  [[nodiscard]] SpanIndex const& free() const noexcept { return free_; }
  [[nodiscard]] SpanIndex const& holes() const noexcept { return holes_; }
  /// The bytes of free spans that make up whole pages.
  [[nodiscard]] std::size_t free_in_pages() const noexcept { return free_in_pages_; }
  /// The same, were this used span free; and the free piece that it would be part of.
  [[nodiscard]] std::size_t free_in_pages_without(Span const& used) const noexcept;
  [[nodiscard]] AddressRange free_around(Span const& used) const noexcept;

  /// Whatever the next step needs it has: throws std::bad_alloc before anything changed.
  void provide_spares();

  [[nodiscard]] std::span<Reservation const> reservations() const noexcept { return reservations_; }
  /// Adds addresses, a hole.
  [[nodiscard]] Span& add_reservation(AddressRange range) noexcept;
  /// Removes those that this hole is all of; no addresses if there is more.
  [[nodiscard]] AddressRange remove_if_empty(Span& hole) noexcept;

  /// Where `bytes` at a multiple of `alignment` can be had with the least fresh memory, as far as a bounded look sees.
  [[nodiscard]] Site site_for(std::size_t bytes, std::size_t alignment) const noexcept;
  /// The same beside this free span; none if there is no hole beside it that has room.
  [[nodiscard]] Site site_beside(Span& span, std::size_t bytes, std::size_t alignment) const noexcept;

  // Between these two a span is in no index, so that it can grow step by step while its neighbours change. The second
  // returns null if it has not grown out of nothing.
  [[nodiscard]] Span& begin_growing(Site site) noexcept;
  void extend(Span& growing, bool upwards, std::size_t bytes) noexcept;
  Span* end_growing(Span& span) noexcept;

  /// Takes `[base, base + bytes)` out of a span that is in the index; what is left of it stays as it was.
  [[nodiscard]] Span& cut(Span& span, std::uintptr_t base, std::size_t bytes) noexcept;
  /// The same from one end, for use.
  [[nodiscard]] Span& serve(Span& span, std::size_t bytes, std::size_t alignment, SpanEnd end) noexcept;
  /// Makes a span outside the index free or a hole and unites it with its like.
  Span& settle(Span& span, SpanKind kind) noexcept;

  /// Throws std::logic_error unless boundaries, kinds, index and sums all agree; returns the bytes that are no holes.
  /// Walks everything.
  [[nodiscard]] std::size_t validate() const;

 private:
  /// The most descriptors that one step needs.
  static constexpr std::size_t spans_per_step = 4;

  void index(Span& span) noexcept;
  void unindex(Span& span) noexcept;
  [[nodiscard]] Span& spare_span(Span const& what) noexcept;
  void unlink(Span& span) noexcept;

  std::size_t const page_;
  std::size_t const granule_;
  SpanIndex free_;
  SpanIndex holes_;
  PagePieces pieces_;
  std::size_t free_in_pages_ = 0;
  std::vector<Reservation> reservations_;
  std::vector<std::unique_ptr<Span[]>> descriptors_;
  Span* spare_ = nullptr;  ///< chained by `after`
  std::size_t spares_ = 0;
};

}  // namespace unimem::detail
