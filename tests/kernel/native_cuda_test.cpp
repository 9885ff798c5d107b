#include "device/cuda/driver.hpp"
#include "device/standin_watch.hpp"
#include "kernel/native_conformance.hpp"

// The user's own CUDA code among ours.

namespace unimem {
namespace {

using detail::cuda::Result;
using detail::cuda::Stream;

detail::cuda::Driver const& driver() {
  static auto const& loaded = *new detail::cuda::LoadedDriver(detail::cuda::load_driver());
  return loaded.driver;
}

void set(void* stream, DeviceMemory memory, unsigned char value) {
  // In the queue's own context, which is the thread's while the callable runs.
  ASSERT_EQ(driver().cuMemsetD8Async(memory.object + memory.offset, value, memory.bytes, static_cast<Stream>(stream)),
            Result::success);
}

INSTANTIATE_TEST_SUITE_P(Cuda, NativeWork,
                         ::testing::Values(NativeCase{"first", first_gpu(), true, set},
                                           NativeCase{"second", second_gpu(), true, set}),
                         native_case_name);

TEST(NativeWorkUnderCuda, KeepsTheThreadsContext) {
  if (on_hardware) GTEST_SKIP() << scripts_standin;
  auto& on = device("cuda:0");
  auto queue = on.create_queue();
  MemoryManager manager;
  BufferOptions options;
  options.manager = &manager;
  options.device = &on;
  UnifiedBuffer<unsigned char> x(1000, options);
  x.fill(1);
  x.sync_to_device();
  standin_control().hold_stream(queue.native<Stream>(), true);
  auto const event = with_native(
      queue,
      [&](Stream stream, unsigned char* bytes) {
        EXPECT_EQ(stream, queue.native<Stream>());
        EXPECT_EQ(standin_control().stack_depth(), 1U);
        EXPECT_EQ(driver().cuMemsetD8Async(reinterpret_cast<detail::cuda::DevicePointer>(bytes), 5, 1000, stream),
                  Result::success);
      },
      readwrite(x));
  EXPECT_EQ(standin_control().stack_depth(), 0U);
  EXPECT_FALSE(event.ready());
  standin_control().hold_stream(queue.native<Stream>(), false);
  EXPECT_THAT(x.to_vector(), ::testing::Each(5));
}

}  // namespace
}  // namespace unimem
