#include <unimem/core/error.hpp>

#include "device/cuda/launch_shape.hpp"
#include "device/cuda_image.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

// What the CUDA prelude makes of portable kernels, run over host memory by the stand-in NVRTC: the items that come to
// threads, the parameters that arrive, the arithmetic.

namespace unimem::detail::cuda {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// One kernel, compiled and loaded.
class Loaded {
 public:
  Loaded(char const* name, char const* source)
      : compiled_(standin_compiler().compile({name, source, nullptr}, 90, "cuda:0")), image_(compiled_.image) {
    kernel_ = image_.find(compiled_.entry);
    if (kernel_ == nullptr) throw std::runtime_error("the image has no " + compiled_.entry);
  }

  [[nodiscard]] StandInKernel const& kernel() const { return *kernel_; }

  /// Runs the entry over `range` in that shape, on arguments that are passed as they are.
  template <class... Arguments>
  void run(LaunchShape const& shape, Range range, Arguments... arguments) const {
    std::array<std::uint64_t, 3> items{range.x, range.y, range.z};
    std::array<void*, 1 + sizeof...(arguments)> parameters{items.data(), &arguments...};
    kernel_->run(shape.grid.data(), shape.block.data(), parameters.data());
  }

  template <class... Arguments>
  void run(Range range, Arguments... arguments) const {
    run(portable_shape(range, {256, 1}), range, arguments...);
  }

