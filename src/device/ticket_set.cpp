#include "device/ticket_set.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace unimem::detail {
namespace {

constexpr unsigned span_bits = 16;
constexpr std::size_t bitmap_words = (std::size_t{1} << span_bits) / 64;
constexpr std::size_t bitmap_bytes = bitmap_words * sizeof(std::uint64_t);
constexpr std::size_t longest_list = bitmap_words * 4;  ///< as large as the bitmap

constexpr std::uint64_t bit(std::size_t low) noexcept {
  return std::uint64_t{1} << (low % 64);
}

// A packed span is its bitmap, or runs of tickets: for each the tickets left out since the last one, twice, and one
// more where the run is longer than one; then how much longer. Numbers are in groups of seven bits, the lowest first.
// What is as long as a bitmap is one.

void put(std::vector<std::uint8_t>& bytes, std::size_t number) {
  for (; number >= 0x80; number >>= 7) bytes.push_back(static_cast<std::uint8_t>(number | 0x80));
  bytes.push_back(static_cast<std::uint8_t>(number));
}

std::size_t take(std::uint8_t const*& at) noexcept {
  std::size_t number = 0;
  for (unsigned shift = 0;; shift += 7) {
    auto const byte = *at++;
    number |= std::size_t{byte & 0x7FU} << shift;
    if (byte < 0x80) return number;
  }
}

/// Calls `visit(first, end)` for each run until it returns false.
template <class Visit>
void for_each_run(std::uint8_t const* at, std::uint8_t const* end, Visit visit) {
  std::size_t next = 0;
  while (at != end) {
    auto const head = take(at);
    auto const first = next + head / 2;
    next = first + 1 + (head % 2 != 0 ? take(at) : 0);
    if (!visit(first, next)) return;
  }
}

}  // namespace

void TicketSet::Members::insert(std::uint16_t low) {
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

bool TicketSet::Members::contains(std::uint16_t low) const noexcept {
  return bitmap.empty() ? std::ranges::binary_search(list, low) : (bitmap[low / 64] & bit(low)) != 0;
}

/// Calls `visit(low)` for each, ascending.
template <class Visit>
void TicketSet::Members::for_each(Visit const& visit) const {
  for (std::size_t const low : list) visit(low);
  for (std::size_t low = 0; low < bitmap.size() * 64; ++low) {
    if ((bitmap[low / 64] & bit(low)) != 0) visit(low);
  }
}

TicketSet::Bytes TicketSet::pack(Members const& members) {
  Bytes bytes;
  std::size_t first = 0, end = 0, last_end = 0;  // of the run that is being read; of the one before
  auto const put_run = [&] {
    if (first == end) return;
    put(bytes, 2 * (first - last_end) + (end - first > 1 ? 1 : 0));
    if (end - first > 1) put(bytes, end - first - 1);
    last_end = end;
  };
  auto const add = [&](std::size_t low) {
    if (low != end || first == end) {
      put_run();
      first = low;
    }
    end = low + 1;
  };
  members.for_each(add);
  put_run();
  if (bytes.size() < bitmap_bytes) return bytes;
  bytes.assign(bitmap_bytes, 0);
  members.for_each([&](std::size_t low) { bytes[low / 8] |= static_cast<std::uint8_t>(1U << (low % 8)); });
  return bytes;
}

TicketSet::Members TicketSet::unpack(Bytes const& bytes) {
  Members members;
  if (bytes.size() == bitmap_bytes) {
    members.bitmap.resize(bitmap_words);
    for (std::size_t i = 0; i < bitmap_bytes; ++i) {
      members.bitmap[i / 8] |= std::uint64_t{bytes[i]} << (i % 8 * 8);
    }
    return members;
  }
  for_each_run(bytes.data(), bytes.data() + bytes.size(), [&](std::size_t first, std::size_t end) {
    for (; first != end; ++first) members.insert(static_cast<std::uint16_t>(first));
    return true;
  });
  return members;
}

std::size_t TicketSet::end_of(std::size_t index) const noexcept {
  return index + 1 < packed_.size() ? packed_[index + 1].begin : bytes_.size();
}

void TicketSet::pack_latest() {
  auto const bytes = pack(latest_);
  packed_.push_back({upper_, bytes_.size()});
  try {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  } catch (...) {
    packed_.pop_back();
    throw;
  }
}

void TicketSet::insert_earlier(Ticket upper, std::uint16_t low) {
  auto const at = std::ranges::lower_bound(packed_, upper, {}, &Packed::upper);
  auto const index = static_cast<std::size_t>(at - packed_.begin());
  bool const there = at != packed_.end() && at->upper == upper;
  auto const begin = at == packed_.end() ? bytes_.size() : at->begin;
  auto const end = there ? end_of(index) : begin;
  auto const part = [this](std::size_t offset) { return bytes_.begin() + static_cast<std::ptrdiff_t>(offset); };
  auto members = unpack({part(begin), part(end)});
  members.insert(low);
  auto const bytes = pack(members);
  packed_.reserve(packed_.size() + 1);
  bytes_.reserve(bytes_.size() + bytes.size());  // nothing below throws
  if (!there) packed_.insert(packed_.begin() + static_cast<std::ptrdiff_t>(index), {upper, begin});
  bytes_.erase(part(begin), part(end));
  bytes_.insert(part(begin), bytes.begin(), bytes.end());
  for (auto i = index + 1; i < packed_.size(); ++i) packed_[i].begin += bytes.size() - (end - begin);
}

void TicketSet::insert(Ticket ticket) {
  auto const upper = ticket >> span_bits;
  auto const low = static_cast<std::uint16_t>(ticket);
  if (latest_.empty() || upper > upper_) {
    Members fresh;
    fresh.insert(low);
    if (!latest_.empty()) pack_latest();
    latest_ = std::move(fresh);
    upper_ = upper;
  } else if (upper == upper_) {
    latest_.insert(low);
  } else {
    insert_earlier(upper, low);
  }
}

bool TicketSet::contains(Ticket ticket) const noexcept {
  auto const upper = ticket >> span_bits;
  auto const low = static_cast<std::uint16_t>(ticket);
  if (upper == upper_) return latest_.contains(low);
  auto const at = std::ranges::lower_bound(packed_, upper, {}, &Packed::upper);
  if (at == packed_.end() || at->upper != upper) return false;
  auto const* const begin = bytes_.data() + at->begin;
  auto const* const end = bytes_.data() + end_of(static_cast<std::size_t>(at - packed_.begin()));
  if (static_cast<std::size_t>(end - begin) == bitmap_bytes) return (begin[low / 8] >> (low % 8) & 1) != 0;
  bool found = false;
  for_each_run(begin, end, [&](std::size_t first, std::size_t run_end) {
    found = first <= low && low < run_end;
    return run_end <= low;
  });
  return found;
}

std::size_t TicketSet::size_bytes() const noexcept {
  return latest_.list.capacity() * sizeof(std::uint16_t) + latest_.bitmap.capacity() * sizeof(std::uint64_t) +
         packed_.capacity() * sizeof(Packed) + bytes_.capacity();
}

}  // namespace unimem::detail
