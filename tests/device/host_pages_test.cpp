#include <unimem/core/error.hpp>

#include "core/poison.hpp"
#include "core/sanitizers.hpp"
#include "device/host_memory.hpp"
#include "device/host_pages.hpp"
#include "resident_bytes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

namespace unimem::detail {
namespace {

using Sizes = std::initializer_list<std::size_t>;

/// An owner that writes down what it is told.
class Ledger final : public PageOwner {
 public:
  void take_for_pages(std::size_t bytes) override {
    if (bytes > limit - taken) {
      OutOfMemory::Facts facts;
      facts.requested = bytes;
      throw OutOfMemory(facts);
    }
    taken += bytes;
  }
  void give_back_from_pages(std::size_t bytes) noexcept override { taken -= bytes; }
  void pages_created(std::uintptr_t, std::size_t bytes) override { created += bytes; }
  void pages_moved(std::uintptr_t, std::uintptr_t, std::size_t bytes) override { moved += bytes; }
  void pages_freed(std::uintptr_t, std::size_t bytes) noexcept override { freed += bytes; }

  std::size_t limit = std::size_t{1} << 30;
  std::size_t taken = 0, created = 0, moved = 0, freed = 0;
};

constexpr std::size_t page = std::size_t{64} << 10;

TEST(HostPages, TellTheirOwnerWhatHappens) {
  ASSERT_TRUE(HostPages::supported());
  Ledger ledger;
  HostPages source{ledger};
  auto const range = source.reserve(4 * page);
  EXPECT_EQ(ledger.taken, 0U);
  auto const pages = source.create_pages(2 * page);
  EXPECT_EQ(ledger.taken, 2 * page);
  EXPECT_EQ(ledger.created, 2 * page);
  source.map(range.part(page, 2 * page), pages);
  auto const again = source.unmap(range.part(page, 2 * page));
  EXPECT_EQ(ledger.moved, 4 * page);
  source.free_pages(again);
  EXPECT_EQ(ledger.freed, 2 * page);
  EXPECT_EQ(ledger.taken, 0U);
  source.give_up(range);
}

TEST(HostPages, ARefusalTakesNothing) {
  Ledger ledger;
  ledger.limit = page;
  HostPages source{ledger};
  EXPECT_THROW(static_cast<void>(source.create_pages(2 * page)), OutOfMemory);
  EXPECT_EQ(ledger.taken, 0U);
  ledger.limit = SIZE_MAX;
  EXPECT_THROW(static_cast<void>(source.create_pages(std::size_t{1} << 60)), OutOfMemory);
  EXPECT_EQ(ledger.taken, 0U);
}

TEST(HostPages, NothingCanBeReadWherePagesHaveLeft) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Ledger ledger;
  HostPages source{ledger};
  auto const range = source.reserve(page);
  source.map(range, source.create_pages(page));
  auto* const bytes = reinterpret_cast<std::byte volatile*>(range.base);
  bytes[100] = std::byte{1};
  auto const pages = source.unmap(range);
  EXPECT_DEATH(bytes[100] = std::byte{2}, "");
  source.free_pages(pages);
  source.give_up(range);
}

TEST(HostPages, AddressesAreNotHiddenOncePagesHaveLeft) {
  if (!under_address_sanitizer) GTEST_SKIP() << "not built with AddressSanitizer";
  Ledger ledger;
  HostPages source{ledger};
  auto const range = source.reserve(page);
  source.map(range, source.create_pages(page));
  poison(reinterpret_cast<void*>(range.base), page);
  EXPECT_TRUE(is_poisoned(reinterpret_cast<void*>(range.base)));
  source.free_pages(source.unmap(range));
  source.give_up(range);
  EXPECT_FALSE(is_poisoned(reinterpret_cast<void*>(range.base)));
}

TEST(HostPages, PagesMoveAndAreNotCopied) {
  constexpr std::size_t bytes = std::size_t{64} << 20;
  Ledger ledger;
  HostPages source{ledger};
  auto const first = source.reserve(bytes), second = source.reserve(bytes);
  auto const before = testing::resident_bytes();
  source.map(first, source.create_pages(bytes));
  std::memset(reinterpret_cast<void*>(first.base), 1, bytes);
  for (int round = 0; round < 10; ++round) {
    source.map(second, source.unmap(first));
    source.map(first, source.unmap(second));
    ASSERT_LT(testing::resident_bytes(), before + bytes + bytes / 4) << "one copy of the memory exists at a time";
  }
  source.free_pages(source.unmap(first));
  EXPECT_LT(testing::resident_bytes(), before + bytes / 4) << "freed pages return to the system";
  source.give_up(first);
  source.give_up(second);
}

TEST(HostPages, PopulateDiscardAndShiftTellTheirOwnerToo) {
  Ledger ledger;
  HostPages source{ledger};
  auto const range = source.reserve(8 * page);
  source.populate(range.part(0, 3 * page));
  EXPECT_EQ(ledger.taken, 3 * page);
  EXPECT_EQ(ledger.created, 3 * page);
  ASSERT_TRUE(source.shift(range.part(page, 2 * page), range.part(5 * page, 2 * page)));
  EXPECT_EQ(ledger.taken, 3 * page) << "it is the same memory to the device";
  EXPECT_TRUE(source.is_mapped(range.base, page));
  EXPECT_FALSE(source.is_mapped(range.base + page, 1));
  EXPECT_TRUE(source.is_mapped(range.base + 5 * page, 2 * page));
  EXPECT_THROW(source.populate(range.part(4 * page, 2 * page)), InvalidArgument) << "half of it is mapped";
  EXPECT_THROW(source.discard(range.part(page, page)), InvalidArgument) << "nothing is there any more";
  EXPECT_THROW(static_cast<void>(source.shift(range.part(0, page), range.part(5 * page, page))), InvalidArgument);
  EXPECT_THROW(static_cast<void>(source.shift(range.part(0, page), range.part(2 * page, 2 * page))), InvalidArgument);
  EXPECT_EQ(ledger.taken, 3 * page);
  source.discard(range.part(5 * page, 2 * page));
  source.discard(range.part(0, page));
  EXPECT_EQ(ledger.taken, 0U);
  EXPECT_EQ(ledger.freed, ledger.created);
  source.give_up(range);
}

TEST(HostPages, APopulationThatIsRefusedTakesNothing) {
  Ledger ledger;
  ledger.limit = page;
  HostPages source{ledger};
  auto const range = source.reserve(4 * page);
  EXPECT_THROW(source.populate(range), OutOfMemory);
  EXPECT_EQ(ledger.taken, 0U);
  EXPECT_FALSE(source.is_mapped(range.base, 1));
  source.give_up(range);
}

TEST(HostPages, ShiftedMemoryIsResidentOnce) {
  if (under_thread_sanitizer)
    GTEST_SKIP() << "what ThreadSanitizer notes of the memory is resident too, several times its size";
  constexpr std::size_t bytes = std::size_t{64} << 20;
  Ledger ledger;
  HostPages source{ledger};
  auto const range = source.reserve(2 * bytes);
  auto const before = testing::resident_bytes();
  source.populate(range.part(0, bytes));
  for (std::size_t round = 0; round < 6; ++round) {
    auto const here = range.part(round % 2 * bytes, bytes), there = range.part((round + 1) % 2 * bytes, bytes);
    std::memset(reinterpret_cast<void*>(here.base), 1, bytes);
    ASSERT_LT(testing::resident_bytes(), before + bytes + bytes / 4) << "what it left has gone back to the system";
    ASSERT_TRUE(source.shift(here, there));
  }
  source.discard(range.part(0, bytes));
  source.give_up(range);
}

TEST(HostPages, KnowWhatIsMapped) {
  Ledger ledger;
  HostPages source{ledger};
  auto const range = source.reserve(4 * page);
  EXPECT_FALSE(source.is_mapped(range.base, 1));
  source.map(range.part(page, page), source.create_pages(page));
  source.map(range.part(2 * page, page), source.create_pages(page));
  EXPECT_TRUE(source.is_mapped(range.base + page, 2 * page)) << "two maps, one range";
  EXPECT_TRUE(source.is_mapped(range.base + page + 5, page));
  EXPECT_FALSE(source.is_mapped(range.base + page - 1, 10));
  EXPECT_FALSE(source.is_mapped(range.base + page, 2 * page + 1));
  auto const pages = source.unmap(range.part(page, 2 * page));
  EXPECT_FALSE(source.is_mapped(pages.handle, 1)) << "parked pages are mapped nowhere";
  source.free_pages(pages);
  source.give_up(range);
}

TEST(HostPages, MisuseIsReportedAndIgnored) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Ledger ledger;
  HostPages source{ledger};
  auto const range = source.reserve(2 * page);
  source.map(range.part(0, page), source.create_pages(page));
  EXPECT_DEBUG_DEATH(source.give_up(range), "still mapped");
  EXPECT_DEBUG_DEATH(source.give_up({range.base, page}), "not a reservation");
  EXPECT_DEBUG_DEATH(source.free_pages({range.base, page}), "no such pages");
  EXPECT_TRUE(source.is_mapped(range.base, page));
  source.free_pages(source.unmap(range.part(0, page)));
  source.give_up(range);
  EXPECT_EQ(ledger.taken, 0U);
}

