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

}  // namespace
}  // namespace unimem
