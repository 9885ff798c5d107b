#include <gtest/gtest.h>
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <string>

// Every rank runs every case. What fails in one ends all of them: the others would wait for it until the time is up.

namespace {

class FailureEndsAll : public testing::EmptyTestEventListener {
  void OnTestPartResult(testing::TestPartResult const& result) override {
    if (!result.failed()) return;
    std::fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  void OnTestEnd(testing::TestInfo const& /*test*/) override { MPI_Barrier(MPI_COMM_WORLD); }
};

}  // namespace

int main(int argc, char** argv) {
  int wanted = MPI_THREAD_MULTIPLE;
  if (auto const* const level = std::getenv("UNIMEM_TEST_THREAD_LEVEL")) {
    wanted = std::string(level) == "funneled" ? MPI_THREAD_FUNNELED : MPI_THREAD_SINGLE;
  }
  int provided = 0;
  MPI_Init_thread(&argc, &argv, wanted, &provided);
  testing::InitGoogleTest(&argc, argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  if (rank != 0) {
    testing::GTEST_FLAG(output) = "";
    if (std::getenv("UNIMEM_TEST_ALL_RANKS") == nullptr) testing::GTEST_FLAG(brief) = true;
  }
  listeners.Append(new FailureEndsAll);
  int const result = RUN_ALL_TESTS();
  MPI_Finalize();
  return result;
}