struct ModelCase {
  unsigned seed;
  std::size_t pages_a_place;
};

/// Random maps and unmaps of random parts, against a model that knows each place's content. Places of one page are all
/// made accessible at once; large ones are not.
class HostPagesModel : public ::testing::TestWithParam<ModelCase> {};

TEST_P(HostPagesModel, AgreesWithOneWordPerPlace) {
  auto const [seed, pages_a_place] = GetParam();
  SCOPED_TRACE(::testing::Message() << "seed " << seed << ", " << pages_a_place << " pages a place");
  constexpr std::size_t places = 48;
  auto const unit = pages_a_place * page;
  Ledger ledger;
  HostPages source{ledger};
  auto const range = source.reserve(places * unit);
  std::array<std::uint32_t, places> model{};  // 0: nothing mapped
  struct Parked {
    Pages pages;
    std::vector<std::uint32_t> words;
  };
  std::vector<Parked> parked;
  std::minstd_rand random{seed};
  std::uint32_t next_word = 1;
  auto const word_at = [&](std::size_t place) -> std::uint32_t& {
    return *reinterpret_cast<std::uint32_t*>(range.base + place * unit + 4096);
  };

  for (int step = 0; step < 800; ++step) {
    auto const from = random() % places;
    auto const count = 1 + random() % std::min<std::size_t>(8, places - from);
    std::size_t mapped = 0;
    for (auto place = from; place < from + count; ++place) mapped += model[place] != 0;

    if (mapped == 0 && !parked.empty() && random() % 2 == 0) {
      auto const which = parked.begin() + static_cast<std::ptrdiff_t>(random() % parked.size());
      auto const size = which->words.size();
      if (from + size > places || std::any_of(&model[from], &model[from] + size, [](auto word) { return word != 0; }))
        continue;
      source.map(range.part(from * unit, size * unit), which->pages);
      std::copy(which->words.begin(), which->words.end(), &model[from]);
      parked.erase(which);
    } else if (mapped == 0) {
      if (random() % 2 == 0) {
        source.populate(range.part(from * unit, count * unit));
      } else {
        source.map(range.part(from * unit, count * unit), source.create_pages(count * unit));
      }
      for (auto place = from; place < from + count; ++place) word_at(place) = model[place] = next_word++;
    } else if (mapped == count && random() % 4 == 0) {
      source.discard(range.part(from * unit, count * unit));
      std::fill_n(&model[from], count, 0U);
    } else if (mapped == count && random() % 2 == 0) {
      auto const to = random() % (places - count + 1);
      if (std::any_of(&model[to], &model[to] + count, [](auto word) { return word != 0; })) continue;
      ASSERT_TRUE(source.shift(range.part(from * unit, count * unit), range.part(to * unit, count * unit)));
      std::fill_n(&model[from], count, 0U);
      for (auto place = to; place < to + count; ++place) word_at(place) = model[place] = next_word++;
    } else if (mapped == count) {
      Parked away{source.unmap(range.part(from * unit, count * unit)), {&model[from], &model[from] + count}};
      std::fill_n(&model[from], count, 0U);
      if (random() % 3 == 0) {
        source.free_pages(away.pages);
      } else {
        parked.push_back(std::move(away));
      }
    } else {
      EXPECT_THROW(static_cast<void>(source.unmap(range.part(from * unit, count * unit))), InvalidArgument);
    }
    std::size_t live = 0;
    for (std::size_t place = 0; place < places; ++place) {
      ASSERT_EQ(source.is_mapped(range.base + place * unit, unit), model[place] != 0);
      if (model[place] == 0) continue;
      ASSERT_EQ(word_at(place), model[place]);
      live += unit;
    }
    for (auto const& away : parked) live += away.pages.bytes;
    ASSERT_EQ(ledger.taken, live);
  }
  for (auto const& away : parked) source.free_pages(away.pages);
  for (std::size_t place = 0; place < places; ++place) {
    if (model[place] != 0) source.free_pages(source.unmap(range.part(place * unit, unit)));
  }
  EXPECT_EQ(ledger.taken, 0U);
  source.give_up(range);
}

