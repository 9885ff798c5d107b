#include "device/opencl_fixture.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <thread>

namespace unimem {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Portable kernels (docs/kernels.md) and plain OpenCL C on one device.
class OpenClKernel : public OpenClTest {
 protected:
  /// Runs to the end, and throws what the run failed with.
  static void run(std::shared_ptr<Program const> const& program, Range range,
                  std::vector<KernelArgument> const& arguments) {
    device().default_queue().run(program, range, arguments).wait();
  }

  /// The KernelError that `action` throws.
  template <class Action>
  static KernelError refusal(Action const& action) {
    try {
      action();
    } catch (KernelError const& error) {
      return error;
    }
    ADD_FAILURE() << "no KernelError was thrown";
    return {"", ""};
  }
};

constexpr auto scale = R"(
UNIMEM_KERNEL scale(UNIMEM_BUFFER(unimem_f32, x), unimem_f32 factor) {
  UNIMEM_DATA(unimem_f32, x)[UNIMEM_ITEM_X] *= factor;
})";

constexpr auto plain_scale = R"(
__kernel void scale(__global const float* in, __global float* out, uint count) {
  size_t const i = get_global_id(0);
  if (i < count) out[i] = 2 * in[i];
})";

TEST_F(OpenClKernel, RunsOverExactlyTheItemsOfItsRange) {
  for (std::size_t const items : {1U, 7U, 97U, 255U, 256U, 257U, 1000U}) {
    auto const x = memory_of(std::vector<float>(1024, 3.0F));
    run(compile(device(), "scale", scale), {items}, {argument(x), scalar(2.0F)});
    std::vector<float> expected(1024, 3.0F);
    std::fill_n(expected.begin(), items, 6.0F);
    EXPECT_EQ(values_in<float>(x), expected) << items << " items";
  }
}

TEST_F(OpenClKernel, ABufferMayStartAtAnyElement) {
  auto const x = memory_of(std::vector<float>(10, 1.0F));
  run(compile(device(), "scale", scale), {4}, {argument(x.window(12, 16)), scalar(5.0F)});
  EXPECT_THAT(values_in<float>(x), ElementsAre(1, 1, 1, 5, 5, 5, 5, 1, 1, 1));
}

TEST_F(OpenClKernel, TwoBuffersMayBeWindowsOfOneObject) {
  std::vector<std::int32_t> values(12);
  std::iota(values.begin(), values.end(), 0);
  auto const memory = memory_of(values);
  auto const program = compile(device(), "add", R"(
    UNIMEM_KERNEL add(UNIMEM_CONST_BUFFER(unimem_i32, from), UNIMEM_BUFFER(unimem_i32, to)) {
      UNIMEM_DATA(unimem_i32, to)[UNIMEM_ITEM_X] += UNIMEM_DATA(const unimem_i32, from)[UNIMEM_ITEM_X];
    })");
  run(program, {4}, {argument(memory.window(4, 16)), argument(memory.window(28, 16))});
  EXPECT_THAT(values_in<std::int32_t>(memory), ElementsAre(0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 11));
}

TEST_F(OpenClKernel, ItemsAreNumberedInThreeDimensions) {
  auto const program = compile(device(), "number", R"(
    UNIMEM_KERNEL number(UNIMEM_BUFFER(unimem_u32, out)) {
      UNIMEM_DATA(unimem_u32, out)[(UNIMEM_ITEM_Z * 3 + UNIMEM_ITEM_Y) * 5 + UNIMEM_ITEM_X] =
          (unimem_u32)(100 * UNIMEM_ITEM_Z + 10 * UNIMEM_ITEM_Y + UNIMEM_ITEM_X);
    })");
  auto const out = memory_of(std::vector<std::uint32_t>(31, 999));
  run(program, {5, 3, 2}, {argument(out)});
  std::vector<std::uint32_t> expected;
  for (unsigned z = 0; z < 2; ++z)
    for (unsigned y = 0; y < 3; ++y)
      for (unsigned x = 0; x < 5; ++x) expected.push_back(100 * z + 10 * y + x);
  expected.push_back(999);
  EXPECT_EQ(values_in<std::uint32_t>(out), expected);
}

