#include "device/ticket_set.hpp"

#include <algorithm>

namespace unimem::detail {
namespace {

constexpr std::uint64_t bit(std::uint16_t low) noexcept {
  return std::uint64_t{1} << (low % 64);
}

}  // namespace

void TicketSet::insert(Ticket ticket) {
  auto const low = static_cast<std::uint16_t>(ticket);
  auto& [list, bitmap] = spans_[ticket >> span_bits];
  if (bitmap.empty() && list.size() == longest_list) {
    std::vector<std::uint64_t> all(bitmap_words);
    for (auto const one : list) all[one / 64] |= bit(one);
    bitmap = std::move(all);
    std::vector<std::uint16_t>().swap(list);
  }
  if (!bitmap.empty()) {
    bitmap[low / 64] |= bit(low);
    return;
  }
  auto const at = std::ranges::lower_bound(list, low);
  if (at == list.end() || *at != low) list.insert(at, low);
}

bool TicketSet::contains(Ticket ticket) const noexcept {
  auto const span = spans_.find(ticket >> span_bits);
  if (span == spans_.end()) return false;
  auto const low = static_cast<std::uint16_t>(ticket);
  auto const& [list, bitmap] = span->second;
  return bitmap.empty() ? std::ranges::binary_search(list, low) : (bitmap[low / 64] & bit(low)) != 0;
}

std::size_t TicketSet::size_bytes() const noexcept {
  std::size_t bytes = 0;
  for (auto const& [upper, span] : spans_) {
    bytes += span.list.capacity() * sizeof(std::uint16_t) + span.bitmap.capacity() * sizeof(std::uint64_t);
  }
  return bytes;
}

}  // namespace unimem::detail
