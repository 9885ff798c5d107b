#include "device/page_set.hpp"

#include <algorithm>
#include <bit>

namespace unimem::detail {

PageSet::PageSet(std::size_t pages) : size_(pages), words_((pages + word_bits - 1) / word_bits) {}

template <class Change>
void PageSet::for_each_word(std::size_t first, std::size_t count, Change change) noexcept {
  while (count != 0) {
    auto const bit = first % word_bits;
    auto const here = std::min(count, word_bits - bit);
    auto const mask = (~std::uint64_t{0} >> (word_bits - here)) << bit;
    change(words_[first / word_bits], mask);
    first += here;
    count -= here;
  }
}

void PageSet::add(std::size_t first, std::size_t count) noexcept {
  for_each_word(first, count, [](std::uint64_t& word, std::uint64_t mask) { word |= mask; });
}

void PageSet::remove(std::size_t first, std::size_t count) noexcept {
  for_each_word(first, count, [](std::uint64_t& word, std::uint64_t mask) { word &= ~mask; });
}

std::size_t PageSet::next(std::size_t from, std::size_t end, std::uint64_t flipped) const noexcept {
  while (from < end) {
    auto const bits = (words_[from / word_bits] ^ flipped) >> from % word_bits;
    if (bits != 0) return std::min(end, from + static_cast<std::size_t>(std::countr_zero(bits)));
    from += word_bits - from % word_bits;
  }
  return end;
}

}  // namespace unimem::detail
