#include <unimem/core/error.hpp>
#include <unimem/kernel/launch.hpp>

#include "buffer/buffer_fixture.hpp"
#include "device/page_watch.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <future>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace unimem::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr std::size_t page = 4096;

/// Tracking::pages on a simulated device: nothing that is written through a pointer is lost, and nothing is moved that
/// was not written.
class PageTracking : public BufferTest {
 protected:
  static constexpr std::size_t count = 64 * page / 4;
  Device& cpu = device("cpu");

  void SetUp() override {
    auto const reason = detail::PageWatch::reason_unavailable();
    if (!reason.empty()) GTEST_SKIP() << reason;
    if (detail::PageWatch::page_bytes() != page) GTEST_SKIP() << "pages of another size";
  }

  [[nodiscard]] BufferOptions tracked() {
    auto options = on_sim("tracked");
    options.tracking = Tracking::pages;
    return options;
  }

  /// A launch that adds one to every element.
  Event increment(BufferSlice<std::uint32_t> const& slice) { return increment_on(sim, slice); }
  static Event increment_on(Device& where, BufferSlice<std::uint32_t> const& slice) {
    static Kernel const kernel = Kernel("increment").host([](WorkItem i, std::span<std::uint32_t> x) { x[i.x] += 1; });
    return launch(where.default_queue(), kernel, Range{slice.size()}, readwrite(slice));
  }
  Event increment(UnifiedBuffer<std::uint32_t>& buffer) { return increment(buffer.slice(0)); }
};

TEST_F(PageTracking, AKeptPointerLosesNothing) {
  UnifiedBuffer<std::uint32_t> buffer(count, tracked());
  ASSERT_EQ(buffer.tracking(), Tracking::pages);
  auto const h = buffer.host();
  std::ranges::fill(h, 1U);
  increment(buffer);
  std::ignore = buffer.host_view();  // brought back: the pointer shows what the kernel did
  ASSERT_THAT(h, Each(2U));
  h[0] = 10;
  EXPECT_EQ(buffer.state(), BufferState::host_dirty);
  increment(buffer);
  auto expected = std::vector<std::uint32_t>(count, 3);
  expected[0] = 11;
  EXPECT_EQ(device_bytes(buffer, sim), expected);
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(buffer.statistics().host_to_device_bytes, count * 4 + page) << "the second upload is one page";
}

TEST_F(PageTracking, ReadingThroughAMutableViewMovesNothing) {
  UnifiedBuffer<std::uint32_t> buffer(count, tracked());
  buffer.copy_from(counting(count));
  buffer.sync_to_device();
  auto const before = moved(buffer.statistics());
  std::uint64_t sum = 0;
  for (auto const value : buffer.host()) sum += value;
  EXPECT_EQ(sum, std::uint64_t{count} * (count - 1) / 2);
  EXPECT_EQ(buffer.state(), BufferState::synchronized);
  buffer.sync_to_device();
  EXPECT_EQ(moved(buffer.statistics()), before);
}

TEST_F(PageTracking, OnlyThePagesThatWereWrittenTravel) {
  UnifiedBuffer<std::uint32_t> buffer(count, tracked());
  buffer.copy_from(counting(count));
  buffer.sync_to_device();
  auto const before = buffer.statistics();
  auto const h = buffer.host();
  h[0] = 7;
  h[30 * page / 4 + 5] = 8;
  h[count - 1] = 9;
  buffer.sync_to_device();
  auto const after = buffer.statistics();
  EXPECT_EQ(after.host_to_device_bytes - before.host_to_device_bytes, 3 * page);
  EXPECT_EQ(after.host_to_device_copies - before.host_to_device_copies, 3U);
  auto expected = counting(count);
  expected[0] = 7;
  expected[30 * page / 4 + 5] = 8;
  expected[count - 1] = 9;
  EXPECT_EQ(device_bytes(buffer, sim), expected);
}

TEST_F(PageTracking, AsynchronousSyncFindsUndeclaredWrites) {
  UnifiedBuffer<std::uint32_t> buffer(count, tracked());
  buffer.copy_from(counting(count));
  buffer.sync_to_device();
  auto const before = moved(buffer.statistics());
  buffer.host()[5] = 7;
  buffer.synchronize_async().wait();
  EXPECT_EQ(buffer.state(), BufferState::synchronized);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{before.up_bytes + page, before.up + 1, before.down_bytes, before.down}));
  auto expected = counting(count);
  expected[5] = 7;
  EXPECT_EQ(device_bytes(buffer, sim), expected);
}

