#include <unimem/core/error.hpp>

#include "device/cuda/cuda_program.hpp"
#include "device/cuda_image.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

// A kernel as it is loaded and launched, on a driver of a few functions that runs what the stand-in NVRTC made, at once
// and over host memory.

namespace unimem::detail::cuda {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// What the driver was asked, and what it is to answer. Every test starts with its own.
struct Asked {
  Result load = Result::success;
  Result get_function = Result::success;
  Result occupancy = Result::success;
  Result launch = Result::success;
  int block = 256, grid = 4;
  std::atomic<int> loaded = 0, launches = 0;
  std::array<std::atomic<unsigned>, 7> shape{};
  [[nodiscard]] std::vector<unsigned> last_shape() const { return {shape.begin(), shape.end()}; }
  std::atomic<Stream> stream = nullptr;
};
std::unique_ptr<Asked> asked;

thread_local Context current_context = nullptr;

Driver small_driver() {
  Driver driver;
  driver.cuGetErrorName = [](Result, char const** name) {
    *name = "CUDA_ERROR_OF_THE_TEST";
    return Result::success;
  };
  driver.cuCtxGetCurrent = [](Context* context) {
    *context = current_context;
    return Result::success;
  };
  driver.cuCtxPushCurrent = [](Context context) {
    current_context = context;
    return Result::success;
  };
  driver.cuCtxPopCurrent = [](Context* context) {
    *context = std::exchange(current_context, nullptr);
    return Result::success;
  };
  driver.cuThreadExchangeStreamCaptureMode = [](CaptureMode*) { return Result::success; };
  driver.cuModuleLoadData = [](Module* module, void const* data) {
    EXPECT_NE(current_context, nullptr);
    if (asked->load != Result::success) return asked->load;
    std::uint64_t size = 0;
    std::memcpy(&size, static_cast<char const*>(data) + 8, 8);
    *module = reinterpret_cast<Module>(new LoadedImage({static_cast<char const*>(data), size + 16}));
    ++asked->loaded;
    return Result::success;
  };
  driver.cuModuleUnload = [](Module module) {
    EXPECT_NE(current_context, nullptr);
    delete reinterpret_cast<LoadedImage*>(module);
    --asked->loaded;
    return Result::success;
  };
  driver.cuModuleGetFunction = [](Function* function, Module module, char const* name) {
    if (asked->get_function != Result::success) return asked->get_function;
    auto const* const kernel = reinterpret_cast<LoadedImage*>(module)->find(name);
    *function = reinterpret_cast<Function>(const_cast<StandInKernel*>(kernel));
    return kernel != nullptr ? Result::success : Result::not_found;
  };
  driver.cuOccupancyMaxPotentialBlockSize = [](int* grid, int* block, Function, std::size_t (*)(int), std::size_t,
                                               int) {
    *grid = asked->grid;
    *block = asked->block;
    return asked->occupancy;
  };
  driver.cuFuncGetAttribute = [](int* value, FunctionAttribute, Function) {
    *value = 512;
    return Result::success;
  };
  driver.cuLaunchKernel = [](Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                             unsigned block_y, unsigned block_z, unsigned shared_bytes, Stream stream,
                             void** parameters, void** extra) {
    EXPECT_EQ(extra, nullptr);
    std::array const shape{grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes};
    std::ranges::copy(shape, asked->shape.begin());
    asked->stream = stream;
    ++asked->launches;
    if (asked->launch != Result::success) return asked->launch;
    reinterpret_cast<StandInKernel const*>(function)->run(shape.data(), shape.data() + 3, parameters);
    return Result::success;
  };
  return driver;
}

class CudaProgramTest : public ::testing::Test {
 protected:
  CudaProgramTest() { asked = std::make_unique<Asked>(); }
  ~CudaProgramTest() override {
    EXPECT_EQ(current_context, nullptr) << "the thread is left as it was";
    EXPECT_EQ(asked->loaded, 0) << "every module is unloaded";
  }

