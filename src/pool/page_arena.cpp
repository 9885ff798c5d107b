#include "pool/page_arena.hpp"

#include <unimem/core/error.hpp>
#include <unimem/core/log.hpp>

#include "pool/mutants.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <exception>
#include <stdexcept>
#include <utility>

namespace unimem::detail {
namespace {

constexpr std::size_t descriptors_at_once = 64;

/// How many of the largest free spans are looked at for one that can be continued where it lies.
constexpr int most_sites = 32;

constexpr std::uintptr_t align_up(std::uintptr_t value, std::size_t alignment) noexcept {
  return (value + alignment - 1) & ~(std::uintptr_t{alignment} - 1);
}

}  // namespace

PageArena::PageArena(PageSource& source, Options options)
    : source_(source),
      page_(source.page_bytes()),
      granule_(options.granule),
      whole_pages_from_(options.whole_pages_from * page_),
      undumped_(options.undumped),
      free_(std::max<std::size_t>(options.granule, 1)),
      holes_(page_) {
  if (!std::has_single_bit(granule_) || granule_ > page_) {
    throw InvalidArgument("granule", fmt::format("{}", granule_), fmt::format("a power of two up to {}", page_));
  }
}

PageArena::~PageArena() {
  for (auto const& reservation : reservations_) {
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
  return bytes >= whole_pages_from_ ? page_up(bytes) : align_up(std::max<std::size_t>(bytes, 1), granule_);
}

Span* PageArena::take(std::size_t bytes, std::size_t alignment, End end) {
  if (bytes > most_bytes) return nullptr;
  auto* const span = free_.best_fit(rounded(bytes), alignment);
  if (span == nullptr) return nullptr;
  provide_spare_spans();
  return &serve(*span, rounded(bytes), alignment, end);
}

Span* PageArena::grow(std::size_t bytes, std::size_t alignment, End end) {
  if (bytes > most_bytes) {
    throw OutOfMemory({.where = "address space", .requested = bytes, .holders = {}, .reason = "no device has as much"});
  }
  pieces_.clear();
  auto const site = growing_site(rounded(bytes), alignment);
  return make(site, site.missing, rounded(bytes), alignment, end);
}

void PageArena::give(Span& span) noexcept {
  settle(span, SpanKind::free);
}

std::size_t PageArena::trim(std::size_t keep) noexcept {
  if (reserved_ <= keep) return 0;
  auto const before = reserved_;
  try {
    plan(page_up(reserved_ - keep));
    for (auto const& piece : pieces_) {
      provide_spare_spans();
      try {
        source_.discard(piece.range);
      } catch (std::exception const&) {
        continue;  // the sum returned says that they stayed
      }
      reserved_ -= piece.range.bytes;
      give_up_if_empty(settle(cut(*piece.span, piece.range.base, piece.range.bytes), SpanKind::hole));
    }
  } catch (std::bad_alloc const&) {  // NOLINT(bugprone-empty-catch)
    // No memory for the plan or for a descriptor: what has been given back until now is what could be.
  }
  return before - reserved_;
}

AddressRange PageArena::whole_pages(Span const& span) const noexcept {
  auto const begin =
      UNIMEM_MUTANT(shared_pages_moved) ? span.base & ~(std::uintptr_t{page_} - 1) : align_up(span.base, page_);
  auto const end = span.end() & ~(std::uintptr_t{page_} - 1);
  return begin < end ? AddressRange{begin, end - begin} : AddressRange{begin, 0};
}

PageArena::Site PageArena::growing_site(std::size_t bytes, std::size_t alignment) const noexcept {
  Site site;
  auto looks = most_sites;
  free_.from_largest([&](Span& span) {
    site = beside_span(span, bytes, alignment);
    return site.span == nullptr && --looks > 0;
  });
  return site.span != nullptr ? site : Site{nullptr, holes_.best_fit(page_up(bytes), 1), true, page_up(bytes)};
}

PageArena::Site PageArena::beside_span(Span& span, std::size_t bytes, std::size_t alignment) const noexcept {
  auto const skipped = align_up(span.base, alignment) - span.base;
  if (auto* const hole = span.after; hole != nullptr && hole->kind == SpanKind::hole && span.bytes > skipped) {
    auto const missing = page_up(bytes - std::min(bytes, span.bytes - skipped));
    if (hole->bytes >= missing) return {&span, hole, true, missing};
  }
  if (auto* const hole = span.before; hole->kind == SpanKind::hole) {
    auto const missing = page_up(bytes - std::min(bytes, span.bytes));
    if (hole->bytes >= missing) return {&span, hole, false, missing};
  }
  return {};
}

Span& PageArena::reserve_addresses(std::size_t bytes) {
  reservations_.reserve(reservations_.size() + 1);
  provide_spare_spans();
  // Addresses cost nothing and every seam between reservations keeps neighbours apart: twice as many each time.
  auto const reserve = [&](std::size_t wanted) {
    return undumped_ ? source_.reserve_undumped(wanted) : source_.reserve(wanted);
  };
  AddressRange range;
  auto const plenty = std::max({bytes, addresses_, std::min<std::size_t>(1024 * page_, most_bytes)});
  try {
    range = reserve(page_up(plenty));
  } catch (OutOfMemory const&) {
    if (plenty == bytes) throw;
    range = reserve(bytes);
  }
  auto& fence = spare_span({.base = range.base, .bytes = 0, .kind = SpanKind::used});
  auto& hole = spare_span({.base = range.base, .bytes = range.bytes, .kind = SpanKind::hole, .before = &fence});
  fence.after = &hole;
  reservations_.push_back({range, &fence});
  addresses_ += range.bytes;
  ++counts_.reservations;
  index(hole);
  return hole;
}

Span* PageArena::make(Site site, std::size_t fresh, std::size_t bytes, std::size_t alignment, End end) {
  return &serve(*assemble(site, fresh), bytes, alignment, end);
}

Span* PageArena::assemble(Site site, std::size_t fresh, std::stop_token const& stop) {
  if (site.hole == nullptr) site.hole = &reserve_addresses(site.missing);
  provide_spare_spans();
  auto& growing = begin_growing(site);
  try {
    if (fresh != 0) add_fresh(growing, site.upwards, fresh);
    for (auto const& piece : pieces_) {
      if (stop.stop_requested()) break;
      add_piece(growing, site.upwards, piece);
    }
    provide_spare_spans();
  } catch (...) {
    end_growing(growing);
    throw;
  }
  counts_.growths += fresh != 0;
  counts_.gathers += !pieces_.empty();
  return end_growing(growing);
}

Span& PageArena::begin_growing(Site site) noexcept {
  if (site.span != nullptr) {
    unindex(*site.span);
    site.span->kind = SpanKind::used;
    return *site.span;
  }
  auto& span =
      spare_span({.base = site.hole->base, .kind = SpanKind::used, .before = site.hole->before, .after = site.hole});
  span.before->after = span.after->before = &span;
  return span;
}

Span* PageArena::end_growing(Span& span) noexcept {
  if (span.bytes != 0) return &settle(span, SpanKind::free);
  // The hole that it was to be made of stays as it is; pieces taken from before it have left a hole beside that one.
  auto* const hole = span.after;
  unlink(span);
  if (hole != nullptr && hole->kind == SpanKind::hole) {
    unindex(*hole);
    settle(*hole, SpanKind::hole);
  }
  return nullptr;
}

void PageArena::add_fresh(Span& growing, bool upwards, std::size_t bytes) {
  source_.populate(beside(growing, upwards, bytes));
  reserved_ += bytes;
  extend(growing, upwards, bytes);
}

AddressRange PageArena::beside(Span const& growing, bool upwards, std::size_t bytes) noexcept {
  return {upwards ? growing.end() : growing.base - bytes, bytes};
}

void PageArena::extend(Span& growing, bool upwards, std::size_t bytes) noexcept {
  auto& hole = upwards ? *growing.after : *growing.before;
  unindex(hole);
  hole.bytes -= bytes;
  growing.bytes += bytes;
  if (upwards) {
    hole.base += bytes;
  } else {
    growing.base -= bytes;
  }
  if (hole.bytes == 0) {
    unlink(hole);
  } else {
    index(hole);
  }
}

void PageArena::index(Span& span) noexcept {
  if (span.kind == SpanKind::hole) return holes_.add(span);
  free_in_pages_ += whole_pages(span).bytes;
  free_.add(span);
}

void PageArena::unindex(Span& span) noexcept {
  if (span.kind == SpanKind::hole) return holes_.remove(span);
  free_in_pages_ -= whole_pages(span).bytes;
  free_.remove(span);
}

Span& PageArena::cut(Span& span, std::uintptr_t base, std::size_t bytes) noexcept {
  unindex(span);
  if (auto const left = span.end() - (base + bytes); left != 0) {
    auto& rest =
        spare_span({.base = base + bytes, .bytes = left, .kind = span.kind, .before = &span, .after = span.after});
    if (rest.after != nullptr) rest.after->before = &rest;
    span.after = &rest;
    span.bytes -= left;
    index(rest);
  }
  if (span.base == base) return span;
  auto& middle = spare_span({.base = base, .bytes = bytes, .kind = span.kind, .before = &span, .after = span.after});
  if (middle.after != nullptr) middle.after->before = &middle;
  span.after = &middle;
  span.bytes -= bytes;
  index(span);
  return middle;
}

Span& PageArena::settle(Span& span, SpanKind kind) noexcept {
  span.kind = kind;
  auto* whole = &span;
  if (auto* const before = span.before; before->kind == kind) {
    unindex(*before);
    before->bytes += span.bytes;
    unlink(span);
    whole = before;
  }
  if (auto* const after = whole->after;
      after != nullptr && after->kind == kind && !UNIMEM_MUTANT(neighbours_kept_apart)) {
    unindex(*after);
    whole->bytes += after->bytes;
    unlink(*after);
  }
  index(*whole);
  return *whole;
}

Span& PageArena::serve(Span& span, std::size_t bytes, std::size_t alignment, End end) noexcept {
  auto const base = end == End::low ? align_up(span.base, alignment) : (span.end() - bytes) & ~(alignment - 1);
  auto& served = cut(span, base, bytes);
  served.kind = SpanKind::used;
  return served;
}

void PageArena::provide_spare_spans() {
  if (spares_ >= spans_per_step) return;
  descriptors_.push_back(std::make_unique<Span[]>(descriptors_at_once));
  for (std::size_t i = 0; i < descriptors_at_once; ++i) {
    auto& span = descriptors_.back()[i];
    span.after = spare_;
    spare_ = &span;
  }
  spares_ += descriptors_at_once;
}

Span& PageArena::spare_span(Span const& what) noexcept {
  auto& span = *spare_;
  spare_ = span.after;
  --spares_;
  span = what;
  return span;
}

void PageArena::unlink(Span& span) noexcept {
  if (span.before != nullptr) span.before->after = span.after;
  if (span.after != nullptr) span.after->before = span.before;
  span.after = spare_;
  spare_ = &span;
  ++spares_;
}

void PageArena::give_up_if_empty(Span& hole) noexcept {
  auto& fence = *hole.before;
  if (fence.before != nullptr || hole.after != nullptr) return;
  auto const found = std::ranges::find(reservations_, &fence, &Reservation::fence);
  source_.give_up(found->range);
  addresses_ -= found->range.bytes;
  reservations_.erase(found);
  unindex(hole);
  unlink(hole);
  unlink(fence);
}

void PageArena::validate() const {
  std::size_t free = 0, in_pages = 0, used = 0, holes = 0, addresses = 0, free_spans = 0, hole_spans = 0, spans = 0;
  for (auto const& reservation : reservations_) {
    auto const* span = reservation.fence;
    if (span->before != nullptr || span->bytes != 0 || span->base != reservation.range.base) {
      throw std::logic_error("PageArena: a fence has moved");
    }
    auto end = span->base;
    for (++spans; span->after != nullptr; ++spans) {
      auto const* const before = std::exchange(span, span->after);
      if (span->before != before) throw std::logic_error("PageArena: neighbours disagree");
      if (span->base != end) throw std::logic_error("PageArena: a gap or an overlap");
      if (span->bytes == 0 || span->bytes % granule_ != 0) throw std::logic_error("PageArena: a span of odd size");
      if (span->kind != SpanKind::used && span->kind == before->kind) {
        throw std::logic_error("PageArena: neighbours that should be one");
      }
      end = span->end();
      switch (span->kind) {
        case SpanKind::used:
          used += span->bytes;
          break;
        case SpanKind::free:
          free += span->bytes;
          in_pages += whole_pages(*span).bytes;
          ++free_spans;
          break;
        case SpanKind::hole:
          if (span->base % page_ != 0 || span->bytes % page_ != 0) {
            throw std::logic_error("PageArena: a hole that is not whole pages");
          }
          holes += span->bytes;
          ++hole_spans;
          break;
      }
    }
    if (end != reservation.range.base + reservation.range.bytes) {
      throw std::logic_error("PageArena: a reservation ends elsewhere");
    }
    addresses += reservation.range.bytes;
  }
  free_.validate(SpanKind::free);
  holes_.validate(SpanKind::hole);
  if (free != free_.bytes() || free_spans != free_.count()) throw std::logic_error("PageArena: free spans unindexed");
  if (holes != holes_.bytes() || hole_spans != holes_.count()) throw std::logic_error("PageArena: holes unindexed");
  if (free + used != reserved_) throw std::logic_error("PageArena: used and free are not what is reserved");
  if (in_pages != free_in_pages_) throw std::logic_error("PageArena: free pages miscounted");
  if (addresses != addresses_) throw std::logic_error("PageArena: addresses miscounted");
  if (spans + spares_ != descriptors_.size() * descriptors_at_once) {
    throw std::logic_error("PageArena: a descriptor is lost");
  }
}

}  // namespace unimem::detail
