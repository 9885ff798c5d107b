#include "pool/page_arena.hpp"

#include "pool/mutants.hpp"

#include <algorithm>
#include <functional>
#include <numeric>

// How free memory of a PageArena is brought together: pages that lie apart, by their mappings, into one span (which of
// them, where to, and how they get there); and parts of pages, by owners that can move what lies between them.

namespace unimem::detail {

Span* PageArena::gather(std::size_t bytes, std::size_t alignment, std::size_t create, End end) {
  if (auto* const span = take(bytes, alignment, end)) return span;
  if (bytes > most_bytes) return nullptr;
  auto const size = rounded(bytes);
  auto const found = plan(page_up(size));
  if (page_up(size) - found > create) return nullptr;
  auto const site = gathering_site(size, alignment);
  return make(site, site.missing - moving_bytes(), size, alignment, end);
}

std::size_t PageArena::gather_free(std::size_t most, std::stop_token const& stop) {
  auto const before = counts_.moved_bytes;
  auto const all = plan(std::max(free_in_pages_, page_));
  if (pieces_.size() < 2) return 0;
  auto site = gathering_site(all, 1);
  if (moving_bytes() > most && !UNIMEM_MUTANT(moves_beyond_budget)) {
    plan(all);
    site = site_within(most);
  }
  if (!pieces_.empty()) static_cast<void>(assemble(site, 0, stop));
  return counts_.moved_bytes - before;
}

PageArena::Site PageArena::site_within(std::size_t most) noexcept {
  Site site;
  auto const all = moving_bytes();
  auto const stays = std::ranges::find_if(pieces_, [&](Piece const& piece) {
    auto const joining = std::min(most, all - piece.range.bytes);
    site = beside_span(*piece.span, piece.range.bytes + joining, 1);
    return site.span != nullptr;
  });
  if (stays != pieces_.end()) pieces_.erase(stays);
  // Whole runs only: each that moves is one less, so that calls with a limit come to an end as well.
  auto left = site.span != nullptr ? std::min(site.missing, most) : most;
  std::erase_if(pieces_, [&left](Piece const& piece) {
    bool const fits = piece.range.bytes <= left;
    left -= fits ? piece.range.bytes : 0;
    return !fits;
  });
  if (site.span != nullptr) return site;
  if (pieces_.size() < 2) pieces_.clear();
  site.missing = moving_bytes();
  site.hole = pieces_.empty() ? nullptr : holes_.best_fit(site.missing, 1);
  return site;
}

Span* PageArena::take_instead_of(Span const& used) {
  auto const in_pages = free_in_pages_;
  auto* const span = take(used.bytes);
  if (span == nullptr || UNIMEM_MUTANT(moves_without_gain)) return span;
  auto const then = free_in_pages_without(used);
  bool const better = then > in_pages || (then == in_pages && free_around(used).bytes > free_around(*span).bytes);
  if (better) return span;
  give(*span);
  return nullptr;
}

AddressRange PageArena::free_around(Span const& span) const noexcept {
  AddressRange around{span.base, span.bytes};
  if (span.before->kind == SpanKind::free) around = {span.before->base, around.bytes + span.before->bytes};
  if (span.after != nullptr && span.after->kind == SpanKind::free) around.bytes += span.after->bytes;
  return around;
}

std::size_t PageArena::free_in_pages_without(Span const& span) const noexcept {
  auto elsewhere = free_in_pages_;
  for (auto const* const beside : {span.before, span.after}) {
    if (beside != nullptr && beside->kind == SpanKind::free) elsewhere -= whole_pages(*beside).bytes;
  }
  auto const around = free_around(span);
  return elsewhere + whole_pages({.base = around.base, .bytes = around.bytes}).bytes;
}

PageArena::Site PageArena::gathering_site(std::size_t bytes, std::size_t alignment) noexcept {
  for (auto piece = pieces_.begin(); piece != pieces_.end(); ++piece) {
    if (piece->range.bytes != whole_pages(*piece->span).bytes) continue;
    auto const site = beside_span(*piece->span, bytes, alignment);
    if (site.span == nullptr || site.hole->bytes / 2 > site.missing) continue;
    // It stays where it is; and its ends, which no piece could have brought along, may make up for pages of others.
    pieces_.erase(piece);
    for (auto moving = moving_bytes(); moving > site.missing;) {
      auto& last = pieces_.back().range.bytes;
      auto const less = std::min(last, moving - site.missing);
      moving -= less;
      last -= less;
      if (last == 0) pieces_.pop_back();
    }
    return site;
  }
  return {nullptr, holes_.best_fit(page_up(bytes), 1), true, page_up(bytes)};
}

std::size_t PageArena::plan(std::size_t bytes) {
  pieces_.clear();
  std::size_t sum = 0;
  free_.from_largest([&](Span& span) {
    if (span.bytes < page_) return false;
    auto run = whole_pages(span);
    if (run.bytes == 0) return true;
    if (run.bytes > bytes - sum) {
      auto& last = last_piece(span, bytes - sum);
      run = {whole_pages(last).base, bytes - sum};
      pieces_.push_back({&last, run});
    } else {
      pieces_.push_back({&span, run});
    }
    sum += run.bytes;
    return sum < bytes;
  });
  return sum;
}

Span& PageArena::last_piece(Span& largest, std::size_t bytes) const noexcept {
  auto* const best = free_.best_fit(bytes, page_);
  auto const is_best = [best](Piece const& piece) { return piece.span == best; };
  return best != nullptr && std::ranges::none_of(pieces_, is_best) ? *best : largest;
}

std::size_t PageArena::moving_bytes() const noexcept {
  return std::transform_reduce(pieces_.begin(), pieces_.end(), std::size_t{0}, std::plus{},
                               [](Piece const& piece) { return piece.range.bytes; });
}

void PageArena::add_piece(Span& growing, bool upwards, Piece const& piece) {
  provide_spare_spans();
  auto const bytes = piece.range.bytes;
  bool lost = false;
  try {
    move_pages(piece.range, beside(growing, upwards, bytes), lost);
  } catch (...) {
    if (lost) {
      reserved_ -= bytes;
      settle(cut(*piece.span, piece.range.base, bytes), SpanKind::hole);
    }
    throw;
  }
  extend(growing, upwards, bytes);
  settle(cut(*piece.span, piece.range.base, bytes), UNIMEM_MUTANT(holes_served) ? SpanKind::free : SpanKind::hole);
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

}  // namespace unimem::detail