TEST_F(PageTracking, WritesByThreadsAndSystemCallsAreSeen) {
  UnifiedBuffer<std::uint32_t> buffer(count, tracked());
  buffer.fill(1);
  buffer.sync_to_device();
  auto const h = buffer.host();
  std::thread{[&] { h[3 * page / 4] = 33; }}.join();
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  std::uint32_t const sent = 44;
  ASSERT_EQ(::write(ends[1], &sent, sizeof sent), 4);
  ASSERT_EQ(::read(ends[0], &h[7 * page / 4], sizeof sent), 4);
  close(ends[0]);
  close(ends[1]);
  increment(buffer);
  auto expected = std::vector<std::uint32_t>(count, 2);
  expected[3 * page / 4] = 34;
  expected[7 * page / 4] = 45;
  EXPECT_EQ(buffer.to_vector(), expected);
}

TEST_F(PageTracking, PagesOfBothSidesAreComparedBytewise) {
  UnifiedBuffer<std::uint32_t> buffer(count, tracked());
  buffer.copy_from(counting(count));
  buffer.sync_to_device();
  auto const h = buffer.host();
  increment(buffer.slice(0, 100));  // the first 400 bytes of page 0
  h[500] = 5;
  h[501] = 6;
  EXPECT_EQ(buffer.state(), BufferState::mixed);
  auto expected = counting(count);
  for (std::size_t i = 0; i < 100; ++i) ++expected[i];
  expected[500] = 5;
  expected[501] = 6;
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(device_bytes(buffer, sim), expected);
}

