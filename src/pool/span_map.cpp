#include "pool/span_map.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace unimem::detail {
namespace {

constexpr std::size_t descriptors_at_once = 64;

/// How many of the largest free spans are looked at for one that can be continued where it lies.
constexpr int most_sites = 32;

}  // namespace

SpanMap::SpanMap(std::size_t page, std::size_t granule) noexcept
    : page_(page), granule_(granule), free_(std::max<std::size_t>(granule, 1)), holes_(page) {}

AddressRange SpanMap::whole_pages(Span const& span) const noexcept {
  auto const begin = pieces_.at_or_after(align_up(span.base, page_));
  auto const end = pieces_.at_or_before(span.end() & ~(std::uintptr_t{page_} - 1));
  return begin < end ? AddressRange{begin, end - begin} : AddressRange{begin, 0};
}

AddressRange SpanMap::first_of(AddressRange whole, std::size_t bytes) const noexcept {
  return {whole.base, pieces_.at_or_after(whole.base + page_up(bytes)) - whole.base};
}

AddressRange SpanMap::free_around(Span const& span) const noexcept {
  AddressRange around{span.base, span.bytes};
  if (span.before->kind == SpanKind::free) around = {span.before->base, around.bytes + span.before->bytes};
  if (span.after != nullptr && span.after->kind == SpanKind::free) around.bytes += span.after->bytes;
  return around;
}

std::size_t SpanMap::free_in_pages_without(Span const& span) const noexcept {
  auto elsewhere = free_in_pages_;
  for (auto const* const beside : {span.before, span.after}) {
    if (beside != nullptr && beside->kind == SpanKind::free) elsewhere -= whole_pages(*beside).bytes;
  }
  auto const around = free_around(span);
  return elsewhere + whole_pages({.base = around.base, .bytes = around.bytes}).bytes;
}

SpanMap::Site SpanMap::site_for(std::size_t bytes, std::size_t alignment) const noexcept {
  Site site;
  auto looks = most_sites;
  free_.from_largest([&](Span& span) {
    site = site_beside(span, bytes, alignment);
    return site.span == nullptr && --looks > 0;
  });
  return site.span != nullptr ? site : Site{nullptr, holes_.best_fit(page_up(bytes), 1), true, page_up(bytes)};
}

SpanMap::Site SpanMap::site_beside(Span& span, std::size_t bytes, std::size_t alignment) const noexcept {
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

Span& SpanMap::add_reservation(AddressRange range) noexcept {
  auto& fence = spare_span({.base = range.base, .bytes = 0, .kind = SpanKind::used});
  auto& hole = spare_span({.base = range.base, .bytes = range.bytes, .kind = SpanKind::hole, .before = &fence});
  fence.after = &hole;
  reservations_.push_back({range, &fence});
  index(hole);
  return hole;
}

AddressRange SpanMap::remove_if_empty(Span& hole) noexcept {
  auto& fence = *hole.before;
  if (fence.before != nullptr || hole.after != nullptr) return {};
  auto const found = std::ranges::find(reservations_, &fence, &Reservation::fence);
  auto const range = found->range;
  reservations_.erase(found);
  unindex(hole);
  unlink(hole);
  unlink(fence);
  return range;
}

Span& SpanMap::begin_growing(Site site) noexcept {
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

Span* SpanMap::end_growing(Span& span) noexcept {
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

void SpanMap::extend(Span& growing, bool upwards, std::size_t bytes) noexcept {
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

void SpanMap::index(Span& span) noexcept {
  if (span.kind == SpanKind::hole) return holes_.add(span);
  free_in_pages_ += whole_pages(span).bytes;
  free_.add(span);
}

void SpanMap::unindex(Span& span) noexcept {
  if (span.kind == SpanKind::hole) return holes_.remove(span);
  free_in_pages_ -= whole_pages(span).bytes;
  free_.remove(span);
}

Span& SpanMap::cut(Span& span, std::uintptr_t base, std::size_t bytes) noexcept {
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

Span& SpanMap::settle(Span& span, SpanKind kind) noexcept {
  span.kind = kind;
  auto* whole = &span;
  if (auto* const before = span.before; before->kind == kind) {
    unindex(*before);
    before->bytes += span.bytes;
    unlink(span);
    whole = before;
  }
  auto* const after = whole->after;
  if (after != nullptr && after->kind == kind) {
    unindex(*after);
    whole->bytes += after->bytes;
    unlink(*after);
  }
  index(*whole);
  return *whole;
}

Span& SpanMap::serve(Span& span, std::size_t bytes, std::size_t alignment, SpanEnd end) noexcept {
  auto const base = end == SpanEnd::low ? align_up(span.base, alignment) : (span.end() - bytes) & ~(alignment - 1);
  auto& served = cut(span, base, bytes);
  served.kind = SpanKind::used;
  return served;
}

void SpanMap::provide_spares() {
  reservations_.reserve(reservations_.size() + 1);
  if (spares_ >= spans_per_step) return;
  descriptors_.push_back(std::make_unique<Span[]>(descriptors_at_once));
  for (std::size_t i = 0; i < descriptors_at_once; ++i) {
    auto& span = descriptors_.back()[i];
    span.after = spare_;
    spare_ = &span;
  }
  spares_ += descriptors_at_once;
}

Span& SpanMap::spare_span(Span const& what) noexcept {
  auto& span = *spare_;
  spare_ = span.after;
  --spares_;
  span = what;
  return span;
}

void SpanMap::unlink(Span& span) noexcept {
  if (span.before != nullptr) span.before->after = span.after;
  if (span.after != nullptr) span.after->before = span.before;
  span.after = spare_;
  spare_ = &span;
  ++spares_;
}

std::size_t SpanMap::validate() const {
  std::size_t free = 0, in_pages = 0, used = 0, holes = 0, free_spans = 0, hole_spans = 0, spans = 0;
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
  }
  free_.validate(SpanKind::free);
  holes_.validate(SpanKind::hole);
  if (free != free_.bytes() || free_spans != free_.count()) throw std::logic_error("PageArena: free spans unindexed");
  if (holes != holes_.bytes() || hole_spans != holes_.count()) throw std::logic_error("PageArena: holes unindexed");
  if (in_pages != free_in_pages_) throw std::logic_error("PageArena: free pages miscounted");
  if (spans + spares_ != descriptors_.size() * descriptors_at_once) {
    throw std::logic_error("PageArena: a descriptor is lost");
  }
  return free + used;
}

}  // namespace unimem::detail
