#include "kernel/argument_conformance.hpp"

// What source kernels take under OpenCL: on the first device there is, whichever driver that is of.

namespace unimem {
namespace {

using ::testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(OpenCl, SourceArguments,
                         ::testing::Values(ArgumentCase{"opencl", "opencl:0", "__kernel void", "__global"}),
                         argument_case_name);

class OpenClArguments : public ::testing::Test {
 protected:
  std::string reason(char const* source, auto const&... arguments) {
    try {
      launch(on.default_queue(), Kernel("entry").source(source), Range{64}, arguments...).wait();
    } catch (KernelError const& error) {
      return error.reason;
    }
    return "accepted";
  }

  Device& on = device("opencl:0");
  UnifiedBuffer<float> x{64, BufferOptions{.device = &on}};
};

TEST_F(OpenClArguments, ImagesAndSamplersAreRefusedByName) {
  constexpr auto image = "__kernel void entry(__global float* x, read_only image2d_t picture) { x[0] = 1; }";
  constexpr auto sampler = "__kernel void entry(__global float* x, sampler_t how) { x[0] = 1; }";
  x.fill(0);
  for (auto const& [source, name] :
       {std::pair{image, "'picture' (image2d_t"}, std::pair{sampler, "'how' (sampler_t"}}) {
    for (bool const with_buffer : {true, false}) {
      std::string why;
      try {
        why = with_buffer ? reason(source, readwrite(x), readwrite(x)) : reason(source, readwrite(x), 1U);
      } catch (DeviceError const& error) {
        GTEST_SKIP() << "no images here: " << error.what();
      }
      if (why.find("does not build") != std::string::npos) GTEST_SKIP() << "no images here: " << why;
      EXPECT_THAT(why, HasSubstr(name));
      EXPECT_THAT(why, HasSubstr("with_native"));
    }
  }
  EXPECT_EQ(x.statistics().host_to_device_copies, 0U);
}

TEST_F(OpenClArguments, ATypeThatIsNotToBeHadHidesNoOther) {
  x.fill(0);
  constexpr auto source = R"cl(
    struct Opaque;
    typedef float real;
    __kernel void entry(__global struct Opaque* x, real a) { *(__global float*)x = a; })cl";
  EXPECT_THAT(reason(source, readwrite(x), 1),
              HasSubstr("parameter 'a' (real) is 1 of type int, the kernel takes f32"));
  EXPECT_THAT(reason(source, readwrite(x), 1.0), HasSubstr("argument 2"));
  EXPECT_EQ(x.statistics().host_to_device_copies, 0U);
  EXPECT_EQ(reason(source, readwrite(x), 1.0F), "accepted");
  EXPECT_EQ(x.host_view()[0], 1.0F);
}

TEST_F(OpenClArguments, AScalarOfATypeThatIsNotToBeHadIsRefused) {
  x.fill(0);
  constexpr auto source = R"cl(
    typedef struct { float one; } real;
    __kernel void entry(__global float* x, real a) { x[0] = a.one; }
    #define real 7 +
  )cl";
  EXPECT_THAT(reason(source, readwrite(x), 1.0F),
              HasSubstr("parameter 'a' (real) is of a type that the compiler tells"));
  EXPECT_EQ(x.statistics().host_to_device_copies, 0U);
}

TEST_F(OpenClArguments, MemoryOfAGroupIsRefusedByName) {
  x.fill(0);
  EXPECT_THAT(reason("__kernel void entry(__global float* x, __local float* shared) { x[0] = 1; }", readwrite(x), 1U),
              HasSubstr("'shared' (float* in local memory)"));
}

TEST_F(OpenClArguments, PortableKernelsMayNotUseGroups) {
  x.fill(0);
  EXPECT_THAT(reason(R"cl(UNIMEM_KERNEL entry(UNIMEM_BUFFER(float, x)) {
                __local float tile[64];
                tile[get_local_id(0)] = 1;
                barrier(CLK_LOCAL_MEM_FENCE);
                UNIMEM_DATA(float, x)[UNIMEM_ITEM_X] = tile[63 - get_local_id(0)]; })cl",
                     readwrite(x)),
              HasSubstr("uses __local, and states no size of its groups"));
  EXPECT_EQ(x.statistics().host_to_device_copies, 0U);
  EXPECT_EQ(reason(R"cl(__kernel __attribute__((reqd_work_group_size(64, 1, 1))) void entry(UNIMEM_BUFFER(float, x)) {
                __local float tile[64];
                tile[get_local_id(0)] = (float)get_local_id(0);
                barrier(CLK_LOCAL_MEM_FENCE);
                UNIMEM_DATA(float, x)[UNIMEM_ITEM_X] = tile[63 - get_local_id(0)]; })cl",
                   readwrite(x)),
            "accepted");
  for (std::size_t i = 0; i < 64; ++i) ASSERT_EQ(x.host_view()[i], static_cast<float>(63 - i));
}

}  // namespace
}  // namespace unimem
