#include "pool/page_plan.hpp"

#include <algorithm>
#include <functional>
#include <numeric>

namespace unimem::detail {

std::size_t PagePlan::collect(std::size_t bytes) {
  pieces_.clear();
  std::size_t sum = 0;
  map_.free().from_largest([&](Span& span) {
    if (span.bytes < map_.page()) return false;
    auto run = map_.whole_pages(span);
    if (run.bytes == 0) return true;
    if (run.bytes > bytes - sum) {
      auto& last = last_piece(span, bytes - sum);
      run = map_.first_of(map_.whole_pages(last), bytes - sum);
      pieces_.push_back({&last, run});
    } else {
      pieces_.push_back({&span, run});
    }
    sum += run.bytes;
    return sum < bytes;
  });
  return sum;
}

Span& PagePlan::last_piece(Span& largest, std::size_t bytes) const noexcept {
  auto* const best = map_.free().best_fit(bytes, map_.page());
  auto const is_best = [best](Piece const& piece) { return piece.span == best; };
  bool const serves = best != nullptr && map_.whole_pages(*best).bytes >= bytes;
  return serves && std::ranges::none_of(pieces_, is_best) ? *best : largest;
}

SpanMap::Site PagePlan::site(std::size_t bytes, std::size_t alignment) noexcept {
  if (auto const site = staying(bytes, alignment, Ends::count); site.span != nullptr) {
    leave_out(this->bytes() - std::min(this->bytes(), site.missing));
    return site;
  }
  return elsewhere(std::max(map_.page_up(bytes), this->bytes()));
}

SpanMap::Site PagePlan::site_of_all() noexcept {
  auto const all = bytes();
  auto const site = staying(all, 1, Ends::do_not_count);
  return site.span != nullptr ? site : elsewhere(all);
}

SpanMap::Site PagePlan::staying(std::size_t bytes, std::size_t alignment, Ends ends) noexcept {
  for (auto piece = pieces_.begin(); piece != pieces_.end(); ++piece) {
    auto const whole = map_.whole_pages(*piece->span).bytes;
    if (piece->range.bytes != whole) continue;
    auto const in_ends = ends == Ends::count ? 0 : piece->span->bytes - whole;
    auto const site = map_.site_beside(*piece->span, bytes + in_ends, alignment);
    if (site.span == nullptr || site.hole->bytes / 2 > site.missing) continue;
    // The last of those that come may be larger than what is missing.
    if (site.hole->bytes - site.missing < map_.pieces().largest()) continue;
    pieces_.erase(piece);
    return site;
  }
  return {};
}

SpanMap::Site PagePlan::elsewhere(std::size_t bytes) const noexcept {
  return {nullptr, map_.holes().best_fit(bytes, 1), true, bytes};
}

void PagePlan::leave_out(std::size_t bytes) noexcept {
  while (bytes != 0 && !pieces_.empty()) {
    auto& last = pieces_.back().range;
    auto const kept = last.bytes > bytes ? map_.first_of(last, last.bytes - bytes) : AddressRange{last.base, 0};
    bytes -= last.bytes - kept.bytes;
    last = kept;
    if (last.bytes != 0) return;  // what is left of it is one piece, or as much as was wanted
    pieces_.pop_back();
  }
}

SpanMap::Site PagePlan::site_within(std::size_t most) noexcept {
  SpanMap::Site site;
  auto const all = bytes();
  auto const stays = std::ranges::find_if(pieces_, [&](Piece const& piece) {
    auto const joining = std::min(most, all - piece.range.bytes);
    site = map_.site_beside(*piece.span, piece.range.bytes + joining, 1);
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
  site.missing = bytes();
  site.hole = pieces_.empty() ? nullptr : map_.holes().best_fit(site.missing, 1);
  return site;
}

std::size_t PagePlan::bytes() const noexcept {
  return std::transform_reduce(pieces_.begin(), pieces_.end(), std::size_t{0}, std::plus{},
                               [](Piece const& piece) { return piece.range.bytes; });
}

}  // namespace unimem::detail
