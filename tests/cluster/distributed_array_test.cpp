#include "cluster/counted_calls.hpp"
#include "cluster/ranks.hpp"

#include <unimem/core/error.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

// An array over all ranks: what a rank reads of others is as of the last fence, and only what has changed is brought.

namespace unimem::testing {
namespace {

using mpi::IndexRange;
using ::testing::Each;
using ::testing::ElementsAre;

class DistributedArrays : public RanksTest {
 protected:
  mpi::DistributedArrayOptions with_halo(std::size_t halo) {
    return {.halo = halo, .manager = &manager, .device = &sim};
  }

  template <class T>
  static void write_own(mpi::DistributedArray<T>& array, T first) {
    auto local = array.local();
    auto const elements = local.host_overwrite();
    for (std::size_t i = 0; i < elements.size(); ++i)
      elements[i] = static_cast<T>(first + static_cast<T>(array.own().begin + i));
  }
  template <class T>
  static std::vector<T> seen(mpi::DistributedArray<T>& array, IndexRange range) {
    return array.read(range).to_vector();
  }
  static Kernel add() {
    return Kernel("add").host([](WorkItem i, std::span<double> x, double y) { x[i.x] += y; });
  }
};

TEST_F(DistributedArrays, EveryElementHasOneOwner) {
  for (std::size_t const count : {std::size_t{0}, std::size_t{1}, std::size_t{3}, std::size_t{1001}}) {
    mpi::DistributedArray<float> const array(count, MPI_COMM_WORLD, with_halo(2));
    std::size_t next = 0;
    for (int other = 0; other < ranks(); ++other) {
      EXPECT_EQ(array.own(other).begin, next);
      next = array.own(other).end;
      EXPECT_LE(array.own(other).size(), count / static_cast<std::size_t>(ranks()) + 1);
    }
    EXPECT_EQ(next, count);
    EXPECT_EQ(array.size(), count);
  }
}

TEST_F(DistributedArrays, AllIsZeroAtFirst) {
  mpi::DistributedArray<std::int32_t> array(100, MPI_COMM_WORLD, with_halo(100));
  EXPECT_EQ(array.reach(), (IndexRange{0, 100}));
  reset_counted_calls();
  EXPECT_THAT(seen(array, {0, 100}), Each(0));
  EXPECT_EQ(counted_calls().gets, 0U);
}

TEST_F(DistributedArrays, AHaloHoldsWhatItsOwnersHadAtTheFence) {
  constexpr std::size_t count = 1000;
  for (std::size_t const halo : {std::size_t{1}, std::size_t{7}, std::size_t{300}, count}) {
    mpi::DistributedArray<double> array(count, MPI_COMM_WORLD, with_halo(halo));
    write_own(array, 5.0);
    array.fence();
    write_own(array, -1000.0);  // the others see it after the next fence
    MPI_Barrier(MPI_COMM_WORLD);
    auto const values = seen(array, array.reach());
    for (std::size_t i = 0; i < values.size(); ++i) {
      auto const index = array.reach().begin + i;
      bool const is_mine = array.own().contains({index, index + 1});
      ASSERT_EQ(values[i], (is_mine ? -1000.0 : 5.0) + static_cast<double>(index)) << index;
    }
    array.fence();
    auto const later = seen(array, array.reach());
    for (std::size_t i = 0; i < later.size(); ++i)
      ASSERT_EQ(later[i], -1000.0 + static_cast<double>(array.reach().begin + i));
  }
}

TEST_F(DistributedArrays, WhatIsCurrentIsReadWithoutMpi) {
  mpi::DistributedArray<double> array(1000, MPI_COMM_WORLD, with_halo(10));
  write_own(array, 1.0);
  array.fence();
  reset_counted_calls();
  static_cast<void>(array.read(array.reach()));
  auto const brought = (array.reach().size() - array.own().size()) * sizeof(double);
  std::size_t const sides = (rank() > 0 ? 1U : 0U) + (rank() + 1 < ranks() ? 1U : 0U);
  EXPECT_EQ(counted_calls().gets, sides);
  EXPECT_EQ(counted_calls().got_bytes, brought);
  EXPECT_EQ(array.statistics().read_bytes, brought);
  for (int i = 0; i < 100; ++i) static_cast<void>(array.read(array.reach()));
  EXPECT_EQ(counted_calls().gets, sides);
  EXPECT_EQ(counted_calls().sends, 0U);
  MPI_Barrier(MPI_COMM_WORLD);
  array.fence();  // nothing has changed
  static_cast<void>(array.read(array.reach()));
  EXPECT_EQ(counted_calls().gets, sides);
}

TEST_F(DistributedArrays, AHundredEditsMoveAHundredSmallRanges) {
  if (ranks() == 1) GTEST_SKIP() << "there is no halo";
  constexpr std::size_t halo = std::size_t{1} << 20;
  auto options = with_halo(halo);
  options.message_bytes = 1024;
  mpi::DistributedArray<std::uint8_t> array(halo * static_cast<std::size_t>(ranks()), MPI_COMM_WORLD,
                                            std::move(options));
  auto local = array.local();
  for (std::size_t i = 0; i < 100; ++i) local.at(i * 10'000 + 17) = static_cast<std::uint8_t>(i + 1);
  auto const before = array.statistics();
  array.fence();
  auto const noticed = array.statistics();
  EXPECT_LE(noticed.notice_bytes - before.notice_bytes, (noticed.notices - before.notices) / 2 * 400);
  reset_counted_calls();
  static_cast<void>(array.read(array.reach()));
  auto const neighbours = static_cast<std::size_t>(rank() > 0) + static_cast<std::size_t>(rank() + 1 < ranks());
  EXPECT_EQ(counted_calls().gets, 100 * neighbours);
  EXPECT_EQ(counted_calls().got_bytes, 100 * neighbours);
  for (auto const index : {array.reach().begin, array.reach().end - halo}) {
    auto const values = seen(array, {index, index + halo});
    EXPECT_EQ(values[17], 1);
    EXPECT_EQ(values[990'017], 100);
    EXPECT_EQ(std::ranges::count(values, 0), static_cast<std::ptrdiff_t>(halo - 100));
  }
}

TEST_F(DistributedArrays, EditsCloserThanAMessageIsWorthComeAsOne) {
  if (ranks() == 1) GTEST_SKIP() << "there is no halo";
  constexpr std::size_t halo = 100'000;
  auto options = with_halo(halo);
  options.message_bytes = 1024;
  mpi::DistributedArray<std::uint8_t> array(halo * static_cast<std::size_t>(ranks()), MPI_COMM_WORLD,
                                            std::move(options));
  auto local = array.local();
  for (std::size_t i = 0; i < 100; ++i) local.at(i * 100) = 1;
  local.at(50'000) = 1;
  array.fence();
  reset_counted_calls();
  static_cast<void>(array.read(array.reach()));
  auto const neighbours = static_cast<std::size_t>(rank() > 0) + static_cast<std::size_t>(rank() + 1 < ranks());
  EXPECT_EQ(counted_calls().gets, 2 * neighbours);
  EXPECT_EQ(counted_calls().got_bytes, (99 * 100 + 1 + 1) * neighbours);
}

TEST_F(DistributedArrays, OnlyWhatIsReadIsBrought) {
  if (ranks() == 1) GTEST_SKIP() << "there is no halo";
  mpi::DistributedArray<std::int32_t> array(1000, MPI_COMM_WORLD, with_halo(50));
  write_own(array, 1);
  array.fence();
  bool const looks_back = rank() > 0;
  auto const first = looks_back ? array.own().begin - 20 : array.own().end;
  reset_counted_calls();
  auto const part = seen(array, {first, first + 10});
  for (std::size_t i = 0; i < part.size(); ++i) EXPECT_EQ(part[i], static_cast<std::int32_t>(1 + first + i));
  EXPECT_EQ(counted_calls().gets, 1U);
  EXPECT_EQ(counted_calls().got_bytes, 40U);
  static_cast<void>(array.read({first, first + 15}));
  EXPECT_EQ(counted_calls().got_bytes, 60U);
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST_F(DistributedArrays, DevicesTakeAndGiveOnlyTheEdges) {
  constexpr std::size_t count = 4000;
  constexpr std::size_t halo = 3;
  mpi::DistributedArray<double> array(count, MPI_COMM_WORLD, with_halo(halo));
  static_cast<void>(array.read(array.reach()).device_view(sim));
  auto const uploaded = array.buffer_statistics().host_to_device_bytes;
  EXPECT_EQ(uploaded, array.reach().size() * sizeof(double));
  auto const sides = static_cast<std::size_t>(rank() > 0) + static_cast<std::size_t>(rank() + 1 < ranks());
  for (int step = 1; step <= 3; ++step) {
    launch(sim.default_queue(), add(), Range{array.own().size()}, readwrite(array.local()), 1.0 + rank());
    array.fence();
    static_cast<void>(array.read(array.reach()).device_view(sim));
    auto const moved = array.buffer_statistics();
    EXPECT_EQ(moved.device_to_host_bytes, static_cast<std::size_t>(step) * sides * halo * sizeof(double))
        << "the edges";
    EXPECT_EQ(moved.host_to_device_bytes - uploaded, static_cast<std::size_t>(step) * sides * halo * sizeof(double))
        << "the halo";
  }
  auto const values = seen(array, array.reach());
  EXPECT_EQ(values.front(), 3.0 * (rank() > 0 ? rank() : 1));
  EXPECT_EQ(values.back(), 3.0 * (rank() + 1 < ranks() ? rank() + 2 : ranks()));
  EXPECT_EQ(values[halo], 3.0 * (rank() + 1));
}

TEST_F(DistributedArrays, RandomEditsAndReadsAgreeWithAPlainArray) {
  constexpr std::size_t count = 777;
  constexpr unsigned seed = 2026;
  std::mt19937 random(seed);  // the same numbers in every rank
  RecordProperty("seed", static_cast<int>(seed));
  for (std::size_t const halo : {std::size_t{5}, std::size_t{200}, std::size_t{777}}) {
    auto options = with_halo(halo);
    options.message_bytes = halo / 4;
    mpi::DistributedArray<std::int16_t> array(count, MPI_COMM_WORLD, std::move(options));
    std::vector<std::int16_t> fenced(count, 0);
    std::vector<std::int16_t> now(count, 0);
    for (int step = 0; step < 200; ++step) {
      auto const what = random() % 10;
      auto const begin = static_cast<std::size_t>(random() % count);
      auto const end = std::min(count, begin + random() % 30);
      auto const value = static_cast<std::int16_t>(random() % 4);
      bool const on_device = random() % 3 == 0;
      if (what < 5) {
        std::fill(now.begin() + static_cast<std::ptrdiff_t>(begin), now.begin() + static_cast<std::ptrdiff_t>(end),
                  value);
        auto const mine = array.own().common({begin, end});
        if (mine.empty()) continue;
        auto part = array.local().slice(mine.begin - array.own().begin, mine.size());
        auto const set = Kernel("set").host([](WorkItem i, std::span<std::int16_t> x, std::int16_t v) { x[i.x] = v; });
        launch(on_device ? sim.default_queue() : device("cpu").default_queue(), set, Range{mine.size()}, write(part),
               value);
      } else if (what < 7) {
        array.fence();
        fenced = now;
      } else {
        auto const range = array.reach().common({begin, end});
        if (range.empty()) continue;
        auto const values = seen(array, range);
        for (std::size_t i = 0; i < values.size(); ++i) {
          auto const index = range.begin + i;
          bool const is_mine = array.own().contains({index, index + 1});
          ASSERT_EQ(values[i], is_mine ? now[index] : fenced[index])
              << "seed " << seed << " halo " << halo << " step " << step;
        }
      }
    }
  }
}

TEST_F(DistributedArrays, ReductionsAreOverAllRanks) {
  constexpr std::size_t count = 1001;
  mpi::DistributedArray<std::int16_t> numbers(count, MPI_COMM_WORLD, with_halo(0));
  write_own(numbers, std::int16_t{-500});
  EXPECT_EQ(numbers.sum(), 0);
  EXPECT_EQ(numbers.min(), -500);
  EXPECT_EQ(numbers.max(), 500);
  mpi::DistributedArray<float> values(2, MPI_COMM_WORLD, with_halo(0));
  write_own(values, 3.5F);
  EXPECT_EQ(values.sum(), 8.0);
  EXPECT_EQ(values.min(), 3.5F) << "ranks without elements do not count";
  EXPECT_EQ(values.max(), 4.5F);
  mpi::DistributedArray<std::uint64_t> none(0, MPI_COMM_WORLD, with_halo(0));
  EXPECT_EQ(none.sum(), 0U);
  EXPECT_THROW(static_cast<void>(none.min()), InvalidArgument);
}

TEST_F(DistributedArrays, InfinitiesAndNanAreFoundWhereverTheyAre) {
  constexpr auto infinity = std::numeric_limits<float>::infinity();
  mpi::DistributedArray<float> one(1, MPI_COMM_WORLD, with_halo(0));
  for (auto const value : {infinity, -infinity}) {
    auto mine = one.local();
    std::ranges::fill(mine.host(), value);
    EXPECT_EQ(one.min(), value);
    EXPECT_EQ(one.max(), value);
  }
  for (std::size_t nan = 0; nan < 4; ++nan) {
    SCOPED_TRACE(nan);
    mpi::DistributedArray<double> four(4, MPI_COMM_WORLD, with_halo(0));
    auto const own = four.own();
    auto mine = four.local();
    for (auto i = own.begin; i < own.end; ++i) {
      mine.host()[i - own.begin] = i == nan ? std::numeric_limits<double>::quiet_NaN() : static_cast<double>(i);
    }
    EXPECT_TRUE(std::isnan(four.min()));
    EXPECT_TRUE(std::isnan(four.max()));
  }
}

TEST_F(DistributedArrays, BadRangesAndCountsAreRefused) {
  mpi::DistributedArray<double> array(1000, MPI_COMM_WORLD, with_halo(1));
  EXPECT_THROW(static_cast<void>(array.read({0, 1001})), InvalidArgument);
  EXPECT_THROW(static_cast<void>(array.read({5, 4})), InvalidArgument);
  if (array.reach().begin > 0) {
    EXPECT_THROW(static_cast<void>(array.read({array.reach().begin - 1, array.own().end})), InvalidArgument);
  }
  EXPECT_THROW(mpi::DistributedArray<double>(std::numeric_limits<std::size_t>::max() / 4), InvalidArgument);
  EXPECT_THROW(mpi::DistributedArray<double>(10, MPI_COMM_NULL), InvalidArgument);
  if (ranks() > 1) {
    EXPECT_THROW(mpi::DistributedArray<double>(static_cast<std::size_t>(10 + rank())), InvalidArgument);
    EXPECT_THROW(mpi::DistributedArray<double>(10, MPI_COMM_WORLD, with_halo(static_cast<std::size_t>(rank()))),
                 InvalidArgument);
  }
}

TEST_F(DistributedArrays, SeveralArraysAndCommunicatorsKeepApart) {
  MPI_Comm half = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank() % 2, rank(), &half);
  {
    mpi::DistributedArray<std::int32_t> all(100, MPI_COMM_WORLD, with_halo(100));
    mpi::DistributedArray<std::int32_t> some(100, half, with_halo(100));
    write_own(all, 1);
    write_own(some, 1000 * (rank() % 2 + 1));
    some.fence();
    all.fence();
    EXPECT_EQ(seen(some, {0, 100}), counting<std::int32_t>(1000 * (rank() % 2 + 1), 100));
    EXPECT_EQ(seen(all, {0, 100}), counting<std::int32_t>(1, 100));
    auto moved = std::move(all);
    EXPECT_EQ(seen(moved, {0, 100}), counting<std::int32_t>(1, 100));
  }
  MPI_Comm_free(&half);
}

using ChangeLists = RanksTest;

TEST_F(ChangeLists, WhatWasEncodedIsDecoded) {
  std::vector<ByteRange> const ranges{{0, 4}, {8, 12}, {4000, 4'000'000}, {4'000'004, 4'000'008}};
  auto const message = mpi::detail::encode(ranges, 4);
  EXPECT_LE(message.size(), 13U);
  EXPECT_EQ(mpi::detail::decode(message, 4, 4'000'008), ranges);
  EXPECT_THAT(mpi::detail::decode({}, 4, 0), ElementsAre());
}

TEST_F(ChangeLists, WhatIsCutOrBeyondTheArrayIsRefused) {
  std::vector<ByteRange> const ranges{{8, 1200}};
  auto message = mpi::detail::encode(ranges, 4);
  EXPECT_THROW(static_cast<void>(mpi::detail::decode(message, 4, 1196)), DeviceError);
  message.pop_back();
  EXPECT_THROW(static_cast<void>(mpi::detail::decode(message, 4, 1200)), DeviceError);
  std::vector<std::byte> const endless(20, std::byte{0xFF});
  EXPECT_THROW(static_cast<void>(mpi::detail::decode(endless, 4, 1200)), DeviceError);
}

TEST_F(ChangeLists, EveryElementThatDiffersIsFound) {
  std::mt19937 random(7);
  for (std::size_t const bytes : {std::size_t{1}, std::size_t{4}, std::size_t{24}}) {
    std::size_t const count = 5000;
    std::vector<std::byte> before(count * bytes);
    auto now = before;
    ByteRanges expected;
    for (int i = 0; i < 200; ++i) {
      auto const element = random() % count;
      now[element * bytes + random() % bytes] = std::byte{1};
      expected.add({100 + element * bytes, 100 + (element + 1) * bytes});
    }
    ByteRanges found;
    mpi::detail::find_changes(now.data(), before.data(), now.size(), bytes, 100, found);
    EXPECT_EQ(found, expected);
  }
}

}  // namespace
}  // namespace unimem::testing