 private:
  CompiledKernel compiled_;
  LoadedImage image_;
  StandInKernel const* kernel_ = nullptr;
};

/// Counts each item where it belongs, and what comes to no place.
Loaded const& counting() {
  static Loaded const loaded{"count", R"(
    UNIMEM_FUNCTION unimem_u64 place(unimem_u64 width, unimem_u64 height) {
      return (UNIMEM_ITEM_Z * height + UNIMEM_ITEM_Y) * width + UNIMEM_ITEM_X;
    }
    UNIMEM_KERNEL count(UNIMEM_BUFFER(unimem_u8, seen), unimem_u64 width, unimem_u64 height, unimem_u64 depth,
                        UNIMEM_BUFFER(unimem_u32, strays)) {
      if (UNIMEM_ITEM_X >= width || UNIMEM_ITEM_Y >= height || UNIMEM_ITEM_Z >= depth) {
        UNIMEM_ATOMIC_ADD_U32(UNIMEM_DATA(unimem_u32, strays), 1);
        return;
      }
      UNIMEM_DATA(unimem_u8, seen)[place(width, height)] += 1;
    })"};
  return loaded;
}

void expect_each_item_once(LaunchShape const& shape, Range range) {
  std::vector<std::uint8_t> seen(range.items() + 1, 0);
  std::uint32_t strays = 0;
  counting().run(shape, range, seen.data(), std::uint64_t{range.x}, std::uint64_t{range.y}, std::uint64_t{range.z},
                 &strays);
  EXPECT_EQ(strays, 0U);
  EXPECT_EQ(seen.back(), 0) << "beyond the range";
  seen.pop_back();
  EXPECT_THAT(seen, Each(1));
}

TEST(CudaPrelude, AKernelRunsOncePerItem) {
  for (Range const range :
       {Range{1}, Range{2}, Range{31}, Range{255}, Range{256}, Range{257}, Range{1'000'003}, Range{1, 1, 1},
        Range{5, 3, 2}, Range{97, 31, 11}, Range{1000, 7, 3}, Range{1, 1, 300}, Range{33, 1, 17}, Range{300, 100}}) {
    SCOPED_TRACE(::testing::Message() << range.x << " × " << range.y << " × " << range.z);
    expect_each_item_once(portable_shape(range, {256, 1}), range);
    expect_each_item_once(portable_shape(range, {1024, 264}), range);
  }
}

TEST(CudaPrelude, RangesMayExceedAGrid) {
  for (Range const range : {Range{1, 70'000, 1}, Range{1, 1, 70'000}, Range{40, 70'000, 1}, Range{2, 3, 66'000}}) {
    SCOPED_TRACE(::testing::Message() << range.x << " × " << range.y << " × " << range.z);
    expect_each_item_once(portable_shape(range, {256, 264}), range);
  }
}

TEST(CudaPrelude, AColumnCoversTheRange) {
  // What happens beyond 2³¹ blocks, with few.
  for (Range const range : {Range{1000}, Range{1}, Range{7, 11, 13}, Range{300, 300}}) {
    for (auto const& [blocks, threads] : {std::pair{1U, 2U}, {2U, 4U}, {3U, 32U}, {2000U, 256U}}) {
      SCOPED_TRACE(::testing::Message() << range.x << " × " << range.y << " × " << range.z << " by " << blocks);
      expect_each_item_once({{blocks, 1, 1}, {1, threads, 1}, 0}, range);
    }
  }
}

TEST(CudaPrelude, ItemsBeyond32BitsHaveTheirIndex) {
  // No loop of a test could walk there, so the kernel is told that it is there: on the host these are variables.
  // (Words that no kernel of users may say, so they are put together.)
  Loaded const far{"far", R"(
    #define JOINED(a, b) a##b
    UNIMEM_KERNEL far(UNIMEM_BUFFER(unimem_u64, out)) {
      JOINED(block, Idx).x = 0x7FFFFFFE;
      JOINED(block, Dim).x = 1024;
      UNIMEM_DATA(unimem_u64, out)[0] = UNIMEM_ITEM_X;
      JOINED(block, Dim).x = 1;
    })"};
  std::uint64_t index = 0;
  far.run({{1, 1, 1}, {1, 1, 1}, 0}, {1}, &index);
  EXPECT_EQ(index, std::uint64_t{0x7FFFFFFE} * 1024);
}

TEST(CudaPrelude, ScalarsOfEveryWidthArrive) {
  Loaded const store{"store", R"(
    UNIMEM_KERNEL store(UNIMEM_BUFFER(unimem_i64, out), unimem_u8 a, unimem_i8 b, unimem_u16 c, unimem_i16 d, unimem_u32 e,
                        unimem_i32 f, unimem_u64 g, unimem_i64 h, unimem_f32 i, float4 j, unimem_f64 k) {
      UNIMEM_GLOBAL unimem_i64* p = UNIMEM_DATA(unimem_i64, out);
      p[0] = a; p[1] = b; p[2] = c; p[3] = d; p[4] = e; p[5] = f; p[6] = (unimem_i64)g; p[7] = h; p[8] = (unimem_i64)i;
      p[9] = (unimem_i64)(j.x + j.y + j.z + j.w); p[10] = (unimem_i64)k;
    })"};
  std::vector<std::int64_t> out(11, 0);
  struct alignas(16) Four {
    float x, y, z, w;
  };
  store.run({1}, out.data(), std::uint8_t{200}, std::int8_t{-100}, std::uint16_t{60'000}, std::int16_t{-30'000},
            4'000'000'000U, -2'000'000'000, std::uint64_t{1} << 62, -(std::int64_t{1} << 62), -8.0F, Four{1, 2, 3, 4},
            1e15);
  EXPECT_THAT(out, ElementsAre(200, -100, 60'000, -30'000, 4'000'000'000, -2'000'000'000, std::int64_t{1} << 62,
                               -(std::int64_t{1} << 62), -8, 10, 1'000'000'000'000'000));
}

TEST(CudaPrelude, ParametersLieWhereTheDriverPutsThem) {
  Loaded const mixed{"mixed", R"(
    UNIMEM_KERNEL mixed(unimem_u8 a, UNIMEM_BUFFER(float, b), unimem_u16 c, float4 d, unimem_u8 e) {})"};
  auto const& kernel = mixed.kernel();
  std::span const offsets{kernel.parameter_offsets, kernel.parameter_count};
  std::span const bytes{kernel.parameter_bytes, kernel.parameter_count};
  EXPECT_THAT(offsets, ElementsAre(0, 24, 32, 40, 48, 64));
  EXPECT_THAT(bytes, ElementsAre(24, 1, 8, 2, 16, 1));
}

TEST(CudaPrelude, AMultiplicationAndAnAdditionRoundTwice) {
  constexpr float e = 1.0F / 8192;
  Loaded const residue{"residue", R"(
    UNIMEM_KERNEL residue(UNIMEM_BUFFER(unimem_f32, x)) {
      UNIMEM_GLOBAL unimem_f32* p = UNIMEM_DATA(unimem_f32, x);
      p[2] = p[0] * p[1] - 1.0f;
      p[3] = fma(p[0], p[1], -1.0f);
    })"};
  std::array<float, 4> x{1 + e, 1 - e, 42, 42};
  residue.run({1}, x.data());
  EXPECT_EQ(x[2], 0.0F);
  EXPECT_EQ(x[3], std::fma(1 + e, 1 - e, -1.0F));
}

TEST(CudaPrelude, AtomicAdditionsGiveWhatWasThereBefore) {
  Loaded const ticket{"ticket", R"(
    UNIMEM_KERNEL ticket(UNIMEM_BUFFER(unimem_u32, count), UNIMEM_BUFFER(unimem_u32, order)) {
      UNIMEM_DATA(unimem_u32, order)[UNIMEM_ATOMIC_ADD_U32(UNIMEM_DATA(unimem_u32, count), 1)] = 1;
    })"};
  std::uint32_t count = 0;
  std::vector<std::uint32_t> order(1000, 0);
  ticket.run({1000}, &count, order.data());
  EXPECT_EQ(count, 1000U);
  EXPECT_THAT(order, Each(1U));
}

TEST(CudaPrelude, ParametersArePerItem) {
  Loaded const change{"change", R"(
    UNIMEM_KERNEL change(UNIMEM_BUFFER(unimem_u32, out), unimem_u32 n) {
      n += 1;
      UNIMEM_DATA(unimem_u32, out)[UNIMEM_ITEM_X] = n;
    })"};
  std::vector<std::uint32_t> out(100, 0);
  change.run({{1, 1, 1}, {1, 4, 1}, 0}, {100}, out.data(), 6U);
  EXPECT_THAT(out, Each(7U));
}

TEST(CudaPrelude, AKernelNeedsNoParameters) {
  Loaded const nothing{"nothing", "UNIMEM_KERNEL nothing() {}"};
  nothing.run({1000});
  EXPECT_EQ(nothing.kernel().parameter_count, 1U) << "the range";
}

TEST(CudaPrelude, NamesOfCudaMayBeAKernelsOwn) {
  Loaded const norm{"norm", R"(
    UNIMEM_FUNCTION float saturate(float x) { return x > 1 ? 1 : x; }
    UNIMEM_KERNEL norm(UNIMEM_BUFFER(float, x)) { UNIMEM_DATA(float, x)[UNIMEM_ITEM_X] = saturate(2); })"};
  std::array<float, 3> x{};
  norm.run({3}, x.data());
  EXPECT_THAT(x, Each(1.0F));
}

TEST(StandInNvrtc, SaysWhatIsWrongAsNvrtcDoes) {
  try {
    static_cast<void>(
        standin_compiler().compile({"broken", "UNIMEM_KERNEL broken() {\n  frobnicate;\n}", nullptr}, 90, "cuda:0"));
    FAIL() << "it compiled";
  } catch (KernelError const& error) {
    EXPECT_EQ(error.reason, "does not build on cuda:0 (NVRTC_ERROR_COMPILATION)");
    EXPECT_THAT(error.build_log, HasSubstr("broken(2): error: "));
    EXPECT_THAT(error.build_log, HasSubstr("frobnicate"));
  }
  try {
    static_cast<void>(standin_compiler().compile({"absent", "UNIMEM_KERNEL one() {}", nullptr}, 90, "cuda:0"));
    FAIL() << "it compiled";
  } catch (KernelError const& error) {
    EXPECT_EQ(error.reason, "the source has no such entry; it defines one");
  }
}

TEST(StandInNvrtc, ImagesWithOneEntryNameAreSeparate) {
  Loaded const one{"same", "UNIMEM_KERNEL same(UNIMEM_BUFFER(int, x)) { UNIMEM_DATA(int, x)[0] = 1; }"};
  Loaded const two{"same", "UNIMEM_KERNEL same(UNIMEM_BUFFER(int, x)) { UNIMEM_DATA(int, x)[0] = 2; }"};
  int x = 0;
  one.run({1}, &x);
  EXPECT_EQ(x, 1);
  two.run({1}, &x);
  EXPECT_EQ(x, 2);
}

}  // namespace
}  // namespace unimem::detail::cuda
