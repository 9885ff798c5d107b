#include <unimem/buffer/buffer_pool.hpp>
#include <unimem/kernel/launch.hpp>

#include "buffer/buffer_fixture.hpp"

#include <array>
#include <cstdlib>
#include <string>

namespace unimem::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

// Read once, at the first buffer.
[[maybe_unused]] bool const checking = setenv("UNIMEM_CHECK", "2", 1) == 0;

using Span = std::span<std::uint32_t>;
using ConstSpan = std::span<const std::uint32_t>;

/// UNIMEM_CHECK=2 reports reads of bytes that nothing has written, with the buffer, the bytes and the place.
class Written : public BufferTest, public ::testing::WithParamInterface<std::string> {
 protected:
  Queue& queue() { return (GetParam() == "cpu" ? device("cpu") : static_cast<Device&>(sim)).default_queue(); }

  /// What reads `samples` on the queue's device, and writes `sums`.
  Event sum() { return launch(queue(), adding, Range{1}, read(samples), readwrite(sums)); }

  template <class Work>
  static std::string said(Work const& work) {
    ::testing::internal::CaptureStderr();
    work();
    return ::testing::internal::GetCapturedStderr();
  }
  static auto tells(std::string const& range) {
    return AllOf(HasSubstr("buffer 'samples'"), HasSubstr("nothing has written"), HasSubstr(range),
                 HasSubstr("read from"));
  }

  inline static Kernel const adding = Kernel("adding").host([](WorkItem, ConstSpan x, Span y) { y[0] += x[0]; });
  inline static Kernel const half = Kernel("half").host([](WorkItem i, Span x) { x[i.x] = 1; });
  inline static Kernel const ones = Kernel("ones").host([](WorkItem i, Span x) { x[i.x] = 1; });

  UnifiedBuffer<std::uint32_t> samples{100, on_sim("samples")};
  UnifiedBuffer<std::uint32_t> sums{1, on_sim("sums")};
};
INSTANTIATE_TEST_SUITE_P(Devices, Written, ::testing::Values("cpu", "sim"));

TEST_P(Written, ReportsAFreshReadOperand) {
  sums.fill(0);
  EXPECT_THAT(said([&] { sum().wait(); }), tells("[0, 400)"));
}

TEST_P(Written, ReportsAFreshReadwriteOperand) {
  samples.fill(1);
  auto const text = said([&] { sum().wait(); });
  EXPECT_THAT(text, AllOf(HasSubstr("buffer 'sums'"), HasSubstr("[0, 4)"), HasSubstr("nothing has written")));
  EXPECT_THAT(text, Not(HasSubstr("samples")));
}

TEST_P(Written, ReportsEachWayOfReadingOnTheHost) {
  std::array<std::uint32_t, 100> out{};
  auto const& constant = samples;
  std::vector<std::function<void()>> const ways{[&] { static_cast<void>(samples.host_view()); },
                                                [&] { static_cast<void>(samples.to_vector()); },
                                                [&] { samples.copy_to(out); },
                                                [&] { samples.copy_to_async(out).wait(); },
                                                [&] { static_cast<void>(samples.map(MapMode::read)); },
                                                [&] { static_cast<void>(samples.device_view(queue().device())); },
                                                [&] { static_cast<void>(samples.device_view(queue())); }};
  for (auto const& way : ways) {
    samples.discard();
    EXPECT_THAT(said(way), tells("[0, 400)"));
    EXPECT_EQ(said(way), "") << "each byte once";
  }
  samples.discard();
  EXPECT_THAT(said([&] { static_cast<void>(constant.at(7)); }), tells("[28, 32)"));
}

TEST_P(Written, ReportsOnlyWhatIsLacking) {
  sums.fill(0);
  samples.copy_from(counting(40), 10);
  EXPECT_THAT(said([&] { sum().wait(); }), tells("[0, 40), [200, 400)"));
}

