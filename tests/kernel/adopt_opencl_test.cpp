#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/opencl.hpp>
#include <unimem/kernel/launch.hpp>
#include <unimem/kernel/native.hpp>

#include "device/users_opencl.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

// Contexts and queues of the user's own, and what a user does in them that no launch can: images and samplers.

namespace unimem {
namespace {

using ::testing::Each;

class AdoptedOpenCl : public OnUsersOpenCl {};

TEST_F(AdoptedOpenCl, WorkGoesInOrderWithTheOwners) {
  auto& ours = adopt_context(user->context, user->hardware);
  auto queue = adopt_queue(ours, user->queue);
  EXPECT_EQ(queue.native<cl_command_queue>(), user->queue);
  auto const memory = ours.allocate(1000, Location::device);
  std::vector<std::uint8_t> const news(500, 3);
  std::vector<std::uint8_t> back(1000);
  for (int turn = 0; turn < 20; ++turn) {
    user->fill(memory, 7);
    queue.upload(memory.window(0, 500), news.data(), 500);
    user->fill(memory.window(250, 250), 9);
    queue.download(back.data(), memory, 1000).wait();
    std::vector<std::uint8_t> expected(1000, 7);
    std::fill_n(expected.begin(), 250, 3);
    std::fill_n(expected.begin() + 250, 250, 9);
    ASSERT_EQ(back, expected) << turn;
  }
  ours.release(memory, Location::device);
}

TEST_F(AdoptedOpenCl, OtherQueuesWaitForItsWork) {
  auto& ours = adopt_context(user->context, user->hardware);
  auto queue = adopt_queue(ours, user->queue);
  auto const add = Kernel("add").source(R"(UNIMEM_KERNEL add(UNIMEM_BUFFER(unimem_u32, x), unimem_u32 amount) {
    UNIMEM_DATA(unimem_u32, x)[UNIMEM_ITEM_X] += amount; })");
  UnifiedBuffer<std::uint32_t> x(1000, {.device = &ours});
  x.fill(0U);
  for (int turn = 0; turn < 10; ++turn) {
    launch(queue, add, Range{x.size()}, readwrite(x), 1U);
    launch(ours.default_queue(), add, Range{x.size()}, readwrite(x), 10U);
    launch(device("opencl:0").default_queue(), add, Range{x.size()}, readwrite(x), 100U);
  }
  EXPECT_THAT(x.to_vector(), Each(1110U));
}

TEST_F(AdoptedOpenCl, TheContextAndTheQueueMayGoFirst) {
  auto& ours = adopt_context(user->context, user->hardware);
  auto queue = adopt_queue(ours, user->queue);
  user->release();
  auto const two = Kernel("two").source(R"(UNIMEM_KERNEL two(UNIMEM_BUFFER(unimem_u32, x)) {
    UNIMEM_DATA(unimem_u32, x)[UNIMEM_ITEM_X] *= 2; })");
  UnifiedBuffer<std::uint32_t> x(1000, {.device = &ours});
  x.fill(21U);
  launch(queue, two, Range{x.size()}, readwrite(x)).wait();
  EXPECT_THAT(x.to_vector(), Each(42U));
}

TEST_F(AdoptedOpenCl, AQueueOfOursThatGoesLeavesNothingInTheOwners) {
  auto& ours = adopt_context(user->context, user->hardware);
  auto const memory = ours.allocate(100, Location::device);
  std::vector<cl_uint> references;
  for (int turn = 0; turn < 10; ++turn) {
    Event event;
    {
      auto queue = adopt_queue(ours, user->queue);
      event = queue.fill(memory, std::array{std::byte{3}});
    }  // a queue waits for its work
    EXPECT_TRUE(event.ready());
    EXPECT_EQ(event.error(), nullptr);
    EXPECT_EQ(UNIMEM_USERS(clFinish)(user->queue), CL_SUCCESS);
    references.push_back(user->references_to_queue());
  }
  EXPECT_LE(references.back(), references.front() + 1) << "drivers keep a queue's last event, and that its queue";
  EXPECT_LE(references.back(), 3U);
  ours.release(memory, Location::device);
}

