#include "cluster/counted_calls.hpp"
#include "cluster/ranks.hpp"

#include <unimem/core/error.hpp>

// When a call of MPI fails (a rank has died, a network is gone), the caller gets MPI's own words, and this rank's bytes
// are as they were.

namespace unimem::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

class MpiFailures : public RanksTest {
 protected:
  static constexpr auto words = "rank 7 has died";
  static int code() {
    static int const own = [] {
      int code = 0;
      MPI_Add_error_code(MPI_ERR_OTHER, &code);
      MPI_Add_error_string(code, words);
      return code;
    }();
    return own;
  }
  template <class Call>
  static void expect_failure(char const* called, Call const& call) {
    try {
      call();
      FAIL() << "nothing failed";
    } catch (DeviceError const& error) {
      EXPECT_EQ(error.backend, "mpi");
      EXPECT_EQ(error.call, called);
      EXPECT_EQ(error.code, code());
      EXPECT_THAT(error.what(), HasSubstr(words));
    }
  }
  static int next() { return (rank() + 1) % ranks(); }
  static int previous() { return (rank() + ranks() - 1) % ranks(); }
};

TEST_F(MpiFailures, AFailedSendOrProbeChangesNothing) {
  auto x = holding(numbers_of(rank(), 100));
  fail_next(MpiCall::send, code());
  expect_failure("MPI_Send", [&] { mpi::send(read(x), next(), tag); });
  fail_next(MpiCall::probe, code());
  expect_failure("MPI_Mprobe", [&] { mpi::receive(write(x), previous(), tag); });
  EXPECT_EQ(x.to_vector(), numbers_of(rank(), 100));
}

TEST_F(MpiFailures, FailuresBehindTheCallersBackAreTheEvents) {
  auto x = holding(numbers_of(rank(), 100));
  fail_next(MpiCall::send, code());
  expect_failure("MPI_Isend", [&] { mpi::isend(read(x), next(), tag).wait(); });
  fail_next(MpiCall::probe, code());
  auto const received = mpi::ireceive(write(x), previous(), tag);
  expect_failure("MPI_Improbe", [&] { received.wait(); });
  EXPECT_TRUE(received.never_began());
  EXPECT_THROW(static_cast<void>(x.to_vector()), DeviceError) << "told once more, as of any failed work";
  EXPECT_EQ(x.to_vector(), numbers_of(rank(), 100));
}

TEST_F(MpiFailures, WhatWasBeingReceivedIsLostAndNothingElse) {
  auto x = holding(numbers_of(rank(), 100));
  auto y = holding(std::vector<std::uint32_t>(200, 42));
  fail_next(MpiCall::receive, code());
  auto const received = mpi::ireceive(write(y, 0, 100), previous(), tag);
  auto const sent = mpi::isend(read(x), next(), tag);
  expect_failure("MPI_Imrecv", [&] { received.wait(); });
  sent.wait();
  EXPECT_THROW(static_cast<void>(y.to_vector()), DeviceError) << "told once more, as of any failed work";
  EXPECT_THROW(static_cast<void>(y.to_vector()), DataLost);
  EXPECT_THAT(y.slice(100, 100).to_vector(), Each(42U));
  y.slice(0, 100).fill(1);
  EXPECT_THAT(y.slice(0, 100).to_vector(), Each(1U));
}

TEST_F(MpiFailures, CollectiveCallsChangeNothing) {
  auto x = holding(numbers_of(rank(), 100));
  fail_next(MpiCall::reduce, code());
  expect_failure("MPI_Allreduce", [&] { mpi::broadcast(readwrite(x), 0); });
  fail_next(MpiCall::reduce, code());
  expect_failure("MPI_Allreduce", [&] { mpi::all_reduce(readwrite(x), mpi::Reduction::sum); });
  EXPECT_EQ(x.to_vector(), numbers_of(rank(), 100));
}

TEST_F(MpiFailures, AReadThatFailedIsMadeAgain) {
  if (ranks() == 1) GTEST_SKIP() << "there is no halo";
  mpi::DistributedArray<std::uint32_t> array(100, MPI_COMM_WORLD, {.halo = 100, .manager = &manager, .device = &sim});
  auto local = array.local();
  local.fill(static_cast<std::uint32_t>(rank()) + 1);
  array.fence();
  fail_next(MpiCall::get, code());
  expect_failure("MPI_Get", [&] { static_cast<void>(array.read(array.reach())); });
  EXPECT_THAT(array.local().to_vector(), Each(static_cast<std::uint32_t>(rank()) + 1));
  auto const values = array.read(array.reach()).to_vector();
  for (int other = 0; other < ranks(); ++other) {
    for (auto i = array.own(other).begin; i < array.own(other).end; ++i)
      ASSERT_EQ(values[i], static_cast<std::uint32_t>(other) + 1);
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

}  // namespace
}  // namespace unimem::testing
