#include "cluster/ranks.hpp"

#include <unimem/core/error.hpp>

#include <algorithm>
#include <complex>

// What all ranks do together: every one of them has the same bytes afterwards, or every one throws and has what it had.

namespace unimem::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class Collectives : public RanksTest {
 protected:
  static int last() { return ranks() - 1; }
  static bool is_last() { return rank() == last(); }
};

TEST_F(Collectives, ABroadcastGivesEveryRankTheRootsBytes) {
  for (std::size_t const count : {std::size_t{0}, std::size_t{1}, std::size_t{100'000}}) {
    auto x = holding(numbers_of(rank(), count));
    mpi::broadcast(readwrite(x), last());
    EXPECT_EQ(x.to_vector(), numbers_of(last(), count));
  }
}

TEST_F(Collectives, ABroadcastTakesPartsByTheirIntents) {
  auto x = holding(numbers_of<double>(rank(), 100));
  if (rank() == 0) {
    mpi::broadcast(read(x, 10, 5), 0);
  } else {
    mpi::broadcast(write(x, 20, 5), 0);
  }
  auto expected = numbers_of<double>(rank(), 100);
  auto const sent = numbers_of<double>(0, 100);
  if (rank() != 0) std::copy_n(sent.begin() + 10, 5, expected.begin() + 20);
  EXPECT_EQ(x.to_vector(), expected);
}

TEST_F(Collectives, ABroadcastMovesOnlyWhatIsElsewhere) {
  auto x = holding_on_device(static_cast<std::uint32_t>(rank() + 1), 1000);
  mpi::broadcast(readwrite(x), 0);
  EXPECT_EQ(x.statistics().device_to_host_bytes, rank() == 0 ? x.size_bytes() : 0U)
      << "what is overwritten is not brought";
  auto const seen = holding(std::vector<std::uint32_t>(1000, 0));
  launch(sim.default_queue(), Kernel("add").host([](WorkItem i, std::span<std::uint32_t> v) { v[i.x] += 1; }),
         Range{1000}, readwrite(x));
  EXPECT_EQ(x.to_vector(), counting<std::uint32_t>(2, 1000));
  EXPECT_EQ(x.statistics().host_to_device_bytes, rank() == 0 ? 0U : x.size_bytes());
}

TEST_F(Collectives, AllReduceGivesEveryRankTheSameNumbers) {
  auto const count = static_cast<std::size_t>(1000);
  auto const all = static_cast<std::int64_t>(ranks());
  auto x = holding(numbers_of<std::int64_t>(rank(), count));
  mpi::all_reduce(readwrite(x), mpi::Reduction::sum);
  std::vector<std::int64_t> sum(count);
  for (int other = 0; other < ranks(); ++other) {
    auto const its = numbers_of<std::int64_t>(other, count);
    for (std::size_t i = 0; i < count; ++i) sum[i] += its[i];
  }
  EXPECT_EQ(x.to_vector(), sum);
  auto y = holding(numbers_of<float>(rank(), count));
  mpi::all_reduce(readwrite(y), mpi::Reduction::minimum);
  EXPECT_EQ(y.to_vector(), numbers_of<float>(0, count));
  auto z = holding(numbers_of<std::uint16_t>(rank(), count));
  mpi::all_reduce(readwrite(z, 10, 20), mpi::Reduction::maximum);
  auto most = numbers_of<std::uint16_t>(rank(), count);
  for (std::size_t i = 10; i < 30; ++i) {
    for (int other = 0; other < ranks(); ++other)
      most[i] = std::max(most[i], numbers_of<std::uint16_t>(other, count)[i]);
  }
  EXPECT_EQ(z.to_vector(), most);
  auto p = holding(std::vector<std::int32_t>(3, 2));
  mpi::all_reduce(readwrite(p), mpi::Reduction::product);
  EXPECT_THAT(p.to_vector(), Each(1 << all));
}

TEST_F(Collectives, AllReduceWorksOnWhatADeviceHas) {
  auto x = holding_on_device(static_cast<double>(rank()), 100);
  mpi::all_reduce(readwrite(x), mpi::Reduction::maximum);
  EXPECT_EQ(x.to_vector(), counting(static_cast<double>(last()), 100));
  EXPECT_EQ(x.statistics().device_to_host_bytes, x.size_bytes());
}

TEST_F(Collectives, OtherSizesAreRefusedInEveryRank) {
  if (ranks() == 1) GTEST_SKIP() << "one rank agrees with itself";
  std::size_t const count = is_last() ? 11 : 10;
  auto x = holding(numbers_of(rank(), count));
  EXPECT_THROW(mpi::broadcast(readwrite(x), 0), SizeMismatch);
  EXPECT_THROW(mpi::all_reduce(readwrite(x), mpi::Reduction::sum), SizeMismatch);
  EXPECT_EQ(x.to_vector(), numbers_of(rank(), count));
}

TEST_F(Collectives, OtherTypesRootsAndReductionsAreRefusedInEveryRank) {
  if (ranks() == 1) GTEST_SKIP() << "one rank agrees with itself";
  auto x = holding(numbers_of<std::int32_t>(rank(), 10));
  auto y = holding(numbers_of<float>(rank(), 10));
  EXPECT_THAT([&] { is_last() ? mpi::broadcast(readwrite(x), 0) : mpi::broadcast(readwrite(y), 0); },
              ThrowsMessage<InvalidArgument>(HasSubstr("of one type in every rank")));
  auto doubles = holding(numbers_of<double>(rank(), 10));
  UnifiedBuffer<std::complex<float>> pairs(10, on_sim());
  pairs.fill({1, 2});
  EXPECT_THAT([&] { is_last() ? mpi::broadcast(readwrite(doubles), 0) : mpi::broadcast(readwrite(pairs), 0); },
              ThrowsMessage<InvalidArgument>(HasSubstr("of one type in every rank")))
      << "of one size";
  EXPECT_THAT([&] { mpi::broadcast(readwrite(x), is_last() ? 0 : last()); },
              ThrowsMessage<InvalidArgument>(HasSubstr("root")));
  EXPECT_THAT([&] { mpi::all_reduce(readwrite(x), is_last() ? mpi::Reduction::sum : mpi::Reduction::maximum); },
              ThrowsMessage<InvalidArgument>(HasSubstr("reduction")));
  EXPECT_EQ(x.to_vector(), numbers_of<std::int32_t>(rank(), 10));
  EXPECT_EQ(y.to_vector(), numbers_of<float>(rank(), 10));
}

TEST_F(Collectives, ARootThatIsNoneIsRefused) {
  auto x = holding(numbers_of(rank(), 10));
  EXPECT_THROW(mpi::broadcast(readwrite(x), MPI_PROC_NULL), InvalidArgument);
  EXPECT_EQ(x.to_vector(), numbers_of(rank(), 10));
}

TEST_F(Collectives, ARootWithoutRoomIsWaitedForByNobody) {
  MemoryManager tight;
  BufferOptions options;
  options.manager = &tight;
  options.device = &sim;
  UnifiedBuffer<std::uint32_t> x(10'000, options);
  launch(sim.default_queue(), Kernel("fill").host([](WorkItem i, std::span<std::uint32_t> v) { v[i.x] = 7; }),
         Range{10'000}, write(x));
  x.release_host();
  tight.set_limit(sim, Location::host, 4096);
  if (rank() == 0) {
    EXPECT_THROW(mpi::broadcast(readwrite(x), 0), OutOfMemory);
  } else {
    EXPECT_THROW(mpi::broadcast(readwrite(x), 0), InvalidArgument);
  }
  tight.set_limit(sim, Location::host, 1 << 20);
  EXPECT_THAT(x.to_vector(), Each(7U));
}

TEST_F(Collectives, WhatOneRankMayNotDoNoRankDoes) {
  struct Pair {
    std::int32_t a, b;
  };
  auto x = holding(numbers_of<std::int32_t>(rank(), 10));
  UnifiedBuffer<Pair> pairs(10, on_sim());
  EXPECT_THROW(mpi::all_reduce(readwrite(pairs), mpi::Reduction::sum), InvalidArgument);
  EXPECT_THROW(mpi::broadcast(readwrite(x), ranks()), InvalidArgument);
  EXPECT_THROW(
      is_last() ? mpi::all_reduce(read(x), mpi::Reduction::sum) : mpi::all_reduce(readwrite(x), mpi::Reduction::sum),
      InvalidArgument);
  EXPECT_THROW(mpi::broadcast(write(x), 0), InvalidArgument) << "in the root it is, and so in all";
  EXPECT_THROW(mpi::broadcast(readwrite(x), 0, MPI_COMM_NULL), InvalidArgument);
  EXPECT_EQ(x.to_vector(), numbers_of<std::int32_t>(rank(), 10));
}

}  // namespace
}  // namespace unimem::testing
