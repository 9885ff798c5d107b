#include "pool/slabs.hpp"

#include <unimem/core/error.hpp>

#include "core/sizes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace unimem {
namespace {

using detail::block_capacity;
using detail::SlabBlock;
using detail::SlabMemory;
using detail::Slabs;
using ::testing::ElementsAre;

/// Memory that is only addresses, whose provider keeps books.
class Ledger final : public SlabMemory {
 public:
  ~Ledger() override { EXPECT_TRUE(stretches.empty()) << "slabs were kept"; }

  [[nodiscard]] Stretch take(std::size_t bytes) override {
    ++taken;
    if (fails) throw OutOfMemory({.where = "ledger", .requested = bytes, .holders = {}, .reason = {}});
    bytes += surplus;
    auto const object = next_;
    next_ += bytes;
    stretches.emplace(object, bytes);
    return {object, bytes, this};
  }
  void give(Stretch stretch) noexcept override {
    EXPECT_EQ(stretch.note, this) << "the note comes back as it was";
    EXPECT_EQ(stretches[stretch.object], stretch.bytes);
    EXPECT_EQ(stretches.erase(stretch.object), 1U);
  }

  [[nodiscard]] std::size_t bytes() const {
    std::size_t sum = 0;
    for (auto const& [object, size] : stretches) sum += size;
    return sum;
  }

  std::map<std::uintptr_t, std::size_t> stretches;
  std::size_t taken = 0;
  std::size_t surplus = 0;  ///< given beyond what was asked for
  bool fails = false;

 private:
  std::uintptr_t next_ = 4096;
};

class SlabsTest : public ::testing::Test {
 protected:
  [[nodiscard]] SlabBlock take(std::size_t bytes) {
    auto const block = slabs.take(bytes);
    slabs.validate();
    return block;
  }
  void give(SlabBlock block) {
    slabs.give(block);
    slabs.validate();
  }
  [[nodiscard]] std::vector<SlabBlock> take(std::size_t count, std::size_t bytes) {
    std::vector<SlabBlock> blocks;
    for (std::size_t i = 0; i < count; ++i) blocks.push_back(take(bytes));
    return blocks;
  }

  Ledger ledger;
  Slabs slabs{ledger};
};

TEST_F(SlabsTest, BlocksAreOfTheirNearExactClass) {
  std::set<std::size_t> capacities;
  for (std::size_t bytes = 1; bytes <= Slabs::largest_block; bytes += 13) {
    ASSERT_TRUE(Slabs::serves(bytes));
    auto const block = slabs.take(bytes);
    ASSERT_EQ(block.bytes(), block_capacity(bytes));
    capacities.insert(block.bytes());
    slabs.give(block);
  }
  slabs.validate();
  EXPECT_EQ(take(Slabs::largest_block).bytes(), Slabs::largest_block);
  EXPECT_FALSE(Slabs::serves(Slabs::largest_block + 1));
  EXPECT_EQ(slabs.count(), capacities.size()) << "one empty slab of each class is kept";
}

TEST_F(SlabsTest, BlocksOfOneSlabLieSideBySide) {
  auto const blocks = take(4, 1000);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_EQ(blocks[i].object(), blocks[0].object());
    EXPECT_EQ(blocks[i].offset(), i * block_capacity(1000));
  }
  EXPECT_EQ(ledger.taken, 1U);
  EXPECT_EQ(slabs.used(), 4 * block_capacity(1000));
  EXPECT_EQ(slabs.reserved(), ledger.bytes());
}

TEST_F(SlabsTest, TheFullestSlabServesFirst) {
  auto blocks = take(3 * 32, 1024);  // three slabs of 32
  ASSERT_EQ(slabs.count(), 3U);
  // The first keeps a few, the second nearly all, the third some.
  for (std::size_t i = 4; i < 32; ++i) give(blocks[i]);
  give(blocks[32 + 5]);
  give(blocks[32 + 9]);
  for (std::size_t i = 16; i < 32; ++i) give(blocks[64 + i]);
  EXPECT_EQ(take(1024).object(), blocks[32].object());
  EXPECT_EQ(take(1024).object(), blocks[32].object());
  EXPECT_EQ(take(1024).object(), blocks[64].object());
  EXPECT_EQ(ledger.taken, 3U);
}

TEST_F(SlabsTest, OneEmptySlabOfAClassIsKept) {
  auto const blocks = take(3 * 32, 1024);
  for (auto const block : blocks) give(block);
  EXPECT_EQ(slabs.count(), 1U);
  EXPECT_EQ(slabs.used(), 0U);
  EXPECT_EQ(ledger.bytes(), slabs.reserved());
  for (int round = 0; round < 100; ++round) give(take(1024));
  EXPECT_EQ(ledger.taken, 3U) << "a block that comes and goes does not take its slab along";
  EXPECT_EQ(slabs.trim(), 32 * KiB);
  slabs.validate();
  EXPECT_EQ(ledger.bytes(), 0U);
  EXPECT_EQ(slabs.trim(), 0U);
}

