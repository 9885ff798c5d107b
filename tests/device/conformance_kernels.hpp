#pragma once

#include "device/conformance_fixture.hpp"

#include <numeric>

namespace unimem {

/// Writes x + 100·y + 10000·z into the word of each item, numbered with x fastest.
[[nodiscard]] inline ProgramSource coordinates_kernel() {
  return {"coordinates",
          R"(UNIMEM_KERNEL coordinates(UNIMEM_BUFFER(unimem_u32, out), unimem_u32 width, unimem_u32 height) {
               unimem_u32 x = (unimem_u32)UNIMEM_ITEM_X, y = (unimem_u32)UNIMEM_ITEM_Y, z = (unimem_u32)UNIMEM_ITEM_Z;
               UNIMEM_DATA(unimem_u32, out)[(z * height + y) * width + x] += x + 100 * y + 10000 * z;
             })",
          [](Range range, std::size_t begin, std::size_t end, std::span<const HostArgument> arguments) {
            auto* const out = static_cast<std::uint32_t*>(arguments[0].data);
            for (auto i = begin; i < end; ++i) {
              auto const x = i % range.x, y = i / range.x % range.y, z = i / range.x / range.y;
              out[i] += static_cast<std::uint32_t>(x + 100 * y + 10000 * z);
            }
          }};
}

TEST_P(DeviceConformance, AKernelWorksOnItsWindowAlone) {
  constexpr std::size_t words = 100'000;
  Allocated const piece{device(), words * 4};
  std::vector<std::uint32_t> expected(words);
  std::iota(expected.begin(), expected.end(), 7U);
  auto queue = device().create_queue();
  queue.upload(piece.memory(), expected.data(), words * 4).wait();

  auto const program = device().compile(add_kernel());
  for (auto const& [from, count] :
       {std::pair<std::size_t, std::size_t>{0, 1}, {3, 1000}, {50'001, 49'999}, {0, words}}) {
    std::array const arguments{memory_argument(piece.window(from * 4, count * 4)),
                               scalar_argument(std::uint32_t{1000})};
    queue.run(program, Range{count}, arguments);
    for (std::size_t i = 0; i < count; ++i) expected[from + i] += 1000;
  }
  std::vector<std::uint32_t> result(words);
  queue.download(result.data(), piece.memory(), words * 4).wait();
  EXPECT_EQ(result, expected);
}

TEST_P(DeviceConformance, AKernelRunsOncePerItem) {
  constexpr std::size_t width = 97, height = 31, depth = 11;
  Allocated const piece{device(), width * height * depth * 4};
  auto queue = device().create_queue();
  queue.fill(piece.memory(), repeated(1, 0));
  std::array const arguments{memory_argument(piece.memory()), scalar_argument(std::uint32_t{width}),
                             scalar_argument(std::uint32_t{height})};
  queue.run(device().compile(coordinates_kernel()), Range{width, height, depth}, arguments);
  std::vector<std::uint32_t> result(width * height * depth), expected;
  queue.download(result.data(), piece.memory(), piece.memory().bytes).wait();
  for (std::uint32_t z = 0; z < depth; ++z) {
    for (std::uint32_t y = 0; y < height; ++y) {
      for (std::uint32_t x = 0; x < width; ++x) expected.push_back(x + 100 * y + 10000 * z);
    }
  }
  EXPECT_EQ(result, expected);
}

TEST_P(DeviceConformance, AnEmptyRangeIsNoWork) {
  Allocated const piece{device(), 4};
  auto queue = device().create_queue();
  std::array const arguments{memory_argument(piece.memory()), scalar_argument(std::uint32_t{1})};
  auto const event = queue.run(device().compile(add_kernel()), Range{0}, arguments);
  EXPECT_TRUE(event.ready());
  EXPECT_EQ(queue.completed(), 0U);
}

TEST_P(DeviceConformance, ARangeThatOverflowsIsRefused) {
  Allocated const piece{device(), 4};
  auto queue = device().create_queue();
  std::array const arguments{memory_argument(piece.memory()), scalar_argument(std::uint32_t{1})};
  auto const program = device().compile(add_kernel());
  EXPECT_THROW(queue.run(program, Range{SIZE_MAX, 2, 1}, arguments), InvalidArgument);
  try {
    queue.run(program, Range{std::size_t{1} << 63, 4}, arguments);
    FAIL() << "2^65 items were taken";
  } catch (InvalidArgument const& error) {
    EXPECT_STREQ(error.what(), "invalid range '9223372036854775808 x 4': must be below 2^64 items");
  }
  EXPECT_EQ(queue.record(), Event{});
}

