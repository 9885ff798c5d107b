#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/kernel/launch.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace unimem {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

/// The source form, on the first OpenCL device. Its counts are those of a discrete device.
class SourceKernels : public ::testing::Test {
 protected:
  [[nodiscard]] BufferOptions here() {
    BufferOptions options;
    options.manager = &manager;
    options.device = &on;
    return options;
  }

  Device& on = device("opencl:0");
  MemoryManager manager;
  Kernel scale = Kernel("scale").source(R"(
    UNIMEM_KERNEL scale(UNIMEM_BUFFER(float, x), float a) { UNIMEM_DATA(float, x)[UNIMEM_ITEM_X] *= a; })");
};

TEST_F(SourceKernels, TheSourceFormRunsAndOnlyWhatIsNeededMoves) {
  UnifiedBuffer<float> x(1000, here());
  x.fill(3.0F);
  for (int i = 0; i < 3; ++i) launch(scale, Range{1000}, readwrite(x), 2.0F);
  EXPECT_THAT(x.host_view(), Each(24.0F));
  EXPECT_EQ(x.statistics().host_to_device_bytes, 4000U);
  EXPECT_EQ(x.statistics().host_to_device_copies, 1U);
  EXPECT_EQ(x.statistics().device_to_host_bytes, 4000U);
}

TEST_F(SourceKernels, PartsArriveAsObjectAndOffset) {
  UnifiedBuffer<float> x(100, here());
  x.fill(1.0F);
  launch(scale, Range{7}, readwrite(x, 13, 7), 5.0F);
  std::vector<float> expected(100, 1.0F);
  std::fill_n(expected.begin() + 13, 7, 5.0F);
  EXPECT_EQ(x.to_vector(), expected);
  EXPECT_EQ(x.statistics().host_to_device_bytes, 28U);
}

TEST_F(SourceKernels, APlainKernelOfTheLanguageRunsToo) {
  auto const plain = Kernel("twice").source(R"(
    __kernel void twice(__global const float* in, __global float* out, ulong count) {
      size_t i = get_global_id(0);
      if (i < count) out[i] = 2 * in[i];
    })");
  UnifiedBuffer<float> in(100, here()), out(100, here());
  std::iota(in.host().begin(), in.host().end(), 0.0F);
  launch(plain, Range{100}, read(in), write(out), std::uint64_t{100});
  for (std::size_t i = 0; i < 100; ++i) ASSERT_EQ(out.host_view()[i], 2 * static_cast<float>(i));
}

TEST_F(SourceKernels, ABuildErrorCarriesTheCompilersLogAndChangesNothing) {
  UnifiedBuffer<float> x(10, here());
  x.fill(1.0F);
  try {
    launch(Kernel("bad").source("UNIMEM_KERNEL bad(UNIMEM_BUFFER(float, x)) { undeclared_thing = 1; }"), Range{10},
           readwrite(x));
    FAIL() << "it built";
  } catch (KernelError const& error) {
    EXPECT_EQ(error.name, "bad");
    EXPECT_THAT(error.build_log, HasSubstr("undeclared_thing"));
  }
  EXPECT_EQ(x.state(), BufferState::host_dirty);
  EXPECT_EQ(x.statistics().host_to_device_bytes, 0U);
}

TEST_F(SourceKernels, AMissingEntryAndAMissingFormSayWhatIsMissing) {
  UnifiedBuffer<float> x(10, here());
  x.fill(1.0F);
  try {
    launch(Kernel("absent").source("UNIMEM_KERNEL present(UNIMEM_BUFFER(float, x)) {}"), Range{10}, readwrite(x));
    FAIL() << "it ran";
  } catch (KernelError const& error) {
    EXPECT_THAT(error.what(), HasSubstr("present"));
  }
  try {
    launch(Kernel("host_only").host([](WorkItem, std::span<float>) {}), Range{10}, readwrite(x));
    FAIL() << "it ran";
  } catch (KernelError const& error) {
    EXPECT_THAT(error.reason, HasSubstr("source form"));
  }
  EXPECT_THROW(launch(scale, Range{10}, readwrite(x)), KernelError) << "an argument is missing";
  EXPECT_THAT(x.to_vector(), Each(1.0F));
}

}  // namespace
}  // namespace unimem
