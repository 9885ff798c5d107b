#include "stream/histogram_loop.hpp"

#include <array>
#include <cstring>

namespace unimem::detail {
namespace {

std::uint64_t load_word(std::uint8_t const* from) noexcept {
  std::uint64_t word = 0;
  std::memcpy(&word, from, sizeof word);
  return word;
}

}  // namespace

void count_bytes(std::span<const std::uint8_t> bytes, std::span<std::uint32_t> counts) noexcept {
  // Counting is bound by the increments, each of which must see the one before it of the same counter: sixteen tables,
  // one for each position in two words, keep equal neighbours apart (measured: 1 table 0.6–2.4 GB/s a core, 4 1.7–2.2,
  // 16 2.1–3.1).
  alignas(64) std::array<std::array<std::uint32_t, 256>, 16> tables{};
  std::size_t at = 0;
  for (; at + 16 <= bytes.size(); at += 16) {
    auto first = load_word(bytes.data() + at);
    auto second = load_word(bytes.data() + at + 8);
    for (std::size_t position = 0; position < 8; ++position) {
      ++tables[position][first & 0xFFU];
      ++tables[position + 8][second & 0xFFU];
      first >>= 8;
      second >>= 8;
    }
  }
  for (; at < bytes.size(); ++at) ++tables[0][bytes[at]];
  for (std::size_t value = 0; value < 256; ++value) {
    std::uint32_t sum = 0;
    for (auto const& table : tables) sum += table[value];
    counts[value] = sum;
  }
}

}  // namespace unimem::detail
