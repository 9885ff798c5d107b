#include "pool/page_arena.hpp"

#include <unimem/core/error.hpp>
#include <unimem/core/log.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <exception>
#include <stdexcept>
#include <utility>

namespace unimem::detail {
namespace {

/// The next addresses of a span that grows.
AddressRange beside(Span const& growing, bool upwards, std::size_t bytes) noexcept {
  return {upwards ? growing.end() : growing.base - bytes, bytes};
}

}  // namespace

PageArena::PageArena(PageSource& source, Options options)
    : source_(source),
      page_(source.page_bytes()),
      granule_(options.granule),
      whole_pages_from_(options.whole_pages_from * page_),
      undumped_(options.undumped),
      map_(page_, granule_) {
  if (!std::has_single_bit(granule_) || granule_ > page_) {
    throw InvalidArgument("granule", fmt::format("{}", granule_), fmt::format("a power of two up to {}", page_));
  }
}

PageArena::~PageArena() {
  for (auto const& reservation : map_.reservations()) {
    // Neighbours with memory go in one call, whichever spans they belonged to.
    for (auto const* span = reservation.fence->after; span != nullptr;) {
      auto const begin = span->base;
      auto end = begin;
      while (span != nullptr && span->kind != SpanKind::hole) {
        end = span->end();
        span = span->after;
      }
      try {
        if (end != begin) source_.discard({begin, end - begin});
      } catch (std::exception const& error) {
        log(LogLevel::error, fmt::format("{} bytes of pages are left behind: {}", end - begin, error.what()));
      }
      if (span != nullptr) span = span->after;
    }
    source_.give_up(reservation.range);
  }
}

std::size_t PageArena::rounded(std::size_t bytes) const noexcept {
  if (bytes > most_bytes) return bytes;
  return bytes >= whole_pages_from_ ? map_.page_up(bytes) : align_up(std::max<std::size_t>(bytes, 1), granule_);
}

Span* PageArena::take(std::size_t bytes, std::size_t alignment, End end) {
  if (bytes > most_bytes) return nullptr;
  auto* const span = map_.free().best_fit(rounded(bytes), alignment);
  if (span == nullptr) return nullptr;
  map_.provide_spares();
  return &map_.serve(*span, rounded(bytes), alignment, end);
}

Span* PageArena::grow(std::size_t bytes, std::size_t alignment, End end) {
  if (bytes > most_bytes) {
    throw OutOfMemory({.where = "address space", .requested = bytes, .holders = {}, .reason = "no device has as much"});
  }
  plan_.clear();
  auto const site = map_.site_for(rounded(bytes), alignment);
  return make(site, site.missing, rounded(bytes), alignment, end);
}

Span* PageArena::gather(std::size_t bytes, std::size_t alignment, std::size_t create, End end) {
  if (auto* const span = take(bytes, alignment, end)) return span;
  if (bytes > most_bytes) return nullptr;
  auto const size = rounded(bytes);
  auto const wanted = map_.page_up(size), found = plan_.collect(wanted);
  if (found < wanted && wanted - found > create) return nullptr;
  auto const site = plan_.site(size, alignment);
  return make(site, site.missing - std::min(site.missing, plan_.bytes()), size, alignment, end);
}

std::size_t PageArena::gather_free(std::size_t most, std::stop_token const& stop) {
  auto const before = counts_.moved_bytes;
  auto const all = plan_.collect(std::max(map_.free_in_pages(), page_));
  if (plan_.pieces().size() < 2) return 0;
  auto site = plan_.site_of_all();
  if (plan_.bytes() > most) {
    plan_.collect(all);
    site = plan_.site_within(most);
  }
  if (!plan_.pieces().empty()) static_cast<void>(assemble(site, 0, stop));
  return counts_.moved_bytes - before;
}

Span* PageArena::take_instead_of(Span const& used) {
  auto const in_pages = map_.free_in_pages();
  auto* const span = take(used.bytes);
  if (span == nullptr) return span;
  auto const then = map_.free_in_pages_without(used);
  bool const better =
      then > in_pages || (then == in_pages && map_.free_around(used).bytes > map_.free_around(*span).bytes);
  if (better) return span;
  give(*span);
  return nullptr;
}

void PageArena::give(Span& span) noexcept {
  map_.settle(span, SpanKind::free);
}

std::size_t PageArena::trim(std::size_t keep) noexcept {
  if (reserved_ <= keep) return 0;
  auto const before = reserved_;
  try {
    plan_.collect(map_.page_up(reserved_ - keep));
    for (auto const& piece : plan_.pieces()) {
      map_.provide_spares();
      try {
        source_.discard(piece.range);
      } catch (std::exception const&) {
        continue;  // the sum returned says that they stayed
      }
      reserved_ -= piece.range.bytes;
      map_.pieces().remove(piece.range);
      give_up_if_empty(map_.settle(map_.cut(*piece.span, piece.range.base, piece.range.bytes), SpanKind::hole));
    }
  } catch (std::bad_alloc const&) {  // NOLINT(bugprone-empty-catch)
    // No memory for the plan or for a descriptor: what has been given back until now is what could be.
  }
  return before - reserved_;
}

Span& PageArena::reserve_addresses(std::size_t bytes) {
  map_.provide_spares();
  auto const reserve = [&](std::size_t wanted) {
    return undumped_ ? source_.reserve_undumped(wanted) : source_.reserve(wanted);
  };
  AddressRange range;
  // Addresses cost nothing and every seam between reservations keeps neighbours apart: twice as many each time.
  auto plenty = std::max(bytes, std::min<std::size_t>(1024 * page_, most_bytes));
  std::size_t addresses = 0;
  for (auto const& reservation : map_.reservations()) addresses += reservation.range.bytes;
  plenty = std::max(plenty, addresses);
  try {
    range = reserve(map_.page_up(plenty));
  } catch (OutOfMemory const&) {
    if (plenty == bytes) throw;
    range = reserve(bytes);
  }
  ++counts_.reservations;
  return map_.add_reservation(range);
}

Span* PageArena::make(SpanMap::Site site, std::size_t fresh, std::size_t bytes, std::size_t alignment, End end) {
  return &map_.serve(*assemble(site, fresh), bytes, alignment, end);
}

Span* PageArena::assemble(SpanMap::Site site, std::size_t fresh, std::stop_token const& stop) {
  if (site.hole == nullptr) site.hole = &reserve_addresses(site.missing);
  map_.provide_spares();
  auto& growing = map_.begin_growing(site);
  try {
    if (fresh != 0) add_fresh(growing, site.upwards, fresh);
    for (auto const& piece : plan_.pieces()) {
      if (stop.stop_requested()) break;
      add_piece(growing, site.upwards, piece);
    }
    map_.provide_spares();
  } catch (...) {
    map_.end_growing(growing);
    throw;
  }
  counts_.growths += fresh != 0;
  counts_.gathers += !plan_.pieces().empty();
  return map_.end_growing(growing);
}

void PageArena::add_fresh(Span& growing, bool upwards, std::size_t bytes) {
  auto const range = beside(growing, upwards, bytes);
  PagePieces fresh{range, source_.piece_bytes(bytes), page_};
  source_.populate(range);
  map_.pieces().add(std::move(fresh));
  reserved_ += bytes;
  map_.extend(growing, upwards, bytes);
}

void PageArena::add_piece(Span& growing, bool upwards, PagePlan::Piece const& piece) {
  map_.provide_spares();
  auto const bytes = piece.range.bytes;
  auto const to = beside(growing, upwards, bytes);
  bool lost = false;
  try {
    move_pages(piece.range, to, lost);
  } catch (...) {
    if (lost) {
      reserved_ -= bytes;
      map_.pieces().remove(piece.range);
      map_.settle(map_.cut(*piece.span, piece.range.base, bytes), SpanKind::hole);
    }
    throw;
  }
  map_.pieces().move(piece.range, to.base);
  map_.extend(growing, upwards, bytes);
  map_.settle(map_.cut(*piece.span, piece.range.base, bytes), SpanKind::hole);
  ++counts_.pieces;
  counts_.moved_bytes += bytes;
}

void PageArena::move_pages(AddressRange from, AddressRange to, bool& lost) {
  if (source_.shift(from, to)) return;
  auto const pages = source_.unmap(from);
  try {
    source_.map(to, pages);
  } catch (...) {
    try {
      source_.map(from, pages);
    } catch (...) {
      source_.free_pages(pages);
      lost = true;
    }
    throw;
  }
}

void PageArena::give_up_if_empty(Span& hole) noexcept {
  auto const range = map_.remove_if_empty(hole);
  if (range.bytes != 0) source_.give_up(range);
}

void PageArena::validate() const {
  if (map_.validate() != reserved_) throw std::logic_error("PageArena: used and free are not what is reserved");
}

}  // namespace unimem::detail