INSTANTIATE_TEST_SUITE_P(Seeds, HostPagesModel,
                         ::testing::Values(ModelCase{1, 1}, ModelCase{2, 1}, ModelCase{3, 1}, ModelCase{2026, 1},
                                           ModelCase{4, 48}, ModelCase{5, 48}));

TEST(HostMemory, PatternsRepeatExactly) {
  for (auto const size : Sizes{1, 2, 4, 8, 16}) {
    for (auto const repeats : Sizes{1, 2, 5, 511, 512, 513, 3000}) {
      std::vector<std::byte> pattern(size), expected, target(size * repeats + 1, std::byte{0x99});
      for (std::size_t i = 0; i < size; ++i) pattern[i] = static_cast<std::byte>(i + 1);
      for (std::size_t i = 0; i < repeats; ++i) expected.insert(expected.end(), pattern.begin(), pattern.end());
      expected.push_back(std::byte{0x99});
      repeat_pattern(target.data(), size * repeats, pattern);
      EXPECT_EQ(target, expected) << repeats << " times " << size;
    }
  }
}

TEST(HostMemory, IsAlignedAndRefusedWithoutHarm) {
  for (auto const bytes : Sizes{1, 255, 65'535, 65'536, 1 << 20, 5 << 20}) {
    for (bool const own_pages : {false, true}) {
      auto* const memory = take_host_memory(bytes, own_pages);
      ASSERT_NE(memory, nullptr);
      auto const alignment = own_pages || bytes >= mapped_from_bytes ? 4096U : small_alignment;
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % alignment, 0U);
      std::memset(memory, 1, bytes);
      give_back_host_memory(memory, bytes, own_pages);
    }
  }
  EXPECT_EQ(take_host_memory(SIZE_MAX), nullptr);
  EXPECT_EQ(take_host_memory(std::size_t{1} << 60), nullptr);
}

TEST(HostMemory, AddressesAreSkewedAsAsked) {
  constexpr std::size_t alignment = std::size_t{2} << 20;
  for (auto const skew : Sizes{std::size_t{0}, page, alignment - page}) {
    auto* const base = map_addresses(10 * page, alignment, skew, PROT_READ | PROT_WRITE);
    ASSERT_NE(base, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(base) % alignment, skew);
    base[10 * page - 1] = std::byte{1};
    munmap(base, 10 * page);
  }
}

}  // namespace
}  // namespace unimem::detail