TEST_F(PageTracking, CopiesOfTheLibraryAreNoWrites) {
  UnifiedBuffer<std::uint32_t> buffer(20'000, tracked());
  buffer.fill(0);
  increment(buffer.slice(734, 1973)).wait();
  buffer.slice(1876, 191).sync_to_host();  // ends inside page 2
  increment(buffer.slice(2050, 5)).wait();
  buffer.copy_from(std::vector<std::uint32_t>(258, 9), 2754);
  std::vector<std::uint32_t> expected(20'000, 0);
  for (std::size_t i = 734; i < 734 + 1973; ++i) ++expected[i];
  for (std::size_t i = 2050; i < 2055; ++i) ++expected[i];
  std::fill_n(expected.begin() + 2754, 258, 9U);
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(device_bytes(buffer, sim), expected);
}

TEST_F(PageTracking, AFirstPartialTouchLosesNothing) {
  // The device has had the buffer first: one operation makes the host's memory, watches it and hands it out.
  using Buffer = UnifiedBuffer<std::uint32_t>;
  constexpr std::size_t where = 2704, elsewhere = count - 1;
  std::array<std::uint32_t, 1> const five{5};
  struct Step {
    char const* name;
    std::function<void(Buffer&)> take;
  };
  std::array const touches{
      Step{"at", [](Buffer& buffer) { buffer.at(where) = 5; }},
      Step{"host", [](Buffer& buffer) { buffer.host(where, 10)[0] = 5; }},
      Step{"host_overwrite", [](Buffer& buffer) { buffer.host_overwrite(where, 1)[0] = 5; }},
      Step{"copy_from", [&](Buffer& buffer) { buffer.copy_from(five, where); }},
      Step{"a kept pointer", [](Buffer& buffer) { const_cast<std::uint32_t&>(buffer.host_view()[where]) = 5; }},
  };
  std::array const next{
      Step{"nothing", [](Buffer&) {}},
      Step{"state", [](Buffer& buffer) { std::ignore = buffer.state(); }},
      Step{"statistics", [](Buffer& buffer) { std::ignore = buffer.statistics(); }},
      Step{"host_overwrite elsewhere", [](Buffer& buffer) { buffer.host_overwrite(elsewhere, 1)[0] = 1; }},
      Step{"mark_host_dirty elsewhere", [](Buffer& buffer) { buffer.mark_host_dirty(elsewhere, 1); }},
      Step{"prefetch", [this](Buffer& buffer) { buffer.prefetch(sim).wait(); }},
      Step{"release_device", [](Buffer& buffer) { buffer.release_device(); }},
  };
  static Kernel const ones = Kernel("ones").host([](WorkItem i, std::span<std::uint32_t> x) { x[i.x] = 1; });
  std::vector<std::uint32_t> expected(count, 1);
  expected[where] = 5;
  for (auto const& touch : touches) {
    for (auto const& step : next) {
      SCOPED_TRACE(std::string(touch.name) + ", then " + step.name);
      Buffer buffer(count, tracked());
      launch(sim.default_queue(), ones, Range{count}, write(buffer));
      touch.take(buffer);
      step.take(buffer);
      EXPECT_EQ(buffer.to_vector(), expected);
      buffer.sync_to_device();
      EXPECT_EQ(device_bytes(buffer, sim), expected);
    }
  }
}

TEST_F(PageTracking, OverwritingNewerDeviceBytesIsAConflict) {
  UnifiedBuffer<std::uint32_t> buffer(count, tracked());
  buffer.copy_from(counting(count));
  buffer.sync_to_device();
  auto const h = buffer.host();
  increment(buffer).wait();
  h[page / 4] = 1;
  try {
    std::ignore = buffer.host_view();
    FAIL() << "two unsynchronized writes met";
  } catch (CoherenceConflict const& conflict) {
    EXPECT_THAT(conflict.what(), HasSubstr("pages of 4096 bytes"));
    EXPECT_THAT(conflict.what(), HasSubstr(std::string(sim.id())));
  }
  EXPECT_THROW(std::ignore = buffer.host_view(), CoherenceConflict) << "until somebody decides";
  buffer.mark_device_dirty();
  auto expected = counting(count);
  for (auto& value : expected) ++value;
  EXPECT_EQ(buffer.to_vector(), expected);
}

TEST_F(PageTracking, AMarkDecidesAConflict) {
  UnifiedBuffer<std::uint32_t> buffer(count, tracked());
  buffer.copy_from(counting(count));
  buffer.sync_to_device();
  auto const h = buffer.host();
  increment(buffer).wait();
  h[1] = 100;
  buffer.mark_host_dirty();
  auto expected = counting(count);
  expected[1] = 100;
  EXPECT_EQ(device_bytes(buffer, sim), expected);
  EXPECT_EQ(buffer.statistics().conflicting_marks, 1U);
}

TEST_F(PageTracking, AHostKernelEndsNoTracking) {
  UnifiedBuffer<std::uint32_t> buffer(count, tracked());
  auto const h = buffer.host();
  std::ranges::fill(h, 1U);
  increment(buffer);
  increment_on(cpu, buffer.slice(0));
  EXPECT_EQ(buffer.tracking(), Tracking::pages);
  increment(buffer).wait();  // takes what the kernel on the host wrote, and nothing twice
  auto const before = buffer.statistics();
  EXPECT_EQ(before.host_to_device_bytes, 2 * count * 4);
  EXPECT_EQ(before.device_to_host_bytes, count * 4);
  increment(buffer).wait();
  EXPECT_EQ(moved(buffer.statistics()), moved(before)) << "the kernel's writes are no user's";
  std::ignore = buffer.host_view();
  ASSERT_THAT(h, Each(5U));
  h[0] = 10;
  increment(buffer).wait();
  auto expected = std::vector<std::uint32_t>(count, 6);
  expected[0] = 11;
  EXPECT_EQ(device_bytes(buffer, sim), expected);
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(buffer.statistics().host_to_device_bytes, 2 * count * 4 + page) << "one page";
}

TEST_F(PageTracking, WritesBesideAHostKernelAreSeen) {
  UnifiedBuffer<std::uint32_t> buffer(count, tracked());
  auto const h = buffer.host();
  std::ranges::copy(counting(count), h.begin());
  buffer.sync_to_device();
  increment_on(cpu, buffer.slice(100, 2000)).wait();  // begins and ends inside a page
  h[99] = 1;
  h[2100] = 2;
  auto expected = counting(count);
  for (std::size_t i = 100; i < 2100; ++i) ++expected[i];
  expected[99] = 1;
  expected[2100] = 2;
  EXPECT_EQ(device_bytes(buffer, sim), expected);
  EXPECT_EQ(buffer.to_vector(), expected);
}

TEST_F(PageTracking, TheStateIsKnownDuringAHostKernel) {
  UnifiedBuffer<std::uint32_t> buffer(count, tracked());
  auto const h = buffer.host();
  std::ranges::fill(h, 1U);
  buffer.sync_to_device();
  std::promise<void> told;
  auto const slow = Kernel("slow").host([&, heard = told.get_future().share()](WorkItem i, std::span<std::uint32_t> x) {
    if (i.x == 0) heard.wait();
    x[i.x] = 7;
  });
  auto const event = launch(cpu.default_queue(), slow, Range{count}, write(buffer));
  EXPECT_NE(buffer.state(), BufferState::synchronized) << "asked while the kernel waits for this thread";
  told.set_value();
  event.wait();
  h[1] = 8;
  auto expected = std::vector<std::uint32_t>(count, 7);
  expected[1] = 8;
  EXPECT_EQ(device_bytes(buffer, sim), expected);
  h[2] = 9;
  expected[2] = 9;
  EXPECT_EQ(device_bytes(buffer, sim), expected);
}

TEST_F(PageTracking, WritesSurviveARollBackElsewhere) {
  UnifiedBuffer<std::uint32_t> buffer(count, tracked());
  increment(buffer).wait();
  buffer.fill(1);
  std::promise<void> written;
  auto const bad = Kernel("bad").host([goes_on = written.get_future().share()](WorkItem, std::span<std::uint32_t>) {
    goes_on.wait();
    throw std::runtime_error("bad kernel");
  });
  auto part = buffer.slice(12 * page / 4, page / 4);
  auto queue = sim.create_queue();
  auto const failing = launch(queue, bad, Range{1}, write(part));
  std::ranges::fill(buffer.host(8 * page / 4, page / 4), 5U);  // brought here behind it, and written
  EXPECT_EQ(buffer.state(), BufferState::mixed);
  written.set_value();
  EXPECT_NE(failing.wait_for_error(), nullptr);
  EXPECT_ANY_THROW(std::ignore = part.host_view());
  increment(buffer.slice(8 * page / 4, 10)).wait();
  auto expected = std::vector<std::uint32_t>(page / 4, 5);
  std::fill_n(expected.begin(), 10, 6U);
  EXPECT_EQ(buffer.slice(8 * page / 4, page / 4).to_vector(), expected);
}

TEST_F(PageTracking, AsynchronousCopiesAreNoWrites) {
  constexpr std::size_t many = 4 << 20;
  UnifiedBuffer<std::uint32_t> buffer(many, tracked());
  auto part = buffer.slice(page, many - 2 * page);
  part.fill_async(7);  // makes the host's memory
  increment(buffer).wait();
  EXPECT_THAT(part.to_vector(), Each(8U));
  buffer.release_host();
  std::vector<std::uint32_t> const nines(many - 2 * page, 9);
  part.copy_from_async(nines);
  increment(buffer).wait();
  EXPECT_THAT(part.to_vector(), Each(10U));
}

TEST_F(PageTracking, AFailedHostKernelIsNoWrite) {
  UnifiedBuffer<std::uint32_t> buffer(count, tracked());
  auto const h = buffer.host();
  std::ranges::fill(h, 1U);
  buffer.sync_to_device();
  auto const bad = Kernel("bad").host([](WorkItem, std::span<std::uint32_t> x) {
    std::ranges::fill(x, 7U);
    throw std::runtime_error("bad kernel");
  });
  auto part = buffer.slice(100, 50);  // inside a page
  EXPECT_NE(launch(cpu.default_queue(), bad, Range{1}, write(part)).wait_for_error(), nullptr);
  h[5] = 2;  // beside it
  std::ignore = buffer.host_view(page / 4, 1);
  h[6] = 3;
  std::ignore = buffer.host_view(page / 4, 1);
  EXPECT_ANY_THROW(std::ignore = part.host_view()) << "told when its bytes are asked for";
  auto expected = std::vector<std::uint32_t>(count, 1);
  expected[5] = 2;
  expected[6] = 3;
  EXPECT_EQ(buffer.to_vector(), expected) << "the device's copy of what failed is the good one";
  EXPECT_EQ(device_bytes(buffer, sim), expected);
}

TEST_F(PageTracking, RandomWritesAgreeWithAnArray) {
  for (unsigned const seed : {1U, 2U, 3U}) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937 random{seed};
    UnifiedBuffer<std::uint32_t> buffer(count, tracked());
    auto const h = buffer.host();
    std::ranges::fill(h, 0U);
    std::vector<std::uint32_t> model(count, 0);
    for (int step = 0; step < 400; ++step) {
      switch (random() % 6) {
        case 0:
          // Only where the host is current: elsewhere a write would be a conflict.
          std::ignore = buffer.host_view();
          for (int i = 0; i < 20; ++i) {
            auto const at = random() % count;
            h[at] = model[at] = static_cast<std::uint32_t>(random());
          }
          break;
        case 1:
        case 2: {
          auto const offset = random() % count;
          auto const length = random() % (count - offset) + 1;
          increment_on(random() % 3 == 0 ? cpu : sim, buffer.slice(offset, length));
          for (std::size_t i = offset; i < offset + length; ++i) ++model[i];
          break;
        }
        case 3:
          buffer.synchronize();
          break;
        case 4: {
          auto const offset = random() % count;
          auto const length = random() % (count - offset);
          auto const data = counting(length, static_cast<std::uint32_t>(random()));
          buffer.copy_from(data, offset);
          std::ranges::copy(data, model.begin() + static_cast<std::ptrdiff_t>(offset));
          break;
        }
        default:
          ASSERT_EQ(buffer.to_vector(), model) << "at step " << step;
      }
    }
    EXPECT_EQ(buffer.to_vector(), model);
    EXPECT_EQ(device_bytes(buffer, sim), model);
  }
}

TEST_F(PageTracking, SmallBuffersMarkOnAccess) {
  UnifiedBuffer<std::uint32_t> small(100, tracked());
  EXPECT_EQ(small.tracking(), Tracking::access);
  small.host()[0] = 1;
  EXPECT_EQ(small.state(), BufferState::host_dirty);
  auto options = tracked();
  options.device = &device("cpu");
  UnifiedBuffer<std::uint32_t> shared(count, options);
  EXPECT_EQ(shared.tracking(), Tracking::access) << "what never moves need not be tracked";
}

}  // namespace
}  // namespace unimem::testing
