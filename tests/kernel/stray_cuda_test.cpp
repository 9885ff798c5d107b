#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/kernel/launch.hpp>

#include "device/cuda_fixture.hpp"
#include "forked_child.hpp"

#include <cstdint>
#include <cstdlib>
#include <exception>
#include <tuple>
#include <vector>

// A kernel of the user's that writes where nothing is, on hardware: it ends the context for the whole process, so it
// has a process of its own. Loss at every call, by the stand-in's script: tests/buffer/cuda_loss_test.cpp.

namespace unimem {
namespace {

/// 7 if everything that the GPU alone did not hold has outlived it.
int after_a_stray_kernel() {
  auto& gpu = device(first_gpu());
  auto& sim = make_sim({.memory_bytes = std::size_t{1} << 20});
  BufferOptions options;
  options.device = &gpu;
  UnifiedBuffer<std::uint32_t> on_both(1000, options), only_there(1000, options);
  on_both.fill(5);
  on_both.sync_to_device();
  only_there.fill(6);
  auto& queue = gpu.default_queue();
  auto const add = Kernel("add").source(R"(
    UNIMEM_KERNEL add(UNIMEM_BUFFER(unimem_u32, x)) { UNIMEM_DATA(unimem_u32, x)[UNIMEM_ITEM_X] += 1; })");
  launch(queue, add, Range{1000}, readwrite(only_there)).wait();
  auto const stray = Kernel("stray").source(R"(
    extern "C" __global__ void stray(unsigned const* x) { *(unsigned volatile*)16 = x[0]; })");
  auto const error = launch(queue, stray, Range{1}, read(on_both)).wait_for_error();
  EXPECT_HERE(error != nullptr);
  try {
    std::rethrow_exception(error);
  } catch (DeviceError const& lost) {
    EXPECT_HERE(lost.backend == "cuda");
    EXPECT_HERE(lost.code_name == "CUDA_ERROR_ILLEGAL_ADDRESS");
  }
  EXPECT_HERE(gpu.is_lost());
  EXPECT_HERE(on_both.to_vector() == std::vector<std::uint32_t>(1000, 5));
  bool told = false;
  try {
    std::ignore = only_there.to_vector();
  } catch (DataLost const&) {
    told = true;
  }
  EXPECT_HERE(told);
  on_both.sync_to_device(sim);
  EXPECT_HERE(on_both.valid_on(sim));
  only_there.fill(8);
  EXPECT_HERE(only_there.to_vector() == std::vector<std::uint32_t>(1000, 8));
  return 7;
}

TEST(StrayKernelUnderCuda, LosesOnlyTheGpusSoleCopies) {
  if (!on_hardware || device(first_gpu()).info().name.starts_with("Stand-in")) {
    GTEST_SKIP() << "kernels of the stand-in are code of this process, and would end it";
  }
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::exit(after_a_stray_kernel()), ::testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace unimem