  [[nodiscard]] static CudaProgram program(char const* name, char const* source) {
    static auto const driver = small_driver();
    static int context = 0;
    return CudaProgram{
        {driver, reinterpret_cast<Context>(&context), 90, "cuda:0"}, standin_compiler(), {name, source, nullptr}};
  }

  static void run(CudaProgram const& program, Range range, std::vector<KernelArgument> const& arguments) {
    program.launch(nullptr, range, arguments);
  }

  /// The KernelError that `action` throws; nothing was launched.
  template <class Action>
  static KernelError refusal(Action const& action) {
    int const launches = asked->launches;
    try {
      action();
    } catch (KernelError const& error) {
      EXPECT_EQ(asked->launches, launches);
      return error;
    }
    ADD_FAILURE() << "no KernelError was thrown";
    return {"", ""};
  }
};

template <class T>
KernelArgument scalar(T value) {
  KernelArgument argument;
  argument.kind = KernelArgument::Kind::scalar;
  argument.scalar_bytes = sizeof value;
  std::memcpy(argument.scalar.data(), &value, sizeof value);
  return argument;
}

template <class T>
KernelArgument buffer(std::vector<T>& values, std::size_t from = 0) {
  KernelArgument argument;
  argument.memory = {reinterpret_cast<std::uintptr_t>(values.data()), from * sizeof(T),
                     (values.size() - from) * sizeof(T)};
  return argument;
}

constexpr auto scale = R"(
UNIMEM_KERNEL scale(UNIMEM_BUFFER(unimem_f32, x), unimem_f32 factor) {
  UNIMEM_DATA(unimem_f32, x)[UNIMEM_ITEM_X] *= factor;
})";

constexpr auto store = R"(
UNIMEM_KERNEL store(UNIMEM_BUFFER(unimem_i64, out), unimem_u32 u, unimem_i32 i, unimem_u64 w) {
  UNIMEM_DATA(unimem_i64, out)[0] = u;
  UNIMEM_DATA(unimem_i64, out)[1] = i;
  UNIMEM_DATA(unimem_i64, out)[2] = (unimem_i64)w;
})";

TEST_F(CudaProgramTest, RunsOverExactlyTheItemsOfItsRange) {
  auto const twice = program("scale", scale);
  for (std::size_t const items : {1U, 7U, 97U, 255U, 256U, 257U, 1000U}) {
    std::vector<float> x(1024, 3.0F), expected = x;
    run(twice, {items}, {buffer(x), scalar(2.0F)});
    std::fill_n(expected.begin(), items, 6.0F);
    EXPECT_EQ(x, expected) << items << " items";
  }
}

TEST_F(CudaProgramTest, AFoldedRangeBringsItsSharedMemory) {
  auto const count = program("count", R"(
    UNIMEM_KERNEL count(UNIMEM_BUFFER(unimem_u32, out)) {
      UNIMEM_DATA(unimem_u32, out)[UNIMEM_ITEM_Y * 3 + UNIMEM_ITEM_X] += 1;
    })");
  std::vector<unsigned> out(3 * 1000 + 1, 0);
  run(count, {3, 1000}, {buffer(out)});
  EXPECT_EQ(out.back(), 0U);
  out.pop_back();
  EXPECT_THAT(out, Each(1U));
  EXPECT_EQ(asked->shape[4], 256U);
  EXPECT_EQ(asked->shape[6], 256U * 24);
}

