#include "kernel/options_conformance.hpp"

// Options of the source form on the first OpenCL device there is, whichever driver that is of.

namespace unimem {
namespace {

INSTANTIATE_TEST_SUITE_P(OpenCl, KernelOptions, ::testing::Values("opencl:0"));

TEST(OpenClOptions, FastMathematicsIsAskedOfTheDriver) {
  auto& on = device("opencl:0");
  if (on.info().name.find("Oclgrind") != std::string::npos) GTEST_SKIP() << "Oclgrind computes exactly all the same";
  KernelSource source{.text = R"cl(UNIMEM_KERNEL tell(UNIMEM_BUFFER(int, x)) {
    #ifdef __FAST_RELAXED_MATH__
      UNIMEM_DATA(int, x)[UNIMEM_ITEM_X] = 1;
    #else
      UNIMEM_DATA(int, x)[UNIMEM_ITEM_X] = 0;
    #endif
  })cl"};
  for (int const fast : {0, 1}) {
    source.fast_math = fast == 1;
    UnifiedBuffer<int> x(10, BufferOptions{.device = &on});
    launch(Kernel("tell").source(source), Range{10}, write(x));
    EXPECT_THAT(x.to_vector(), ::testing::Each(fast));
  }
}

}  // namespace
}  // namespace unimem