TEST_P(Written, ReportsWhatWasForgotten) {
  sums.fill(0);
  auto const forgotten = [&](auto const& forget) {
    samples.fill(1);
    EXPECT_EQ(said([&] { sum().wait(); }), "");
    forget();
    EXPECT_THAT(said([&] { sum().wait(); }), tells("[0, 400)"));
  };
  forgotten([&] { samples.discard(); });
  forgotten([&] { samples.free(); });
  forgotten([&] { samples.reset(); });
}

TEST_P(Written, ReportsBytesOfAnEarlierOwner) {
  BufferPool pool({.manager = &manager, .device = &sim, .name = "samples"});
  PooledBuffer<std::uint32_t> first(pool, {100});
  first->fill(1);
  first.release();
  PooledBuffer<std::uint32_t> second(pool, {100});
  EXPECT_EQ(pool.stats().hits, 1U);
  EXPECT_THAT(said([&] { static_cast<void>(second->to_vector()); }), tells("[0, 400)"));
}

TEST_P(Written, ReportsWhatAResizeHasAdded) {
  samples.fill(1);
  samples.resize(150);
  EXPECT_THAT(said([&] { static_cast<void>(samples.to_vector()); }), tells("[400, 600)"));
}

TEST_P(Written, ReportsTheHalfThatAWriteOperandLeft) {
  static_cast<void>(said([&] { launch(queue(), half, Range{50}, write(samples)).wait(); }));
  EXPECT_THAT(said([&] { static_cast<void>(samples.to_vector()); }), tells("[200, 400)"));
}

TEST_P(Written, ReportsThatHalfToALaunchSubmittedBefore) {
  sums.fill(0);
  auto const text = said([&] {
    launch(queue(), half, Range{50}, write(samples));
    sum().wait();
  });
  EXPECT_THAT(text, AllOf(HasSubstr("not all of them were written"), tells("[200, 400)")));
  EXPECT_EQ(said([&] { static_cast<void>(samples.to_vector()); }), "") << "each byte once";
}

TEST_P(Written, GoesAlongWithACopy) {
  UnifiedBuffer<std::uint32_t> origin(100, on_sim("origin"));
  origin.copy_from(counting(50), 0);
  EXPECT_EQ(said([&] { copy(origin, samples); }), "");
  EXPECT_THAT(said([&] { static_cast<void>(samples.to_vector()); }), tells("[200, 400)"));
  launch(queue(), ones, Range{50}, write(origin, 0, 50)).wait();
  samples.discard();
  EXPECT_EQ(said([&] { copy(origin, samples); }), "");
  EXPECT_THAT(said([&] { static_cast<void>(samples.to_vector()); }), tells("[200, 400)"));
}

TEST_P(Written, IsSilentForWhatWasWritten) {
  std::vector<std::uint32_t> memory(100, 1);
  auto const text = said([&] {
    auto wrapped = manager.wrap(memory.data(), memory.size(), Location::host, Ownership::borrow());
    EXPECT_THAT(wrapped.to_vector(), Each(1U));
    sums.fill(0);
    auto const read_after = [&](auto const& write) {
      samples.discard();
      write();
      sum().wait();
      EXPECT_THAT(samples.to_vector(), Each(1U));
    };
    read_after([&] { samples.fill(1); });
    read_after([&] { std::ranges::fill(samples.host(), 1U); });
    read_after([&] { std::ranges::fill(samples.host_overwrite(), 1U); });
    read_after([&] { samples.copy_from(memory); });
    read_after([&] { samples.copy_from_async(memory); });
    read_after([&] { launch(queue(), ones, Range{100}, write(samples)); });
    read_after([&] {
      auto mapping = samples.map(MapMode::discard);
      std::ranges::fill(mapping, 1U);
    });
    read_after([&] {
      auto const there = samples.device(queue().device());
      queue().upload(there.native(), memory.data(), 400).wait();
    });
    EXPECT_THAT(samples.clone().to_vector(), Each(1U));
    samples.release_device();
    sum().wait();
  });
  EXPECT_EQ(text, "");
}

}  // namespace
}  // namespace unimem::testing