TEST_P(DeviceConformance, AKernelWithoutTheNeededFormIsRefused) {
  auto kernel = add_kernel();
  if (!device().info().runs_host_form) kernel.source.clear();
  if (!device().info().compiles_source) kernel.host = nullptr;
  try {
    static_cast<void>(device().compile(kernel));
    FAIL() << "a kernel was made of nothing";
  } catch (KernelError const& error) {
    EXPECT_EQ(error.name, "add");
    EXPECT_THAT(error.reason, ::testing::HasSubstr(std::string(device().id())));
    EXPECT_THAT(error.reason, ::testing::HasSubstr("form"));
  }
}

TEST_P(DeviceConformance, AnotherBackendsProgramIsRefused) {
  struct Foreign final : Program {};
  auto queue = device().create_queue();
  EXPECT_THROW(queue.run(std::make_shared<Foreign const>(), Range{1}, {}), KernelError);
  EXPECT_EQ(queue.record(), Event{});
}

TEST_P(DeviceConformance, CapturedRunsKeepTheirOrder) {
  constexpr std::size_t words = 1000;
  Allocated const piece{device(), words * 4};
  auto queue = device().create_queue(), other = device().create_queue();
  queue.fill(piece.memory(), repeated(1, 0)).wait();
  auto const add = device().compile(add_kernel()), coordinates = device().compile(coordinates_kernel());
  auto const captured = queue.capture({
      {add, Range{words}, {memory_argument(piece.memory()), scalar_argument(std::uint32_t{1})}},
      {add, Range{0}, {memory_argument(piece.memory()), scalar_argument(std::uint32_t{1'000'000})}},
      {coordinates,
       Range{words},
       {memory_argument(piece.memory()), scalar_argument(std::uint32_t{words}), scalar_argument(std::uint32_t{1})}},
      {add, Range{10}, {memory_argument(piece.window(40, 40)), scalar_argument(std::uint32_t{5})}},
  });
  EXPECT_EQ(read(piece.memory()), repeated(words * 4, 0)) << "nothing has run";
  auto const first = queue.run(captured);
  std::array const needs{first};
  other.run(captured, needs).wait();
  EXPECT_TRUE(first.ready());
  std::vector<std::uint32_t> result(words), expected(words);
  for (std::uint32_t i = 0; i < words; ++i) expected[i] = 2 * (1 + i + (i >= 10 && i < 20 ? 5U : 0U));
  queue.download(result.data(), piece.memory(), words * 4).wait();
  EXPECT_EQ(result, expected);
}

TEST_P(DeviceConformance, CapturedRunsNeedWhatTheyNeed) {
  if (!GetParam().fail) GTEST_SKIP() << "a failure cannot be had on purpose";
  Allocated const piece{device(), 400};
  auto queue = device().create_queue(), other = device().create_queue();
  write(piece.memory(), repeated(400, 0));
  auto const add = device().compile(add_kernel());
  ProgramRun const run{add, Range{100}, {memory_argument(piece.memory()), scalar_argument(std::uint32_t{1})}};
  auto const captured = queue.capture({run, run});
  auto const failed = GetParam().fail(other);
  static_cast<void>(failed.wait_for_error());
  std::array const needs{failed};
  EXPECT_NE(queue.run(captured, needs).wait_for_error(), nullptr);
  EXPECT_EQ(read(piece.memory()), repeated(400, 0)) << "it did not begin";
}

TEST_P(DeviceConformance, CapturedRunsBelongToTheirDevice) {
  auto queue = device().create_queue();
  EXPECT_THROW(queue.run(std::shared_ptr<CapturedRuns const>{}), InvalidArgument);
  EXPECT_THROW(static_cast<void>(queue.capture({ProgramRun{}})), InvalidArgument);
  auto const nothing = queue.capture({});
  EXPECT_TRUE(queue.run(nothing).ready());
  struct Foreign final : CapturedRuns {};
  EXPECT_THROW(queue.run(std::make_shared<Foreign const>()), KernelError);
}

TEST_P(DeviceConformance, OneProgramRunsOnManyQueuesAtOnce) {
  constexpr std::size_t words = 300'000, rounds = 10;
  auto const program = device().compile(add_kernel());
  std::vector<Allocated> pieces;
  std::vector<Queue> queues;
  for (int i = 0; i < 3; ++i) {
    pieces.emplace_back(device(), words * 4);
    queues.push_back(device().create_queue());
    queues.back().fill(pieces.back().memory(), repeated(1, 0));
  }
  for (std::size_t round = 0; round < rounds; ++round) {
    for (std::uint32_t i = 0; i < queues.size(); ++i) {
      std::array const arguments{memory_argument(pieces[i].memory()), scalar_argument(i + 1)};
      queues[i].run(program, Range{words}, arguments);
    }
  }
  for (std::uint32_t i = 0; i < queues.size(); ++i) {
    std::vector<std::uint32_t> result(words);
    queues[i].download(result.data(), pieces[i].memory(), words * 4).wait();
    EXPECT_EQ(result, std::vector<std::uint32_t>(words, (i + 1) * rounds));
  }
}

}  // namespace unimem
