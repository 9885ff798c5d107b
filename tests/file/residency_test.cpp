#include "file/residency.hpp"

#include "core/sizes.hpp"
#include "file/cold_file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

namespace unimem::testing {
namespace {

using detail::File;

class Residency : public ::testing::TestWithParam<decltype(&detail::resident_share)> {
 protected:
  static constexpr std::size_t file_bytes = 16 * MiB + 100;

  Residency() {
    auto pattern = (std::filesystem::path(::testing::TempDir()) / "unimem-resident-XXXXXX").string();
    auto const descriptor = ::mkostemp(pattern.data(), O_CLOEXEC);
    path = pattern;
    file = File{detail::UniqueFd{descriptor}, path};
    file.write(0, patterned(file_bytes), "testing it");
    make_cold(path);
    if (!GetParam()(file, 0, file_bytes)) unknown = true;
    make_cold(path);
  }
  ~Residency() override { std::filesystem::remove(path); }
  void SetUp() override {
    if (unknown) GTEST_SKIP() << "the system does not say";
  }

  std::string path;
  File file;
  bool unknown = false;
};

TEST_P(Residency, OfAColdFileIsNothing) {
  EXPECT_EQ(GetParam()(file, 0, file_bytes), 0.0);
}

TEST_P(Residency, DoesNotComeOfAsking) {
  for (int i = 0; i < 10; ++i) EXPECT_LT(GetParam()(file, 0, file_bytes).value_or(1), 0.5);
}

TEST_P(Residency, OfAWarmFileIsAll) {
  make_warm(path);
  EXPECT_EQ(GetParam()(file, 0, file_bytes), 1.0);
  EXPECT_EQ(GetParam()(file, 12'345, 1), 1.0);
  EXPECT_EQ(GetParam()(file, 0, 64 * KiB), 1.0);
}

TEST_P(Residency, OfHalfAWarmFileIsHalf) {
  static_cast<void>(::posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_RANDOM));  // no reading ahead
  std::vector<std::byte> half(file_bytes / 2);
  ASSERT_EQ(file.read(0, half, "testing it"), half.size());
  EXPECT_NEAR(GetParam()(file, 0, file_bytes).value_or(-1), 0.5, 0.1);
  EXPECT_EQ(GetParam()(file, 0, half.size() - 4'096), 1.0);
}

TEST_P(Residency, OfNothingIsNotKnown) {
  EXPECT_FALSE(GetParam()(file, 0, 0));
}

TEST(CountedResidency, HasNothingRead) {
  auto pattern = (std::filesystem::path(::testing::TempDir()) / "unimem-counted-XXXXXX").string();
  File const file{detail::UniqueFd{::mkostemp(pattern.data(), O_CLOEXEC)}, pattern};
  file.write(0, patterned(MiB), "testing it");
  make_cold(pattern);
  if (!detail::counted_share(file, 0, MiB)) GTEST_SKIP() << "the system does not say";
  auto const before = system_count_of("read_bytes");
  for (int i = 0; i < 10; ++i) EXPECT_EQ(detail::counted_share(file, 0, MiB), 0.0);
  EXPECT_LT(system_count_of("read_bytes") - before, MiB / 2) << "parts of the program itself may come";
  std::filesystem::remove(pattern);
}

INSTANTIATE_TEST_SUITE_P(ByCounting, Residency, ::testing::Values(&detail::counted_share));
INSTANTIATE_TEST_SUITE_P(ByProbing, Residency, ::testing::Values(&detail::probed_share));
INSTANTIATE_TEST_SUITE_P(ByEither, Residency, ::testing::Values(&detail::resident_share));

}  // namespace
}  // namespace unimem::testing