TEST_F(OpenClKernel, ScalarsOfEveryWidthArrive) {
  auto const program = compile(device(), "store", R"(
    UNIMEM_KERNEL store(UNIMEM_BUFFER(unimem_i64, out), unimem_u8 a, unimem_i8 b, unimem_u16 c, unimem_i16 d, unimem_u32 e,
                        unimem_i32 f, unimem_u64 g, unimem_i64 h, unimem_f32 i, float4 j) {
      UNIMEM_GLOBAL unimem_i64* p = UNIMEM_DATA(unimem_i64, out);
      p[0] = a; p[1] = b; p[2] = c; p[3] = d; p[4] = e; p[5] = f; p[6] = (unimem_i64)g; p[7] = h; p[8] = (unimem_i64)i;
      p[9] = (unimem_i64)(j.x + j.y + j.z + j.w);
    })");
  auto const out = memory_of(std::vector<std::int64_t>(10, 0));
  run(program, {1},
      {argument(out), scalar(std::uint8_t{200}), scalar(std::int8_t{-100}), scalar(std::uint16_t{60'000}),
       scalar(std::int16_t{-30'000}), scalar(4'000'000'000U), scalar(-2'000'000'000), scalar(std::uint64_t{1} << 62),
       scalar(-(std::int64_t{1} << 62)), scalar(-8.0F), scalar(std::array<float, 4>{1, 2, 3, 4})});
  EXPECT_THAT(values_in<std::int64_t>(out), ElementsAre(200, -100, 60'000, -30'000, 4'000'000'000, -2'000'000'000,
                                                        std::int64_t{1} << 62, -(std::int64_t{1} << 62), -8, 10));
}

TEST_F(OpenClKernel, DoublesAreThereWhereTheDeviceSaysSo) {
  if (!device().info().doubles) GTEST_SKIP() << "the device has no doubles";
  auto const program = compile(device(), "root", R"(
    UNIMEM_KERNEL root(UNIMEM_BUFFER(unimem_f64, x), unimem_f64 plus) {
      UNIMEM_DATA(unimem_f64, x)[UNIMEM_ITEM_X] += plus;
    })");
  auto const x = memory_of(std::vector<double>{1e300, 0.1});
  run(program, {2}, {argument(x), scalar(0.2)});
  EXPECT_THAT(values_in<double>(x), ElementsAre(1e300, 0.1 + 0.2));
}

TEST_F(OpenClKernel, AMultiplicationAndAnAdditionRoundTwice) {
  // (1 + e)(1 − e) − 1 is −e² when rounded once and 0 when the product is rounded first.
  constexpr float e = 1.0F / 8192;
  auto const program = compile(device(), "residue", R"(
    UNIMEM_KERNEL residue(UNIMEM_BUFFER(unimem_f32, x)) {
      UNIMEM_GLOBAL unimem_f32* p = UNIMEM_DATA(unimem_f32, x);
      p[2] = p[0] * p[1] - 1.0f;
    })");
  auto const x = memory_of(std::vector<float>{1 + e, 1 - e, 42});
  ASSERT_NE(std::fma(1 + e, 1 - e, -1.0F), 0.0F);
  run(program, {1}, {argument(x)});
  EXPECT_EQ(values_in<float>(x)[2], 0.0F);
}

TEST_F(OpenClKernel, AtomicAdditionsOfAllItemsAreCounted) {
  auto const program = compile(device(), "count", R"(
    UNIMEM_FUNCTION unimem_u32 bin_of(unimem_u8 value) { return value % 3; }
    UNIMEM_KERNEL count(UNIMEM_CONST_BUFFER(unimem_u8, in), UNIMEM_BUFFER(unimem_u32, bins)) {
      UNIMEM_ATOMIC_ADD_U32(UNIMEM_DATA(unimem_u32, bins) + bin_of(UNIMEM_DATA(const unimem_u8, in)[UNIMEM_ITEM_X]), 1);
    })");
  std::vector<std::uint8_t> values(3000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint8_t>(i % 6 == 5 ? 1 : i % 3);
  auto const in = memory_of(values);
  auto const bins = memory_of(std::vector<std::uint32_t>(3, 0));
  run(program, {values.size()}, {argument(in), argument(bins)});
  EXPECT_THAT(values_in<std::uint32_t>(bins), ElementsAre(1000, 1500, 500));
}

TEST_F(OpenClKernel, PlainOpenClTakesAnyCountType) {
  auto const program = compile(device(), "scale", plain_scale);
  auto const in = memory_of(std::vector<float>{1, 2, 3, 4});
  auto const out = memory_of(std::vector<float>(4, 0));
  run(program, {4}, {argument(in), argument(out), scalar(std::uint64_t{3})});
  EXPECT_THAT(values_in<float>(out), ElementsAre(2, 4, 6, 0));
}

TEST_F(OpenClKernel, ACountThatDoesNotFitIsRefused) {
  auto const program = compile(device(), "scale", plain_scale);
  auto const in = memory_of(std::vector<float>{1, 2});
  auto const out = memory_of(std::vector<float>(2, 7));
  auto const before = device().default_queue().record();
  auto const error = refusal([&] { run(program, {2}, {argument(in), argument(out), scalar(std::uint64_t{1} << 32)}); });
  EXPECT_THAT(error.reason,
              HasSubstr("argument 2 is 0x0000000100000000 (8 bytes), which does not fit parameter 2 of type uint"));
  EXPECT_EQ(device().default_queue().record(), before);
  EXPECT_THAT(values_in<float>(out), Each(7));
}

TEST_F(OpenClKernel, IntegersAreConvertedOnlyExactly) {
  auto const program = compile(device(), "store", R"(
    __kernel void store(__global long* out, int narrow, ulong wide, long wide_signed) {
      out[0] = narrow; out[1] = (long)wide; out[2] = wide_signed;
    })");
  auto const out = memory_of(std::vector<std::int64_t>(3, 0));
  run(program, {1}, {argument(out), scalar(std::int64_t{-5}), scalar(std::uint8_t{255}), scalar(std::int16_t{300})});
  EXPECT_THAT(values_in<std::int64_t>(out), ElementsAre(-5, 255, 300));
  // Whether 0xffff was −1 or 65535 is not to be known.
  auto const error =
      refusal([&] { run(program, {1}, {argument(out), scalar(1), scalar(1U), scalar(std::int16_t{-1})}); });
  EXPECT_THAT(error.reason, HasSubstr("argument 3 is 0xffff (2 bytes), which does not fit parameter 3 of type long"));
  EXPECT_THAT(
      refusal([&] { run(program, {1}, {argument(out), scalar(std::int64_t{1} << 31), scalar(1U), scalar(1)}); }).reason,
      HasSubstr("parameter 1 of type int"));
}

TEST_F(OpenClKernel, PlainOpenClSeesItsRange) {
  auto const program = compile(device(), "stride", R"(
    __kernel void stride(__global uint* out, uint count) {
      for (size_t i = get_global_id(0); i < count; i += get_global_size(0)) out[i] = (uint)get_global_size(0);
    })");
  auto const out = memory_of(std::vector<std::uint32_t>(1000, 0));
  run(program, {301}, {argument(out), scalar(1000U)});
  EXPECT_THAT(values_in<std::uint32_t>(out), Each(301U));
}

TEST_F(OpenClKernel, AKernelMayFixItsGroupSize) {
  auto const program = compile(device(), "group", R"(
    __attribute__((reqd_work_group_size(4, 1, 1)))
    UNIMEM_KERNEL group(UNIMEM_BUFFER(unimem_u32, out)) {
      UNIMEM_DATA(unimem_u32, out)[UNIMEM_ITEM_X] = (unimem_u32)get_local_size(0);
    })");
  auto const out = memory_of(std::vector<std::uint32_t>(8, 0));
  run(program, {8}, {argument(out)});
  EXPECT_THAT(values_in<std::uint32_t>(out), Each(4U));
}

TEST_F(OpenClKernel, PlainOpenClTakesAlignedWindows) {
  auto const align = device().info().alignment;
  auto const program = compile(device(), "scale", plain_scale);
  std::vector<float> values(2 * align / sizeof(float), 1.0F);
  auto const in = memory_of(values), out = memory_of(values);
  run(program, {2}, {argument(in.window(align, 8)), argument(out.window(align, 8)), scalar(2U)});
  values[align / sizeof(float)] = values[align / sizeof(float) + 1] = 2.0F;
  EXPECT_EQ(values_in<float>(out), values);

  auto const error = refusal([&] { run(program, {1}, {argument(in), argument(out.window(4, 4)), scalar(1U)}); });
  EXPECT_THAT(error.reason, HasSubstr("argument 1 starts 4 bytes into its memory"));
  EXPECT_EQ(values_in<float>(out), values);
}

TEST_F(OpenClKernel, TheNumberOfArgumentsMustFitTheForm) {
  auto const program = compile(device(), "scale", scale);
  auto const x = memory_of(std::vector<float>{1});
  auto const error = refusal([&] { run(program, {1}, {argument(x)}); });
  EXPECT_EQ(error.name, "scale");
  EXPECT_THAT(error.reason, HasSubstr("has 2 parameters, and 1 arguments were given"));
  auto const plain = compile(device(), "scale", plain_scale);
  EXPECT_THAT(refusal([&] { run(plain, {1}, {argument(x)}); }).reason,
              HasSubstr("has 3 parameters, and 1 arguments were given"));
}

TEST_F(OpenClKernel, AnExtraArgumentIsRefused) {
  auto const program = compile(device(), "scale", scale);
  auto const x = memory_of(std::vector<float>{1});
  EXPECT_THAT(refusal([&] { run(program, {1}, {argument(x), scalar(2.0F), scalar(2.0F)}); }).reason,
              HasSubstr("has 2 parameters, and 3 arguments were given"));
  EXPECT_THAT(values_in<float>(x), ElementsAre(1));
}

TEST_F(OpenClKernel, ABufferIsNoScalar) {
  auto const program = compile(device(), "scale", plain_scale);
  auto const x = memory_of(std::vector<float>{1});
  EXPECT_THAT(refusal([&] { run(program, {1}, {argument(x), scalar(1.0), scalar(1U)}); }).reason,
              HasSubstr("argument 1 is a scalar, but parameter 1 is a float*"));
  EXPECT_THAT(refusal([&] { run(program, {1}, {argument(x), argument(x), argument(x)}); }).reason,
              HasSubstr("argument 2 is a buffer, but parameter 2 is a uint"));
}

TEST_F(OpenClKernel, AScalarOfTheWrongSizeIsRefused) {
  auto const program = compile(device(), "scale", scale);
  auto const x = memory_of(std::vector<float>{1});
  auto const error = refusal([&] { run(program, {1}, {argument(x), scalar(2.0)}); });
  EXPECT_THAT(error.reason,
              HasSubstr("argument 1 is 0x4000000000000000 (8 bytes), which does not fit parameter 1 of type"));
  EXPECT_THAT(values_in<float>(x), ElementsAre(1));
}

TEST_F(OpenClKernel, ParametersInLocalMemoryAreRefused) {
  auto const program =
      compile(device(), "f", "__kernel void f(__global float* x, __local float* scratch) { x[0] = scratch[0]; }");
  auto const x = memory_of(std::vector<float>{1});
  EXPECT_THAT(refusal([&] { run(program, {1}, {argument(x), argument(x)}); }).reason, HasSubstr("in local memory"));
}

TEST_F(OpenClKernel, AnEmptyBufferIsANullPointer) {
  auto const program = compile(device(), "is_null", R"(
    UNIMEM_KERNEL is_null(UNIMEM_BUFFER(unimem_u32, out), UNIMEM_CONST_BUFFER(unimem_u8, none)) {
      UNIMEM_DATA(unimem_u32, out)[0] = UNIMEM_DATA(const unimem_u8, none) == 0;
    })");
  auto const out = memory_of(std::vector<std::uint32_t>{7});
  run(program, {1}, {argument(out), argument(DeviceMemory{})});
  EXPECT_THAT(values_in<std::uint32_t>(out), ElementsAre(1));
}

TEST_F(OpenClKernel, ABuildErrorCarriesTheCompilersLog) {
  auto const error = refusal([] { return compile(device(), "broken", "UNIMEM_KERNEL broken() {\n  frobnicate;\n}"); });
  EXPECT_EQ(error.name, "broken");
  EXPECT_THAT(error.reason, HasSubstr("does not build on opencl:0"));
  EXPECT_THAT(error.build_log, HasSubstr("frobnicate"));
}

TEST_F(OpenClKernel, AMissingEntryNamesTheKernelsThereAre) {
  auto const error =
      refusal([] { return compile(device(), "absent", "UNIMEM_KERNEL one() {}\nUNIMEM_KERNEL two() {}"); });
  EXPECT_EQ(error.name, "absent");
  EXPECT_THAT(error.reason, HasSubstr("one, two"));
}

TEST_F(OpenClKernel, AKernelWithoutASourceFormIsRefused) {
  auto const error = refusal([] { return compile(device(), "host_only", ""); });
  EXPECT_THAT(error.reason, HasSubstr("has no source form, which opencl:0 needs"));
}

TEST_F(OpenClKernel, AProgramRunsOnItsDeviceOnly) {
  auto const other = detail::open_opencl_device(0, "zero_copy=0");
  auto const program = compile(*other, "scale", scale);
  auto const x = memory_of(std::vector<float>{1});
  EXPECT_THAT(refusal([&] { run(program, {1}, {argument(x), scalar(2.0F)}); }).reason,
              HasSubstr("was not made by opencl:0"));
}

TEST_F(OpenClKernel, AProgramMayBeDroppedWhileItRuns) {
  std::vector<float> const ones(1 << 16, 1.0F);
  auto const x = memory_of(ones);
  auto& queue = device().default_queue();
  for (int i = 0; i < 3; ++i) {
    queue.run(compile(device(), "scale", scale), {ones.size()}, std::vector{argument(x), scalar(2.0F)});
  }
  EXPECT_THAT(values_in<float>(x), Each(8.0F));
}

TEST_F(OpenClKernel, OneProgramServesManyThreads) {
  constexpr int threads = 4, rounds = 25;
  auto const program = compile(device(), "set", R"(
    UNIMEM_KERNEL set(UNIMEM_BUFFER(unimem_i32, x), unimem_i32 value) {
      UNIMEM_DATA(unimem_i32, x)[UNIMEM_ITEM_X] = value;
    })");
  std::vector<DeviceMemory> memory;
  for (int t = 0; t < threads; ++t) memory.push_back(memory_of(std::vector<std::int32_t>(64, -1)));
  std::vector<int> wrong(threads, 0);
  std::vector<std::thread> workers;
  for (int t = 0; t < threads; ++t) {
    workers.emplace_back([&, t] {
      auto queue = device().create_queue();
      auto const mine = memory[static_cast<std::size_t>(t)];
      std::vector<std::int32_t> seen(64);
      for (int round = 0; round < rounds; ++round) {
        auto const value = 1000 * t + round;
        queue.run(program, {64}, std::vector{argument(mine), scalar(value)});
        queue.download(seen.data(), mine, mine.bytes).wait();
        wrong[static_cast<std::size_t>(t)] += seen != std::vector<std::int32_t>(64, value);
      }
    });
  }
  for (auto& worker : workers) worker.join();
  EXPECT_THAT(wrong, Each(0));
}

}  // namespace
}  // namespace unimem
