#include "cluster/ranks.hpp"

#include <unimem/core/error.hpp>

// With MPI_THREAD_FUNNELED what blocks works on the thread that may call MPI, and what another thread would have to
// carry on is refused.

namespace unimem::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using ThreadLevels = RanksTest;

TEST_F(ThreadLevels, OneThreadSendsAndReceives) {
  int level = MPI_THREAD_MULTIPLE;
  MPI_Query_thread(&level);
  ASSERT_LT(level, MPI_THREAD_MULTIPLE);
  if (!has_partner()) GTEST_SKIP() << "there is no rank to talk to";
  if (is_first()) {
    auto x = holding_on_device<std::uint32_t>(1, 100'000);
    mpi::send(read(x), partner(), 1, MPI_COMM_WORLD, {.piece_bytes = 4096});
  } else {
    UnifiedBuffer<std::uint32_t> y(100'000, on_sim());
    mpi::receive(write(y), partner(), 1);
    EXPECT_EQ(y.to_vector(), counting<std::uint32_t>(1, 100'000));
  }
}

TEST_F(ThreadLevels, OtherThreadsAreRefusedWithTheLevel) {
  auto x = holding(numbers_of(rank(), 10));
  auto const refused = ThrowsMessage<UnsupportedOperation>(HasSubstr("MPI_THREAD_MULTIPLE"));
  EXPECT_THAT([&] { mpi::isend(read(x), 0, 1); }, refused);
  EXPECT_THAT([&] { mpi::ireceive(write(x), 0, 1); }, refused);
  EXPECT_EQ(x.to_vector(), numbers_of(rank(), 10));
}

}  // namespace
}  // namespace unimem::testing