TEST_F(AdoptedOpenCl, TheSameHandlesAreTheSameDevice) {
  auto& ours = adopt_context(user->context, user->hardware);
  EXPECT_EQ(&adopt_context(user->context, user->hardware), &ours);
  EXPECT_EQ(&device(ours.id()), &ours);
  UsersOpenCl const other;
  auto& another = adopt_context(other.context, other.hardware);
  EXPECT_NE(&another, &ours);
  EXPECT_NE(another.id(), ours.id());
  for (Device& listed : devices()) EXPECT_NE(&listed, &ours);
  EXPECT_THROW(static_cast<void>(device("opencl:0,context=1000000")), InvalidArgument);
}

TEST_F(AdoptedOpenCl, ItsMemoryCountsAsThatOfTheHardware) {
  auto& ours = adopt_context(user->context, user->hardware);
  auto const before = device("opencl:0").memory_info().free_bytes;
  auto const memory = ours.allocate(1000, Location::device);
  EXPECT_EQ(device("opencl:0").memory_info().free_bytes, before - 1000);
  ours.release(memory, Location::device);
}

TEST_F(AdoptedOpenCl, CopiesAreTimedWhereTheOwnersQueueIs) {
  auto const timed_copies = [](Device& on, Queue& queue) {
    auto const memory = on.allocate(1 << 20, Location::device);
    std::vector<std::byte> const news(memory.bytes);
    auto const before = on.transfers();
    queue.upload(memory, news.data(), news.size()).wait();
    auto const moved = on.transfers().since(before);
    on.release(memory, Location::device);
    return moved.host_to_device_copies - moved.untimed_copies;
  };
  auto& told = device("opencl:0,profile=1");
  if (timed_copies(told, told.default_queue()) == 0) GTEST_SKIP() << "the driver keeps no times";
  UsersOpenCl const timed{CL_QUEUE_PROFILING_ENABLE};
  auto& ours = adopt_context(timed.context, timed.hardware);
  auto queue = adopt_queue(ours, timed.queue);
  EXPECT_EQ(timed_copies(ours, queue), 1U);
  EXPECT_EQ(timed_copies(ours, ours.default_queue()), 0U) << "nobody asked for that";
}

/// A kernel that reads an image between its pixels, which takes a sampler.
class SamplingKernel {
 public:
  SamplingKernel(cl_context context, cl_device_id hardware) {
    auto const* text =
        "__kernel void between(read_only image2d_t from, sampler_t linear, __global float* to, uint first) {\n"
        "  int x = get_global_id(0), y = get_global_id(1);\n"
        "  to[first + y * get_global_size(0) + x] = read_imagef(from, linear, (float2)(x + 1.0f, y + 0.5f)).x;\n"
        "}\n";
    cl_int code = CL_SUCCESS;
    program_ = UNIMEM_USERS(clCreateProgramWithSource)(context, 1, &text, nullptr, &code);
    EXPECT_EQ(UNIMEM_USERS(clBuildProgram)(program_, 1, &hardware, "", nullptr, nullptr), CL_SUCCESS);
    kernel_ = UNIMEM_USERS(clCreateKernel)(program_, "between", &code);
    EXPECT_EQ(code, CL_SUCCESS);
    sampler_ = UNIMEM_USERS(clCreateSampler)(context, CL_FALSE, CL_ADDRESS_CLAMP_TO_EDGE, CL_FILTER_LINEAR, &code);
    EXPECT_EQ(code, CL_SUCCESS);
  }
  SamplingKernel(SamplingKernel const&) = delete;
  SamplingKernel& operator=(SamplingKernel const&) = delete;
  ~SamplingKernel() {
    EXPECT_EQ(UNIMEM_USERS(clReleaseSampler)(sampler_), CL_SUCCESS);
    EXPECT_EQ(UNIMEM_USERS(clReleaseKernel)(kernel_), CL_SUCCESS);
    EXPECT_EQ(UNIMEM_USERS(clReleaseProgram)(program_), CL_SUCCESS);
  }

