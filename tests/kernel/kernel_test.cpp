#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/kernel/launch.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <utility>
#include <vector>

namespace unimem {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Every test runs on the cpu, where nothing is copied, and on a simulated device, where everything that must be is.
class HostKernels : public ::testing::TestWithParam<char const*> {
 protected:
  [[nodiscard]] BufferOptions here() {
    BufferOptions options;
    options.manager = &manager;
    options.device = &on;
    return options;
  }
  [[nodiscard]] std::uint64_t copied(std::uint64_t bytes) const { return on.shares_storage_with_host() ? 0 : bytes; }

  Device& on = device(GetParam());
  MemoryManager manager;
  Kernel scale = Kernel("scale").host([](WorkItem i, std::span<float> x, float a) { x[i.x] *= a; });
  Kernel add = Kernel("add").host([](WorkItem i, std::span<const float> a, std::span<const float> b,
                                     std::span<float> sum) { sum[i.x] = a[i.x] + b[i.x]; });
};

TEST_P(HostKernels, ALaunchReadsInputsAndWritesOutput) {
  UnifiedBuffer<float> a(1000, here()), b(1000, here()), sum(1000, here());
  std::iota(a.host().begin(), a.host().end(), 0.0F);
  b.fill(1.0F);
  launch(add, Range{1000}, read(a), read(b), write(sum)).wait();
  EXPECT_EQ(sum.state(), BufferState::device_dirty);
  EXPECT_EQ(a.state(), BufferState::synchronized);
  for (std::size_t i = 0; i < 1000; ++i) ASSERT_EQ(sum.host_view()[i], static_cast<float>(i) + 1);
  EXPECT_EQ(a.statistics().host_to_device_bytes, copied(4000));
  EXPECT_EQ(sum.statistics().host_to_device_bytes, 0U) << "what is overwritten is not brought in";
  EXPECT_EQ(sum.statistics().device_to_host_bytes, copied(4000));
}

TEST_P(HostKernels, ChainedLaunchesMoveNothingBetweenThem) {
  UnifiedBuffer<float> x(1000, here());
  x.fill(1.0F);
  for (int i = 0; i < 10; ++i) launch(scale, Range{1000}, readwrite(x), 2.0F);
  EXPECT_THAT(x.host_view(), Each(1024.0F));
  EXPECT_EQ(x.statistics().host_to_device_copies + x.statistics().device_to_host_copies,
            on.shares_storage_with_host() ? 0U : 2U);
}

TEST_P(HostKernels, PartsOfABufferAreOperandsToo) {
  UnifiedBuffer<float> x(100, here());
  x.fill(1.0F);
  launch(scale, Range{10}, readwrite(x, 20, 10), 5.0F);
  std::vector<float> expected(100, 1.0F);
  std::fill_n(expected.begin() + 20, 10, 5.0F);
  EXPECT_EQ(x.to_vector(), expected);
  EXPECT_EQ(x.statistics().host_to_device_bytes, copied(40)) << "only the part moves";
  EXPECT_EQ(x.statistics().device_to_host_bytes, copied(40));
  EXPECT_THROW(std::ignore = readwrite(x, 95, 6), InvalidArgument);
}

TEST_P(HostKernels, OneBufferMayBeSeveralOperands) {
  UnifiedBuffer<float> x(100, here());
  x.fill(3.0F);
  launch(add, Range{100}, read(x), read(x), write(x));
  EXPECT_THAT(x.to_vector(), Each(6.0F));
}

TEST_P(HostKernels, ItemsOfEachDimensionAreVisitedOnce) {
  UnifiedBuffer<std::uint32_t> visits({5, 7, 11}, here());
  visits.fill(0);
  auto const visit = Kernel("visit").host([](WorkItem i, std::span<std::uint32_t> v) {
    v[i.x + 11 * (i.y + 7 * i.z)] += static_cast<std::uint32_t>(1 + i.x + 100 * i.y + 10'000 * i.z);
  });
  launch(visit, Range{11, 7, 5}, readwrite(visits));
  auto const result = visits.to_vector();
  for (std::uint32_t z = 0; z < 5; ++z) {
    for (std::uint32_t y = 0; y < 7; ++y) {
      for (std::uint32_t x = 0; x < 11; ++x) ASSERT_EQ(result[x + 11 * (y + 7 * z)], 1 + x + 100 * y + 10'000 * z);
    }
  }
}

TEST_P(HostKernels, LargeRangesAreSplitWithoutLosingAnItem) {
  UnifiedBuffer<float> x(3'000'001, here());
  x.fill(2.0F);
  launch(scale, Range{x.size()}, readwrite(x), 4.0F);
  EXPECT_THAT(x.to_vector(), Each(8.0F));
}

TEST_P(HostKernels, ByteBuffersBindToAnyElementType) {
  UnifiedBuffer<std::byte> bytes(400, here());
  bytes.fill(std::byte{0});
  launch(Kernel("one").host([](WorkItem i, std::span<float> x) { x[i.x] = 1.0F; }), Range{100}, write(bytes));
  float first = 0;
  std::memcpy(&first, bytes.host_view().data(), sizeof first);
  EXPECT_EQ(first, 1.0F);
  EXPECT_THROW(launch(scale, Range{1}, readwrite(bytes, 0, 399), 1.0F), KernelError);
  EXPECT_THROW(launch(scale, Range{1}, readwrite(bytes, 2, 4), 1.0F), KernelError);
}

TEST_P(HostKernels, WrongArgumentsAreRefusedBeforeAnythingMoves) {
  UnifiedBuffer<float> x(10, here());
  UnifiedBuffer<double> y(10, here());
  x.fill(1.0F);
  y.fill(1.0);
  EXPECT_THROW(launch(scale, Range{10}, readwrite(x)), KernelError);
  EXPECT_THROW(launch(scale, Range{10}, readwrite(x), readwrite(x)), KernelError);
  EXPECT_THROW(launch(scale, Range{10}, 1.0F, readwrite(x)), KernelError);
  EXPECT_THROW(launch(scale, Range{std::size_t{1} << 40, std::size_t{1} << 40}, readwrite(x), 1.0F), InvalidArgument);
  try {
    launch(scale, Range{10}, readwrite(y), 1.0F);
    FAIL() << "doubles were taken for floats";
  } catch (KernelError const& error) {
    EXPECT_EQ(error.name, "scale");
    EXPECT_THAT(error.reason, HasSubstr("double"));
  }
  try {
    launch(scale, Range{10}, readwrite(x), 2);
    FAIL() << "an int's bits were taken for a float";
  } catch (KernelError const& error) {
    EXPECT_THAT(error.reason, HasSubstr("argument 2 is of type int, the host form takes float"));
  }
  EXPECT_EQ(x.statistics().host_to_device_bytes + y.statistics().host_to_device_bytes, 0U);
  EXPECT_THAT(x.to_vector(), Each(1.0F));
}

TEST_P(HostKernels, AWritingFormForReadIsRefused) {
  auto options = here();
  options.name = "samples";
  UnifiedBuffer<float> x(10, options), y(10, here());
  x.fill(1.0F);
  y.fill(2.0F);
  auto const state = x.state();
  auto const copies = Kernel("copies").host(
      [](WorkItem i, std::span<float> to, std::span<float> from) { to[i.x] = std::exchange(from[i.x], 0.0F); });
  try {
    launch(copies, Range{10}, write(y), read(x));
    FAIL() << "what it writes would be on one side alone, and nobody would know";
  } catch (KernelError const& error) {
    EXPECT_EQ(error.name, "copies");
    EXPECT_EQ(error.reason,
              "argument 2 ('samples') is passed as read, the host form takes std::span<float>, which may write: pass "
              "readwrite or write, or take std::span<const float>");
  }
  EXPECT_EQ(x.state(), state);
  EXPECT_EQ(y.state(), state);
  EXPECT_EQ(x.statistics().host_to_device_copies + y.statistics().host_to_device_copies, 0U);
  EXPECT_THROW(launch(copies, Range{10}, write(y), read(x.slice(2, 3))), KernelError);
  EXPECT_THROW(launch(copies, Range{10}, write(y), read(x, 0, 0)), KernelError) << "nor when there is nothing to write";
  EXPECT_THAT(x.to_vector(), Each(1.0F));
  EXPECT_THAT(y.to_vector(), Each(2.0F));
  launch(copies, Range{10}, write(y), readwrite(x));
  EXPECT_THAT(x.to_vector(), Each(0.0F));
  EXPECT_THAT(y.to_vector(), Each(1.0F));
}

TEST_P(HostKernels, AReadingFormForWriteIsRefused) {
  UnifiedBuffer<float> a(10, here()), b(10, here()), sum(10, here());
  for (auto* const buffer : {&a, &b, &sum}) buffer->fill(1.0F);
  auto const state = b.state();
  try {
    launch(add, Range{10}, read(a), write(b), write(sum));
    FAIL() << "what was neither brought in nor written would count as written";
  } catch (KernelError const& error) {
    EXPECT_EQ(error.reason,
              "argument 2 is passed as write, the host form takes std::span<const float>, which cannot: pass read");
  }
  for (auto const* const buffer : {&a, &b, &sum}) {
    EXPECT_EQ(buffer->state(), state);
    EXPECT_EQ(buffer->statistics().host_to_device_copies, 0U);
    EXPECT_THAT(buffer->to_vector(), Each(1.0F));
  }
  launch(add, Range{10}, read(a), readwrite(b), write(sum));
  EXPECT_THAT(b.to_vector(), Each(1.0F)) << "what may be changed need not be";
  EXPECT_THAT(sum.to_vector(), Each(2.0F));
  EXPECT_EQ(b.statistics().host_to_device_bytes, copied(40));
}

TEST_P(HostKernels, AKernelWithoutAHostFormSaysSo) {
  UnifiedBuffer<float> x(10, here());
  x.fill(1.0F);
  auto const only_source = Kernel("only_source").source("__kernel void only_source(__global float* x) {}");
  try {
    launch(only_source, Range{10}, readwrite(x));
    FAIL() << "it ran";
  } catch (KernelError const& error) {
    EXPECT_EQ(error.name, "only_source");
    EXPECT_THAT(error.reason, HasSubstr("host form"));
  }
  EXPECT_EQ(x.state(), BufferState::host_dirty);
}

TEST_P(HostKernels, AnExceptionReachesEveryWaiter) {
  UnifiedBuffer<float> x(10, here());
  x.fill(1.0F);
  x.sync_to_device();
  auto const broken = Kernel("broken").host([](WorkItem i, std::span<float> v) {
    v[i.x] = 99.0F;
    if (i.x == 5) throw std::runtime_error("item five");
  });
  auto const event = launch(broken, Range{10}, readwrite(x));
  EXPECT_THROW(event.wait(), std::runtime_error);
  EXPECT_THROW(std::ignore = x.host_view(), std::runtime_error);
  if (on.shares_storage_with_host()) {
    EXPECT_THROW(std::ignore = x.host_view(), DataLost) << "one memory: there is no other copy";
  } else {
    EXPECT_THAT(x.to_vector(), Each(1.0F));
  }
}

TEST_P(HostKernels, QueuesOrderThemselvesThroughTheBuffersTheyShare) {
  auto first = on.create_queue(), second = on.create_queue();
  UnifiedBuffer<float> x(1000, here());
  x.fill(1.0F);
  auto const plus_one = Kernel("plus_one").host([](WorkItem i, std::span<float> v) { v[i.x] += 1; });
  for (int i = 0; i < 50; ++i) {
    launch(first, scale, Range{1000}, readwrite(x), 2.0F);
    launch(second, plus_one, Range{1000}, readwrite(x));
    launch(first, scale, Range{1000}, readwrite(x), 0.5F);
  }
  EXPECT_THAT(x.host_view(), Each(26.0F));
}

TEST_P(HostKernels, AProgramIsMadeOncePerDevice) {
  EXPECT_EQ(scale.program(on), scale.program(on));
  EXPECT_NE(scale.program(on), add.program(on));
}

TEST_P(HostKernels, ABuiltKernelHasItsProgram) {
  auto const& kernel = scale;
  EXPECT_FALSE(kernel.is_built(on));
  EXPECT_TRUE(kernel.build(on).is_same_as(kernel));
  EXPECT_TRUE(kernel.is_built(on));
  EXPECT_FALSE(kernel.is_built(make_sim())) << "built for one device, and no other";
  auto const built = kernel.program(on);
  UnifiedBuffer<float> x(10, here());
  x.fill(1.0F);
  launch(kernel, Range{10}, readwrite(x), 3.0F);
  EXPECT_EQ(kernel.build(on).program(on), built) << "once and for all";
  EXPECT_THAT(x.to_vector(), Each(3.0F));
}

TEST_P(HostKernels, AFailedBuildFailsLikeALaunch) {
  auto const only_source = Kernel("only_source").source("__kernel void only_source(__global float* x) {}");
  try {
    only_source.build(on);
    FAIL() << "it was built";
  } catch (KernelError const& error) {
    EXPECT_EQ(error.name, "only_source");
    EXPECT_THAT(error.reason, HasSubstr("host form"));
  }
  EXPECT_FALSE(only_source.is_built(on));
}

/// What InvalidArgument names, or empty if `call` throws none.
template <class Call>
std::string refused_argument(Call const& call) {
  try {
    call();
  } catch (InvalidArgument const& error) {
    return error.argument;
  }
  return {};
}

TEST_P(HostKernels, AMovedFromKernelIsRefused) {
  UnifiedBuffer<float> x(10, here());
  x.fill(1.0F);
  auto const taken = std::move(scale);
  EXPECT_EQ(refused_argument([&] { launch(scale, Range{10}, readwrite(x), 2.0F); }), "kernel");
  EXPECT_EQ(refused_argument([&] { launch(on.default_queue(), scale, Range{10}, readwrite(x), 2.0F); }), "kernel");
  EXPECT_EQ(refused_argument([&] { launch(scale, Range{0}); }), "kernel");
  EXPECT_EQ(refused_argument([&] { std::ignore = scale.program(on); }), "kernel");
  EXPECT_EQ(refused_argument([&] { std::ignore = scale.build(on); }), "kernel");
  EXPECT_EQ(refused_argument([&] { std::ignore = scale.is_built(on); }), "kernel");
  EXPECT_EQ(refused_argument([&] { scale.source("anything"); }), "kernel");
  EXPECT_EQ(refused_argument([&] { scale.host([](WorkItem) {}); }), "kernel");
  EXPECT_EQ(scale.name(), "") << "asking what it has gives nothing";
  EXPECT_FALSE(scale.has_source());
  EXPECT_FALSE(scale.has_host());
  EXPECT_THAT(scale.parameters(), IsEmpty());
  EXPECT_EQ(x.state(), BufferState::host_dirty);
  scale = taken;
  launch(scale, Range{10}, readwrite(x), 2.0F);
  EXPECT_THAT(x.to_vector(), Each(2.0F)) << "it may be assigned to";
}

TEST_P(HostKernels, AMovedFromQueueIsRefused) {
  UnifiedBuffer<float> x(10, here());
  x.fill(1.0F);
  auto const state = x.state();
  auto queue = on.create_queue();
  auto taken = std::move(queue);
  EXPECT_EQ(refused_argument([&] { launch(queue, scale, Range{10}, readwrite(x), 2.0F); }), "queue");
  EXPECT_EQ(refused_argument([&] { launch(queue, scale, Range{0}, readwrite(x), 2.0F); }), "queue");
  EXPECT_EQ(refused_argument([&] { std::ignore = x.device(queue); }), "queue");
  EXPECT_EQ(refused_argument([&] { x.prefetch(queue); }), "queue");
  EXPECT_EQ(refused_argument([&] { std::ignore = manager.acquire(on, Location::device, 100, {.queue = &queue}); }),
            "queue");
  EXPECT_EQ(x.state(), state);
  EXPECT_EQ(x.statistics().host_to_device_copies, 0U);
  launch(taken, scale, Range{10}, readwrite(x), 2.0F);
  EXPECT_THAT(x.to_vector(), Each(2.0F));
}

TEST_P(HostKernels, MovedFromOperandsAreNamed) {
  UnifiedBuffer<float> x(10, here());
  x.fill(1.0F);
  auto slice = x.slice(0, 5);
  auto const kept = std::move(slice);
  EXPECT_EQ(refused_argument([&] { launch(scale, Range{5}, readwrite(slice), 2.0F); }), "slice");
  std::vector<LaunchArgument> arguments(2);
  arguments[0].buffer = readwrite(x);
  EXPECT_EQ(refused_argument([&] { launch_kernel(nullptr, scale, Range{10}, arguments); }), "argument 2");
  arguments[0].buffer.element = nullptr;
  EXPECT_EQ(refused_argument([&] { launch_kernel(nullptr, scale, Range{10}, arguments); }), "argument 1");
  auto const taken = std::move(x);
  EXPECT_EQ(refused_argument([&] { launch(scale, Range{10}, readwrite(x), 2.0F); }), "buffer");
  EXPECT_THAT(taken.to_vector(), Each(1.0F));
  EXPECT_EQ(kept.size(), 5U);
}

INSTANTIATE_TEST_SUITE_P(Devices, HostKernels, ::testing::Values("cpu", "sim:memory=64MiB"),
                         [](auto const& tested) { return std::string(tested.param).substr(0, 3); });

}  // namespace
}  // namespace unimem
