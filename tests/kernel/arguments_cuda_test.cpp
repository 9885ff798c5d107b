#include "device/standin_watch.hpp"
#include "kernel/argument_conformance.hpp"

// What source kernels take under CUDA.

namespace unimem {
namespace {

INSTANTIATE_TEST_SUITE_P(Cuda, SourceArguments,
                         ::testing::Values(ArgumentCase{"cuda", first_gpu(), "extern \"C\" __global__ void", ""}),
                         argument_case_name);

TEST(CudaArguments, PortableKernelsMayNotUseBlocks) {
  UnifiedBuffer<float> x{64, BufferOptions{.device = &device(first_gpu())}};
  x.fill(0);
  auto const kernel = Kernel("entry").source(R"cu(UNIMEM_KERNEL entry(UNIMEM_BUFFER(float, x)) {
    __shared__ float tile[64];
    tile[threadIdx.x] = 1;
    __syncthreads();
    UNIMEM_DATA(float, x)[UNIMEM_ITEM_X] = tile[63 - threadIdx.x]; })cu");
  try {
    launch(kernel, Range{64}, readwrite(x)).wait();
    FAIL() << "it ran";
  } catch (KernelError const& error) {
    EXPECT_THAT(error.reason, ::testing::HasSubstr("uses __shared__"));
  }
  EXPECT_EQ(x.statistics().host_to_device_copies, 0U);
}

}  // namespace
}  // namespace unimem
