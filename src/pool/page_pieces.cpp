#include "pool/page_pieces.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace unimem::detail {

PagePieces::PagePieces(AddressRange range, std::size_t piece, std::size_t page) {
  if (piece <= page || piece > range.bytes) return;
  largest_ = piece;
  for (std::size_t at = 0; piece <= range.bytes - at; at += piece) {
    pieces_.emplace_hint(pieces_.end(), range.base + at, piece);
  }
}

void PagePieces::add(PagePieces fresh) noexcept {
  pieces_.merge(fresh.pieces_);
  largest_ = std::max(largest_, fresh.largest_);
}

void PagePieces::move(AddressRange from, std::uintptr_t to) noexcept {
  for (auto at = pieces_.lower_bound(from.base); at != pieces_.end() && at->first < from.base + from.bytes;) {
    auto piece = pieces_.extract(at++);  // nothing is allocated on the way
    piece.key() = piece.key() - from.base + to;
    pieces_.insert(std::move(piece));
  }
}

void PagePieces::remove(AddressRange range) noexcept {
  pieces_.erase(pieces_.lower_bound(range.base), pieces_.lower_bound(range.base + range.bytes));
}

PagePieces::Map::value_type const* PagePieces::around(std::uintptr_t boundary) const noexcept {
  if (pieces_.empty()) return nullptr;
  auto const from_there = pieces_.lower_bound(boundary);
  if (from_there == pieces_.begin()) return nullptr;
  auto const& before = *std::prev(from_there);
  return boundary < before.first + before.second ? &before : nullptr;
}

std::uintptr_t PagePieces::at_or_after(std::uintptr_t boundary) const noexcept {
  auto const* const piece = around(boundary);
  return piece == nullptr ? boundary : piece->first + piece->second;
}

std::uintptr_t PagePieces::at_or_before(std::uintptr_t boundary) const noexcept {
  auto const* const piece = around(boundary);
  return piece == nullptr ? boundary : piece->first;
}

}  // namespace unimem::detail