TEST_F(CudaProgramTest, AGroupIsABlockUnlessItWouldBeTakenForAColumn) {
  auto const twice = program("scale", scale);
  std::vector<float> x(64, 1.0F);
  run(twice, Range{64}.group({16}), {buffer(x), scalar(2.0F)});
  EXPECT_THAT(x, Each(2.0F));
  EXPECT_THAT(asked->last_shape(), ElementsAre(4U, 1U, 1U, 16U, 1U, 1U, 0U));
  run(twice, Range{1, 64}.group({1, 16}), {buffer(x), scalar(1.0F)});
  EXPECT_EQ(asked->shape[4], 64U) << "the library's own";
  auto const groups = program("groups", R"(
    UNIMEM_KERNEL groups(UNIMEM_BUFFER(unimem_u64, x)) {
      UNIMEM_DATA(unimem_u64, x)[UNIMEM_ITEM_Y] = UNIMEM_GROUP_Y * 100 + UNIMEM_LOCAL_Y;
    })");
  std::vector<std::uint64_t> y(6);
  run(groups, Range{1, 6}.group({1, 3}), {buffer(y)});
  EXPECT_THAT(asked->last_shape(), ElementsAre(1U, 2U, 1U, 1U, 3U, 1U, 0U));
  EXPECT_THAT(y, ElementsAre(0, 1, 2, 100, 101, 102));
  EXPECT_THAT(refusal([&] { run(groups, {6}, {buffer(y)}); }).reason, HasSubstr("uses UNIMEM_GROUP_Y"));
  EXPECT_THAT(refusal([&] { run(groups, Range{1024}.group({1024}), {buffer(y)}); }).reason, HasSubstr("512 items"));
  EXPECT_THAT(refusal([&] { run(groups, Range{1, 70'000}.group({1, 1}), {buffer(y)}); }).reason,
              HasSubstr("larger than a grid"));
}

TEST_F(CudaProgramTest, ABufferMayStartAtAnyElement) {
  auto const twice = program("scale", scale);
  std::vector<float> x(10, 1.0F);
  run(twice, {4}, {buffer(x, 3), scalar(5.0F)});
  EXPECT_THAT(x, ElementsAre(1, 1, 1, 5, 5, 5, 5, 1, 1, 1));

  auto const is_null = program("is_null", R"(
    UNIMEM_KERNEL is_null(UNIMEM_BUFFER(unimem_u32, out), UNIMEM_CONST_BUFFER(unimem_u8, none)) {
      UNIMEM_DATA(unimem_u32, out)[0] = UNIMEM_DATA(const unimem_u8, none) == 0;
    })");
  std::vector<unsigned> out{7};
  run(is_null, {1}, {buffer(out), KernelArgument{}});
  EXPECT_THAT(out, ElementsAre(1));
  out[0] = 7;
  KernelArgument window_of_none;
  window_of_none.memory.offset = 16;
  run(is_null, {1}, {buffer(out), window_of_none});
  EXPECT_THAT(out, ElementsAre(1));
}

TEST_F(CudaProgramTest, TheStreamAndTheShapeAreTheDrivers) {
  asked->block = 128;
  asked->grid = 2;
  auto const twice = program("scale", scale);
  std::vector<float> x(1000, 1.0F);
  int stream = 0;
  twice.launch(reinterpret_cast<Stream>(&stream), {1000}, std::vector{buffer(x), scalar(1.0F)});
  EXPECT_EQ(asked->stream, reinterpret_cast<Stream>(&stream));
  EXPECT_EQ(asked->shape[0], 8U);
  EXPECT_EQ(asked->shape[3], 128U);
  EXPECT_EQ(asked->shape[6], 0U);
}

TEST_F(CudaProgramTest, AnEmptyRangeIsNoLaunch) {
  auto const twice = program("scale", scale);
  std::vector<float> x(4, 1.0F);
  run(twice, {0}, {buffer(x), scalar(2.0F)});
  run(twice, {5, 0, 3}, {buffer(x), scalar(2.0F)});
  EXPECT_EQ(asked->launches, 0);
  EXPECT_THROW(run(twice, {SIZE_MAX, 2, 1}, {buffer(x), scalar(2.0F)}), InvalidArgument);
  EXPECT_THROW(run(twice, {0}, {buffer(x)}), KernelError) << "the mistake is the same";
}

TEST_F(CudaProgramTest, TheNumberOfArgumentsMustMatch) {
  auto const twice = program("scale", scale);
  std::vector<float> x(1, 1.0F);
  EXPECT_EQ(refusal([&] { run(twice, {1}, {buffer(x)}); }).reason, "has 2 parameters, and 1 arguments were given");
  EXPECT_EQ(refusal([&] { run(twice, {1}, {buffer(x), scalar(1.0F), scalar(1.0F)}); }).reason,
            "has 2 parameters, and 3 arguments were given");
  EXPECT_EQ(refusal([&] { run(twice, {1}, {}); }).name, "scale");
}

TEST_F(CudaProgramTest, ABufferIsNoScalar) {
  auto const twice = program("scale", scale);
  std::vector<float> x(1, 1.0F);
  EXPECT_EQ(refusal([&] { run(twice, {1}, {scalar(std::uint64_t{0}), scalar(1.0F)}); }).reason,
            "argument 0 is a scalar, but parameter 0 is a buffer");
  EXPECT_EQ(refusal([&] { run(twice, {1}, {buffer(x), buffer(x)}); }).reason,
            "argument 1 is a buffer, but parameter 1 is a scalar of type unimem_f32");
  auto const words = program("store", store);
  std::vector<std::int64_t> out(3);
  EXPECT_EQ(refusal([&] { run(words, {1}, {buffer(out), scalar(1U), scalar(1), buffer(out)}); }).reason,
            "argument 3 is a buffer, but parameter 3 is a scalar of type unimem_u64")
      << "although an address has its size";
  EXPECT_THAT(x, ElementsAre(1));
}

TEST_F(CudaProgramTest, IntegersAreConvertedWhereTheyFit) {
  auto const words = program("store", store);
  std::vector<std::int64_t> out(3);
  run(words, {1}, {buffer(out), scalar(std::uint64_t{4'000'000'000}), scalar(std::int64_t{-5}), scalar(7U)});
  EXPECT_THAT(out, ElementsAre(4'000'000'000, -5, 7));
  run(words, {1}, {buffer(out), scalar(std::uint8_t{200}), scalar(std::uint8_t{100}), scalar(std::uint16_t{60'000})});
  EXPECT_THAT(out, ElementsAre(200, 100, 60'000));
  EXPECT_EQ(
      refusal([&] { run(words, {1}, {buffer(out), scalar(std::uint64_t{1} << 32), scalar(1), scalar(1U)}); }).reason,
      "argument 1 is 0x0000000100000000 (8 bytes), which does not fit parameter 1 of type unimem_u32");
  EXPECT_THAT(refusal([&] { run(words, {1}, {buffer(out), scalar(1U), scalar(std::int8_t{-1}), scalar(1U)}); }).reason,
              HasSubstr("which does not fit parameter 2 of type unimem_i32"))
      << "whether that is a sign cannot be told";
  EXPECT_THAT(out, ElementsAre(200, 100, 60'000));
}

TEST_F(CudaProgramTest, AScalarOfTheWrongSizeIsRefused) {
  auto const twice = program("scale", scale);
  std::vector<float> x(1, 1.0F);
  EXPECT_EQ(refusal([&] { run(twice, {1}, {buffer(x), scalar(2.0)}); }).reason,
            "argument 1 is 0x4000000000000000 (8 bytes), which does not fit parameter 1 of type unimem_f32");
  auto const vector = program("vector", "UNIMEM_KERNEL vector(float4 v) {}");
  EXPECT_THAT(refusal([&] { run(vector, {1}, {scalar(2.0)}); }).reason,
              HasSubstr("which does not fit parameter 0 of 16 bytes"));
}

TEST_F(CudaProgramTest, PlainCudaChecksItsOwnBounds) {
  auto const plain = program("twice", R"(
    extern "C" __global__ void twice(const float* in, float* out, unsigned count) {
      unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < count) out[i] = 2 * in[i];
    })");
  std::vector<float> in(1000, 3.0F), out(1001, 0.0F);
  run(plain, {1000}, {buffer(in), buffer(out), scalar(std::uint64_t{1000})});
  EXPECT_EQ(out.back(), 0.0F);
  out.pop_back();
  EXPECT_THAT(out, Each(6.0F));
  EXPECT_EQ(asked->shape[0], 4U) << "four blocks of 256 threads";
}

TEST_F(CudaProgramTest, PlainCudaMayBeATemplatesInstance) {
  auto const fill = program("fill<double>", R"(
    template <class T> __global__ void fill(T* out, T value) { out[blockIdx.x * blockDim.x + threadIdx.x] = value; })");
  std::vector<double> out(4 * 256, 0);
  run(fill, {1024}, {buffer(out), scalar(2.5)});
  EXPECT_THAT(out, Each(2.5));
}

TEST_F(CudaProgramTest, APlainRangeBeyondAnyGridIsRefused) {
  auto const plain = program("nothing", "__global__ void nothing() {}");
  EXPECT_THAT(refusal([&] { run(plain, {1024, 131'072, 1}, {}); }).reason,
              HasSubstr("a range of 1024 × 131072 × 1 items is larger than a grid"));
}

TEST_F(CudaProgramTest, ARefusedModuleIsAKernelError) {
  asked->load = Result::invalid_image;
  try {
    static_cast<void>(program("scale", scale));
    FAIL() << "it loaded";
  } catch (KernelError const& error) {
    EXPECT_EQ(error.reason,
              "the driver of cuda:0 does not load what was compiled: cuModuleLoadData: CUDA_ERROR_OF_THE_TEST");
  }
  asked->load = Result::out_of_memory;
  EXPECT_THROW(static_cast<void>(program("scale", scale)), DeviceError);
  asked->load = Result::illegal_address;
  EXPECT_THROW(static_cast<void>(program("scale", scale)), DeviceError) << "the device is lost, whatever the kernel";
}

TEST_F(CudaProgramTest, AFailureAfterLoadingUnloadsTheModule) {
  asked->get_function = Result::not_found;
  EXPECT_THROW(static_cast<void>(program("scale", scale)), DeviceError);
  asked->get_function = Result::success;
  asked->occupancy = Result::launch_out_of_resources;
  EXPECT_THROW(static_cast<void>(program("scale", scale)), DeviceError);
}

TEST_F(CudaProgramTest, AFailedLaunchNamesTheCall) {
  auto const twice = program("scale", scale);
  std::vector<float> x(1, 1.0F);
  asked->launch = Result::launch_out_of_resources;
  try {
    run(twice, {1}, {buffer(x), scalar(2.0F)});
    FAIL() << "it was launched";
  } catch (DeviceError const& error) {
    EXPECT_EQ(error.call, "cuLaunchKernel");
    EXPECT_EQ(error.code, static_cast<int>(Result::launch_out_of_resources));
    EXPECT_EQ(error.code_name, "CUDA_ERROR_OF_THE_TEST");
  }
}

TEST_F(CudaProgramTest, OneProgramServesManyThreads) {
  auto const set = program("set", R"(
    UNIMEM_KERNEL set(UNIMEM_BUFFER(unimem_i32, x), unimem_i32 value) {
      UNIMEM_DATA(unimem_i32, x)[UNIMEM_ITEM_Y * 5 + UNIMEM_ITEM_X] = value;
    })");
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> workers;
  for (int t = 0; t < 4; ++t) {
    workers.emplace_back([&, t] {
      for (int round = 0; round < 50; ++round) {
        std::vector<std::int32_t> x(100, -1);
        run(set, {5, 20}, {buffer(x), scalar(1000 * t + round)});
        wrong[static_cast<std::size_t>(t)] += x != std::vector<std::int32_t>(100, 1000 * t + round);
      }
    });
  }
  for (auto& worker : workers) worker.join();
  EXPECT_THAT(wrong, Each(0));
}

}  // namespace
}  // namespace unimem::detail::cuda
