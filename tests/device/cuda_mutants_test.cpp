#include "mutants.hpp"

#include <unimem/device/discovery.hpp>

#include "device/cuda_drills.hpp"
#include "device/cuda_fixture.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

// Bugs planted in the CUDA backend: each has to be noticed on the stand-in driver, by wrong bytes, by what the driver
// counts or by what it notes that a real one would have suffered from.

namespace unimem::detail::cuda {

Mutant active_mutant = Mutant::none;

}  // namespace unimem::detail::cuda

namespace unimem {
namespace {

using detail::cuda::Mutant;

class CudaMutants : public ::testing::TestWithParam<detail::cuda::MutantText> {
 protected:
  void TearDown() override { detail::cuda::active_mutant = Mutant::none; }
};

TEST(CudaDrills, WithoutAFaultNothingIsFound) {
  EXPECT_THAT(findings(), ::testing::IsEmpty());
}

TEST(CudaDrills, ALossIsNoticed) {
  standin_control().reset();
  EXPECT_EQ(notices_loss(device("cuda:1,memory=99MiB")), "");
}

TEST(CudaDrills, PinningOutlivesALoss) {
  standin_control().reset();
  EXPECT_EQ(pins_after_a_loss(device("cuda:0"), device("cuda:1")), "");
}

TEST_P(CudaMutants, IsFound) {
  detail::cuda::active_mutant = GetParam().mutant;
  std::vector<std::string> found;
  if (GetParam().mutant == Mutant::loss_overlooked) {
    standin_control().reset();
    found.push_back(notices_loss(device("cuda:1,memory=99MiB")));
  } else if (GetParam().mutant == Mutant::pinned_by_the_lost) {
    standin_control().reset();
    found.push_back(pins_after_a_loss(device("cuda:0"), device("cuda:1")));
  } else {
    found = findings();
  }
  ASSERT_THAT(found, ::testing::Not(::testing::IsEmpty())) << GetParam().fault;
  EXPECT_NE(found.front(), "") << GetParam().fault;
  RecordProperty("found", found.front());
}

INSTANTIATE_TEST_SUITE_P(Planted, CudaMutants, ::testing::ValuesIn(detail::cuda::all_mutants),
                         [](auto const& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace unimem