  void enqueue(cl_command_queue queue, cl_mem image, DeviceMemory to, std::array<std::size_t, 2> size) const {
    auto* const object = reinterpret_cast<cl_mem>(to.object);
    auto const first = static_cast<cl_uint>(to.offset / sizeof(float));
    auto const set = [&](cl_uint index, auto const& value) {
      EXPECT_EQ(UNIMEM_USERS(clSetKernelArg)(kernel_, index, sizeof value, &value), CL_SUCCESS);
    };
    set(0, image), set(1, sampler_), set(2, object), set(3, first);
    EXPECT_EQ(
        UNIMEM_USERS(clEnqueueNDRangeKernel)(queue, kernel_, 2, nullptr, size.data(), nullptr, 0, nullptr, nullptr),
        CL_SUCCESS);
  }

 private:
  cl_program program_ = nullptr;
  cl_kernel kernel_ = nullptr;
  cl_sampler sampler_ = nullptr;
};

TEST_F(AdoptedOpenCl, AnImageIsMadeOfABufferAndSampledIntoAnother) {
  cl_bool has_images = CL_FALSE;
  EXPECT_EQ(
      UNIMEM_USERS(clGetDeviceInfo)(user->hardware, CL_DEVICE_IMAGE_SUPPORT, sizeof has_images, &has_images, nullptr),
      CL_SUCCESS);
  if (has_images == CL_FALSE) GTEST_SKIP() << "the device has no images";
  auto& ours = adopt_context(user->context, user->hardware);
  auto queue = adopt_queue(ours, user->queue);
  constexpr std::size_t width = 16, height = 8, lead = 12;
  cl_image_format const format{CL_RGBA, CL_FLOAT};
  cl_image_desc shape{};
  shape.image_type = CL_MEM_OBJECT_IMAGE2D, shape.image_width = width, shape.image_height = height;
  cl_int code = CL_SUCCESS;
  auto* const image = UNIMEM_USERS(clCreateImage)(user->context, CL_MEM_READ_ONLY, &format, &shape, nullptr, &code);
  ASSERT_EQ(code, CL_SUCCESS);
  SamplingKernel const between{user->context, user->hardware};
  UnifiedBuffer<float> pixels(lead + 4 * width * height, {.device = &ours}),
      out(lead + width * height, {.device = &ours});
  std::vector<float> values(pixels.size());
  std::iota(values.begin(), values.end(), 0.0F);
  pixels.copy_from(values);
  out.fill(-1.0F);
  with_native(
      queue,
      [&](cl_command_queue theirs, DeviceMemory from, DeviceMemory to) {
        EXPECT_EQ(theirs, user->queue);
        std::array<std::size_t, 3> const origin{}, region{width, height, 1};
        EXPECT_EQ(
            UNIMEM_USERS(clEnqueueCopyBufferToImage)(theirs, reinterpret_cast<cl_mem>(from.object), image, from.offset,
                                                     origin.data(), region.data(), 0, nullptr, nullptr),
            CL_SUCCESS);
        between.enqueue(theirs, image, to, {width, height});
      },
      read(pixels, lead, 4 * width * height), write(out, lead, width * height))
      .wait();
  std::vector<float> expected(out.size(), -1.0F);
  for (std::size_t y = 0; y < height; ++y) {
    for (std::size_t x = 0; x < width; ++x) {
      auto const red = [&](std::size_t column) { return values[lead + 4 * (y * width + std::min(column, width - 1))]; };
      expected[lead + y * width + x] = (red(x) + red(x + 1)) / 2;
    }
  }
  EXPECT_EQ(out.to_vector(), expected);
  EXPECT_EQ(UNIMEM_USERS(clReleaseMemObject)(image), CL_SUCCESS);
}

}  // namespace
}  // namespace unimem
