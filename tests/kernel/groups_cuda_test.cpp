#include "device/standin_watch.hpp"
#include "kernel/groups_conformance.hpp"

// Groups under CUDA: on the stand-in, whose blocks run thread by thread from barrier to barrier.

namespace unimem {
namespace {

INSTANTIATE_TEST_SUITE_P(Cuda, Groups, ::testing::Values(std::string(first_gpu())));

TEST(CudaGroups, PlainKernelsRunInTheBlocksTheyAreGiven) {
  UnifiedBuffer<float> x{64, BufferOptions{.device = &device(first_gpu())}};
  auto const kernel = Kernel("plain").source(R"cu(extern "C" __global__ void plain(float* x) {
    __shared__ float all[16];
    all[threadIdx.x] = blockIdx.x * blockDim.x + threadIdx.x;
    __syncthreads();
    x[blockIdx.x * blockDim.x + threadIdx.x] = all[blockDim.x - 1 - threadIdx.x];
  })cu");
  launch(kernel, Range{64}.group({16}), write(x));
  auto const result = x.to_vector();
  for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(result[i], static_cast<float>(i / 16 * 16 + 15 - i % 16));
}

TEST(CudaGroups, PlainKernelsAskByThePortableNames) {
  UnifiedBuffer<float> x{96, BufferOptions{.device = &device(first_gpu())}};
  for (std::string const name : {"UNIMEM_RANGE_X", "UNIMEM_GROUPS_X * UNIMEM_GROUP_SIZE_X"}) {
    auto const kernel =
        Kernel("plain").source("extern \"C\" __global__ void plain(float* x) { x[UNIMEM_ITEM_X] = " + name + "; }");
    try {
      launch(kernel, Range{96}, write(x)).wait();
      FAIL() << "it ran";
    } catch (KernelError const& error) {
      EXPECT_THAT(error.reason, ::testing::HasSubstr("no size of its groups is given"));
    }
    launch(kernel, Range{96}.group({24}), write(x));
    EXPECT_THAT(x.to_vector(), ::testing::Each(96.0F));
  }
}

TEST(CudaGroups, MoreGroupsThanAGridHasAreRefusedBeforeAnythingMoves) {
  UnifiedBuffer<unsigned> x{4, BufferOptions{.device = &device(first_gpu())}};
  x.fill(0);
  auto const kernel = Kernel("count").source(R"cu(UNIMEM_KERNEL count(UNIMEM_BUFFER(unimem_u32, x)) {
    if (UNIMEM_LOCAL_X == 0) UNIMEM_ATOMIC_ADD_U32(UNIMEM_DATA(unimem_u32, x), 1);
  })cu");
  try {
    launch(kernel, Range{1, 70'000}.group({1, 1}), readwrite(x)).wait();
    FAIL() << "it ran";
  } catch (KernelError const& error) {
    EXPECT_THAT(error.reason, ::testing::HasSubstr("1 × 70000 × 1 items is larger than a grid"));
  }
  EXPECT_EQ(x.statistics().host_to_device_copies, 0U);
}

}  // namespace
}  // namespace unimem
