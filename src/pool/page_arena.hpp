#pragma once

#include <unimem/device/detail/pages.hpp>

#include "pool/page_plan.hpp"
#include "pool/span_map.hpp"

#include <cstddef>
#include <cstdint>
#include <stop_token>

namespace unimem::detail {

/// A heap over reserved addresses, whose memory is whole pages that can lie behind any of them.
///
/// What fragments every other heap, free memory in pieces that are each too small, costs this one some calls and no
/// memory: free pages are taken from where they lie and put side by side (`gather`). Blocks share pages with their
/// neighbours, so that large pages waste nothing either; only pages that are free as a whole can move. Descriptors lie
/// apart from the memory and are recycled: giving a span back calls no driver, allocates nothing and cannot fail.
///
/// Whatever the source throws, at whichever call, no span and no page is lost and the books stay true; what was
/// gathered until then stays gathered, as free memory.
///
/// Not thread-safe; the owner locks. `take` and `give` never call the source, everything that does is named with it.
class PageArena {
 public:
  struct Options {
    /// What sizes are multiples of and what every span is aligned to, in bytes: a power of two, at most a page.
    std::size_t granule = 256;

    /// From how many pages on a span is made of whole pages: its tail is then at most this fraction of it and pages
    /// can leave it as a whole.
    std::size_t whole_pages_from = 16;

    /// Whether its memory is left out of core dumps.
    bool undumped = false;
  };

  /// Many small ones are cut high: what is left then begins where it began, at a page as a rule.
  using End = SpanEnd;

  /// What calls of the source have been made for.
  struct Counts {
    std::uint64_t gathers = 0;       ///< spans made of pages that lay elsewhere
    std::uint64_t pieces = 0;        ///< runs of pages that were moved for them
    std::uint64_t moved_bytes = 0;   ///< the bytes of these
    std::uint64_t growths = 0;       ///< times that fresh pages were created
    std::uint64_t reservations = 0;  ///< times that addresses were reserved
  };

  /// The source outlives the arena.
  explicit PageArena(PageSource& source) : PageArena(source, Options{}) {}
  /// Throws InvalidArgument for a granule that is no power of two or above a page.
  PageArena(PageSource& source, Options options);
  PageArena(PageArena const&) = delete;
  PageArena& operator=(PageArena const&) = delete;

  /// Gives all memory back, used or not: by then none may be in use.
  ~PageArena();

  /// Free memory of at least `bytes` (positive) at a multiple of `alignment` (a power of two, at most a page), the best
  /// fit; null if no free span is large enough. Throws std::bad_alloc, changing nothing.
  [[nodiscard]] Span* take(std::size_t bytes, std::size_t alignment = 1, End end = End::low);

  /// As `take`, for as much as is in a used span, which is to be given back then: if afterwards more is free in whole
  /// pages, or as much, and the piece that the one leaves is larger than the piece that the other was cut from. So
  /// no sequence of moves goes on for ever. Null if there is no such place.
  [[nodiscard]] Span* take_instead_of(Span const& used);

  /// As `take`, after making room: moves free pages to where they make one span, the largest runs first, and adds at
  /// most `create` bytes of fresh pages where they do not suffice. Null, changing nothing, if there are not enough of
  /// both. Calls the source, and throws what it throws: then some pages may have moved.
  [[nodiscard]] Span* gather(std::size_t bytes, std::size_t alignment, std::size_t create, End end = End::low);

  /// As `take`, from fresh pages, continuing a free span where one can be continued. Calls the source, and throws what
  /// it throws, changing nothing.
  [[nodiscard]] Span* grow(std::size_t bytes, std::size_t alignment = 1, End end = End::low);

  /// Puts all whole free pages side by side; returns the bytes that were moved for it: 0 if they already lie so. Moves
  /// at most `most` bytes: of runs that are put beside a longer one, or beside each other, so that fewer are left each
  /// time; and no more once `stop` is requested, which is asked before each run. Calls the source, and throws what it
  /// throws: then some have moved.
  std::size_t gather_free(std::size_t most = SIZE_MAX, std::stop_token const& stop = {});

  /// Makes a used span free.
  void give(Span& span) noexcept;

  /// Gives whole free pages back to the device, the largest runs first, until at most `keep` bytes are reserved or no
  /// page is free as a whole, and gives up reservations that are left without a page. Calls the source. Returns the
  /// bytes given back; a run that the source refuses to unmap stays.
  std::size_t trim(std::size_t keep) noexcept;

  [[nodiscard]] std::size_t page_bytes() const noexcept { return page_; }
  /// What a span for `bytes` has at least: the sums of these are what `used` counts.
  [[nodiscard]] std::size_t rounded(std::size_t bytes) const noexcept;

  /// Memory taken from the device: used and free.
  [[nodiscard]] std::size_t reserved() const noexcept { return reserved_; }
  [[nodiscard]] std::size_t used() const noexcept { return reserved_ - map_.free().bytes(); }
  [[nodiscard]] std::size_t free() const noexcept { return map_.free().bytes(); }
  /// The free memory that makes up whole pages: what `gather` and `trim` can lay hands on.
  [[nodiscard]] std::size_t free_in_pages() const noexcept { return map_.free_in_pages(); }
  [[nodiscard]] std::size_t largest_free() const noexcept { return map_.free().largest(); }
  [[nodiscard]] std::size_t free_spans() const noexcept { return map_.free().count(); }
  [[nodiscard]] Counts const& counts() const noexcept { return counts_; }

  /// Calls `each(bytes)` for every run of whole free pages.
  template <class Each>
  void for_each_returnable(Each each) const {
    map_.free().from_largest([&](Span const& span) {
      if (auto const bytes = map_.whole_pages(span).bytes; bytes != 0) each(bytes);
      return span.bytes >= page_;
    });
  }

  /// Throws std::logic_error unless boundaries, kinds, index and sums all agree. Walks everything.
  void validate() const;

 private:
  /// A hole of new addresses for at least `bytes` bytes.
  [[nodiscard]] Span& reserve_addresses(std::size_t bytes);
  [[nodiscard]] Span* make(SpanMap::Site site, std::size_t fresh, std::size_t bytes, std::size_t alignment, End end);
  /// Puts `fresh` bytes and the pieces of the plan there, until `stop` is requested: the free span made of them, null
  /// if there was no time for any.
  [[nodiscard]] Span* assemble(SpanMap::Site site, std::size_t fresh, std::stop_token const& stop = {});
  void add_fresh(Span& growing, bool upwards, std::size_t bytes);
  void add_piece(Span& growing, bool upwards, PagePlan::Piece const& piece);
  /// Puts what is behind `from` behind `to`. If it throws, nothing has changed or, `lost`, the memory has gone back to
  /// the device, because the source would not even put it back.
  void move_pages(AddressRange from, AddressRange to, bool& lost);
  void give_up_if_empty(Span& hole) noexcept;

  /// Far beyond any address space; keeps sums from wrapping.
  static constexpr std::size_t most_bytes = SIZE_MAX / 4;

  PageSource& source_;
  std::size_t page_;
  std::size_t granule_;
  std::size_t whole_pages_from_;
  bool const undumped_;
  SpanMap map_;
  PagePlan plan_{map_};
  std::size_t reserved_ = 0;
  Counts counts_;
};

}  // namespace unimem::detail
