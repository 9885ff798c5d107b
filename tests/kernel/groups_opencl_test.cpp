#include "device/group_words.hpp"
#include "kernel/groups_conformance.hpp"

// Groups on the first OpenCL device there is, whichever driver that is of.

namespace unimem {
namespace {

INSTANTIATE_TEST_SUITE_P(OpenCl, Groups, ::testing::Values("opencl:0"));

class OpenClGroups : public ::testing::Test {
 protected:
  Device& on = device("opencl:0");
  UnifiedBuffer<float> x{64, BufferOptions{.device = &on}};
};

TEST_F(OpenClGroups, PlainKernelsRunInTheGroupsTheyAreGiven) {
  auto const kernel = Kernel("plain").source(R"(__kernel void plain(__global float* x) {
    __local float all[16];
    all[get_local_id(0)] = get_global_id(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    x[get_global_id(0)] = all[get_local_size(0) - 1 - get_local_id(0)];
  })");
  launch(kernel, Range{64}.group({16}), write(x));
  auto const result = x.to_vector();
  for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(result[i], static_cast<float>(i / 16 * 16 + 15 - i % 16));
}

TEST_F(OpenClGroups, PlainKernelsMayAskByThePortableNames) {
  auto const kernel = Kernel("plain").source(R"(__kernel void plain(__global float* x) {
    UNIMEM_SHARED float all[16];
    all[UNIMEM_LOCAL_X] = get_global_id(0);
    UNIMEM_BARRIER();
    x[get_global_id(0)] = all[15 - UNIMEM_LOCAL_X];
  })");
  try {
    launch(kernel, Range{64}, write(x)).wait();
    FAIL() << "it ran";
  } catch (KernelError const& error) {
    EXPECT_THAT(error.reason, ::testing::HasSubstr("uses UNIMEM_SHARED, and no size of its groups"));
  }
  launch(kernel, Range{64}.group({16}), write(x));
  auto const result = x.to_vector();
  for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(result[i], static_cast<float>(i / 16 * 16 + 15 - i % 16));
}

TEST_F(OpenClGroups, AGroupThatIsNotTheStatedOneIsRefused) {
  auto const kernel = Kernel("stated").source(R"(
    __kernel __attribute__((reqd_work_group_size(8, 1, 1))) void stated(UNIMEM_BUFFER(float, x)) {
      UNIMEM_DATA(float, x)[get_global_id(0)] = get_local_size(0);
    })");
  try {
    launch(kernel, Range{64}.group({16}), write(x)).wait();
    FAIL() << "it ran";
  } catch (KernelError const& error) {
    EXPECT_THAT(error.reason, ::testing::HasSubstr("states groups of 8 × 1 × 1, and 16 × 1 × 1"));
  }
  launch(kernel, Range{64}.group({8}), write(x));
  EXPECT_THAT(x.to_vector(), ::testing::Each(8.0F));
}

TEST_F(OpenClGroups, ARangeThatIsNotWholeStatedGroupsIsRefused) {
  for (std::string const parameters : {"UNIMEM_BUFFER(float, x)", "__global float* x"}) {
    auto const kernel = Kernel("stated").source("__kernel __attribute__((reqd_work_group_size(8, 2, 1))) void stated(" +
                                                parameters + ") {}");
    for (auto const range : {Range{64}, Range{63, 2}}) {
      x.fill(3);
      auto const before = x.statistics().host_to_device_copies;
      try {
        launch(kernel, range, readwrite(x)).wait();
        FAIL() << "it ran";
      } catch (KernelError const& error) {
        EXPECT_THAT(error.reason, ::testing::HasSubstr("states groups of 8 × 2 × 1, and a range of"));
      }
      EXPECT_EQ(x.statistics().host_to_device_copies, before);
    }
    launch(kernel, Range{16, 2}, readwrite(x)).wait();
  }
}

TEST_F(OpenClGroups, TheTreeForGpusMakesTheSameSums) {
  auto const kernel = Kernel("sums").source(std::string(detail::group_tree) + R"(
    UNIMEM_GROUP_REDUCTION(unimem_f32, tree_sum, unimem_a + unimem_b)
    __kernel void sums(UNIMEM_BUFFER(unimem_f32, x)) {
      UNIMEM_SHARED unimem_f32 scratch[32];
      UNIMEM_GLOBAL unimem_f32* own = UNIMEM_DATA(unimem_f32, x) + UNIMEM_ITEM_X;
      *own = tree_sum(*own, scratch);
    })");
  for (std::size_t const each : {1U, 7U, 16U, 21U, 32U}) {
    std::vector<float> values(2 * each);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::ldexp(1.3F, static_cast<int>(i * 7 % 20));
    UnifiedBuffer<float> some(values.size(), BufferOptions{.device = &on});
    some.copy_from(values);
    launch(kernel, Range{values.size()}.group({each}), readwrite(some));
    auto const result = some.to_vector();
    for (std::size_t i = 0; i < values.size(); ++i) {
      auto own = std::vector(values.begin() + static_cast<std::ptrdiff_t>(i / each * each),
                             values.begin() + static_cast<std::ptrdiff_t>((i / each + 1) * each));
      EXPECT_EQ(result[i], group_sum(std::span{own})) << "of " << each << ", to the last bit";
    }
  }
}

}  // namespace
}  // namespace unimem