TEST_F(SlabsTest, ARefusalChangesNothing) {
  auto const first = take(32, 1024);
  ledger.fails = true;
  EXPECT_THROW(static_cast<void>(slabs.take(1024)), OutOfMemory);
  EXPECT_THROW(static_cast<void>(slabs.take(256)), OutOfMemory);
  slabs.validate();
  EXPECT_EQ(slabs.count(), 1U);
  give(first[7]);
  EXPECT_EQ(take(1024).number, 7U) << "what is there is served all the same";
}

TEST_F(SlabsTest, ALargerStretchHoldsMoreBlocks) {
  ledger.surplus = 3 * KiB + 5;
  auto const blocks = take(35, 1024);
  EXPECT_EQ(ledger.taken, 1U);
  EXPECT_EQ(blocks.back().object(), blocks.front().object());
}

TEST_F(SlabsTest, RemainingSlabsGoBackAtTheEnd) {
  static_cast<void>(take(100, 700));  // the ledger's destructor looks
}

/// Random takes and gives, against a model of who holds which bytes.
class SlabsModel : public ::testing::TestWithParam<unsigned> {};

TEST_P(SlabsModel, NobodyHoldsAnothersBytes) {
  SCOPED_TRACE(::testing::Message() << "seed " << GetParam());
  std::mt19937_64 random{GetParam()};
  Ledger ledger;
  Slabs slabs{ledger};
  std::map<std::uintptr_t, std::size_t> held;  // address to end
  std::vector<std::pair<SlabBlock, std::size_t>> blocks;
  std::uniform_real_distribution<double> logarithm(0.0, std::log(static_cast<double>(Slabs::largest_block)));
  std::size_t used = 0;
  for (int step = 0; step < 30'000; ++step) {
    // Tides, so that slabs run full and empty.
    bool const takes = random() % 100 < (step / 3000 % 2 == 0 ? 65U : 35U);
    if (takes || blocks.empty()) {
      ledger.fails = random() % 16 == 0;
      auto const bytes = static_cast<std::size_t>(std::exp(logarithm(random)));
      try {
        auto const block = slabs.take(bytes);
        auto const begin = block.object() + block.offset(), end = begin + block.bytes();
        ASSERT_LE(end, block.object() + ledger.stretches.at(block.object())) << "beyond its slab";
        auto const after = held.lower_bound(begin);
        ASSERT_TRUE(after == held.end() || after->first >= end) << "step " << step;
        ASSERT_TRUE(after == held.begin() || std::prev(after)->second <= begin) << "step " << step;
        held.emplace(begin, end);
        blocks.emplace_back(block, begin);
        used += block.bytes();
      } catch (OutOfMemory const&) {
        ASSERT_TRUE(ledger.fails);
      }
    } else {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      used -= blocks.back().first.bytes();
      held.erase(blocks.back().second);
      slabs.give(blocks.back().first);
      blocks.pop_back();
    }
    if (random() % 500 == 0) slabs.trim();
    if (step % 16 == 0) slabs.validate();
    ASSERT_EQ(slabs.used(), used);
    ASSERT_EQ(slabs.count(), ledger.stretches.size());
  }
  ASSERT_EQ(slabs.reserved(), ledger.bytes());
  for (auto const& [block, begin] : blocks) slabs.give(block);
  slabs.validate();
  slabs.trim();
  EXPECT_EQ(ledger.bytes(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Seeds, SlabsModel, ::testing::Values(1U, 2U, 3U, 2026U));

TEST(SlabsTightness, SmallBlocksOfMixedSizesWasteLittle) {
  Ledger ledger;
  Slabs slabs{ledger};
  std::mt19937_64 random{5};
  std::uniform_real_distribution<double> logarithm(std::log(256.0),
                                                   std::log(static_cast<double>(Slabs::largest_block)));
  std::vector<std::pair<SlabBlock, std::size_t>> live;
  std::size_t bytes = 0, peak = 0, peak_reserved = 0;
  for (int step = 0; step < 100'000; ++step) {
    auto const size = static_cast<std::size_t>(std::exp(logarithm(random)));
    while (bytes + size > 256 * KiB * KiB / 4) {
      std::swap(live[random() % live.size()], live.back());
      bytes -= live.back().second;
      slabs.give(live.back().first);
      live.pop_back();
    }
    live.emplace_back(slabs.take(size), size);
    bytes += size;
    peak = std::max(peak, bytes);
    peak_reserved = std::max(peak_reserved, slabs.reserved());
  }
  EXPECT_LT(static_cast<double>(peak_reserved), 1.15 * static_cast<double>(peak));
  for (auto const& [block, size] : live) slabs.give(block);
}

}  // namespace
}  // namespace unimem
