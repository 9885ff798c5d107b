#include "stream/histogram_loop.hpp"

#include <array>
#include <cstring>

namespace unimem::detail {
namespace {

template <class Word>
Word load(std::uint8_t const* from) noexcept {
  Word word = 0;
  std::memcpy(&word, from, sizeof word);
  return word;
}

/// Below this, clearing and adding up the table of pairs costs more than it saves.
constexpr std::size_t pairs_pay_from = std::size_t{128} << 10;

/// Byte by byte. Each increment must see the one before it of the same counter, so sixteen tables, one for each
/// position in two words, keep equal neighbours apart: one table alone counts a file of zeros at a quarter of the
/// speed.
void count_singly(std::span<const std::uint8_t> bytes, std::span<std::uint32_t> counts) noexcept {
  alignas(64) std::array<std::array<std::uint32_t, 256>, 16> tables{};
  std::size_t at = 0;
  for (; at + 16 <= bytes.size(); at += 16) {
    auto first = load<std::uint64_t>(bytes.data() + at);
    auto second = load<std::uint64_t>(bytes.data() + at + 8);
    for (std::size_t position = 0; position < 8; ++position) {
      ++tables[position][first & 0xFFU];
      ++tables[position + 8][second & 0xFFU];
      first >>= 8;
      second >>= 8;
    }
  }
  for (; at < bytes.size(); ++at) ++tables[0][bytes[at]];
  for (std::size_t value = 0; value < 256; ++value) {
    for (auto const& table : tables) counts[value] += table[value];
  }
}

/// Two bytes at a time, in a table of all pairs: half the increments, which are what bounds this loop. The counters
/// have eight bits so that most of the table stays in the first-level cache; one that wraps round hands its 256 on.
void count_pairs(std::span<const std::uint8_t> bytes, std::span<std::uint32_t> counts) noexcept {
  alignas(64) std::array<std::uint8_t, 65'536> pairs{};
  auto const count = [&](std::uint16_t pair) {
    if (++pairs[pair] != 0) [[likely]]
      return;
    counts[pair & 0xFFU] += 256;
    counts[pair >> 8] += 256;
  };
  auto const* at = bytes.data();
  auto const* const end = at + bytes.size();
  auto previous = ~load<std::uint64_t>(at);
  while (end - at >= 16) {
    // Non-temporal, so that the file does not push the table out of the cache.
    __builtin_prefetch(at + 1024, 0, 0);
    auto const first = load<std::uint64_t>(at);
    auto const second = load<std::uint64_t>(at + 8);
    if (first == second && first == previous) [[unlikely]] {
      // Stretches of one word, as of zeros, are only counted: their increments would wait for each other.
      std::uint32_t words = 0;
      for (; end - at >= 8 && load<std::uint64_t>(at) == first; at += 8) ++words;
      for (unsigned position = 0; position < 8; ++position) counts[first >> (8 * position) & 0xFFU] += words;
      continue;
    }
    previous = second;
    for (unsigned position = 0; position < 16; position += 2) count(load<std::uint16_t>(at + position));
    at += 16;
  }
  for (; at != end; ++at) ++counts[*at];
  for (std::size_t high = 0; high < 256; ++high) {
    std::uint32_t sum = 0;
    for (std::size_t low = 0; low < 256; ++low) {
      auto const pair = pairs[high * 256 + low];
      counts[low] += pair;
      sum += pair;
    }
    counts[high] += sum;
  }
}

/// Whether one pair often follows itself without the whole stretch being one word: counting pairs would then wait for
/// itself at every step. Looks at a few words all over.
bool stutters(std::span<const std::uint8_t> bytes) noexcept {
  constexpr std::size_t step = 4'096;
  std::size_t seen = 0;
  std::size_t stuttering = 0;
  for (std::size_t at = 0; at + 16 <= bytes.size(); at += step) {
    auto const word = load<std::uint64_t>(bytes.data() + at);
    if (word == load<std::uint64_t>(bytes.data() + at + 8)) continue;
    auto const equal_neighbours = word ^ (word >> 16);
    bool const stutter = (equal_neighbours & 0xFFFFU) == 0 || (equal_neighbours & 0xFFFF0000U) == 0 ||
                         (equal_neighbours & 0xFFFF00000000U) == 0;
    ++seen;
    stuttering += stutter ? 1U : 0U;
  }
  return stuttering * 4 > seen;
}

}  // namespace

void count_bytes(std::span<const std::uint8_t> bytes, std::span<std::uint32_t> counts) noexcept {
  std::memset(counts.data(), 0, 256 * sizeof(std::uint32_t));
  if (bytes.size() < pairs_pay_from || stutters(bytes))
    count_singly(bytes, counts);
  else
    count_pairs(bytes, counts);
}

}  // namespace unimem::detail
