#include <unimem/kernel/graph.hpp>
#include <unimem/kernel/launch.hpp>

#include "buffer/buffer_fixture.hpp"

#include <cstdlib>
#include <string>

namespace unimem::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

// Read once, at the first launch.
[[maybe_unused]] bool const checking = setenv("UNIMEM_CHECK", "2", 1) == 0;

using Span = std::span<std::uint32_t>;
using ConstSpan = std::span<const std::uint32_t>;

/// UNIMEM_CHECK=2 reports what a kernel does outside of its intents, with the buffer, the bytes and the launch.
class CheckedLaunch : public BufferTest, public ::testing::WithParamInterface<std::string> {
 protected:
  Queue& queue() { return (GetParam() == "cpu" ? device("cpu") : static_cast<Device&>(sim)).default_queue(); }

  template <class Work>
  static std::string said(Work const& work) {
    ::testing::internal::CaptureStderr();
    work();
    return ::testing::internal::GetCapturedStderr();
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, CheckedLaunch, ::testing::Values("cpu", "sim"));

TEST_P(CheckedLaunch, ReportsAWriteThatFillsHalf) {
  static Kernel const half = Kernel("half").host([](WorkItem i, Span x) { x[i.x] = 1; });
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim("samples"));
  auto const text = said([&] { launch(queue(), half, Range{50}, write(buffer)).wait(); });
  EXPECT_THAT(text,
              AllOf(HasSubstr("half"), HasSubstr("samples"), HasSubstr("[200, 400)"), HasSubstr("launched from")));
}

TEST_P(CheckedLaunch, ReportsARangeBeyondTheBuffer) {
  static Kernel const over = Kernel("over").host([](WorkItem i, Span x) { x.data()[i.x] = 1; });
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim("samples"));
  auto const text = said([&] { launch(queue(), over, Range{110}, write(buffer)).wait(); });
  EXPECT_THAT(text, AllOf(HasSubstr("samples"), HasSubstr("[400, 440)"), HasSubstr("beyond")));
  EXPECT_THAT(buffer.to_vector(), Each(1U));
}

TEST_P(CheckedLaunch, ReportsAWriteThroughAReadOperand) {
  static Kernel const cast =
      Kernel("cast").host([](WorkItem i, ConstSpan x) { const_cast<std::uint32_t&>(x[i.x + 3]) = 77; });
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim("samples"));
  buffer.fill(5);
  auto const text = said([&] { launch(queue(), cast, Range{2}, read(buffer)).wait(); });
  EXPECT_THAT(text, AllOf(HasSubstr("samples"), HasSubstr("passed as read")));
  EXPECT_THAT(buffer.to_vector(), Each(5U));
}

TEST_P(CheckedLaunch, ReportsOperandsThatOverlapInPart) {
  static Kernel const move = Kernel("move").host([](WorkItem i, ConstSpan from, Span to) { to[i.x] = from[i.x]; });
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim("samples"));
  buffer.fill(5);
  auto const text =
      said([&] { launch(queue(), move, Range{50}, read(buffer, 0, 50), readwrite(buffer, 25, 50)).wait(); });
  EXPECT_THAT(text, AllOf(HasSubstr("samples"), HasSubstr("[100, 200)"), HasSubstr("overlap")));
}

TEST_P(CheckedLaunch, IsSilentForCorrectLaunches) {
  static Kernel const twice =
      Kernel("twice").host([](WorkItem i, ConstSpan x, Span y, std::uint32_t a) { y[i.x] = a * x[i.x]; });
  UnifiedBuffer<std::uint32_t> buffer(101, on_sim("samples")), other(101, on_sim("other")), none(0, on_sim("none"));
  buffer.fill(3);
  auto const text = said([&] {
    launch(queue(), twice, Range{101}, read(buffer), write(other), 2U);
    launch(queue(), twice, Range{101}, read(other), write(other), 2U);  // in place
    launch(queue(), twice, Range{7}, read(other, 1, 7), readwrite(buffer, 3, 50), 1U);
    launch(queue(), twice, Range{0}, read(none), write(none), 1U);
    queue().synchronize();
    auto const graph = capture(queue(), [&] { launch(queue(), twice, Range{101}, read(other), readwrite(other), 2U); });
    graph.launch(queue()).wait();
  });
  EXPECT_EQ(text, "");
  EXPECT_THAT(other.to_vector(), Each(24U));
  EXPECT_EQ(buffer.to_vector()[3], 12U);
}

}  // namespace
}  // namespace unimem::testing
