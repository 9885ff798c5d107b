#include <unimem/core/error.hpp>
#include <unimem/kernel/launch.hpp>

#include "buffer/buffer_fixture.hpp"
#include "device/page_watch.hpp"

#include <cstdint>
#include <functional>
#include <future>
#include <string>
#include <utility>
#include <vector>

// Kernels that look at buffers with Tracking::pages: what the library copies, or would have to wait for, while they
// run. Each would hang if it went wrong, and ctest ends what hangs.

namespace unimem::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

class TrackedInWork : public BufferTest {
 protected:
  using Buffer = UnifiedBuffer<std::uint32_t>;
  static constexpr std::size_t count = 64 * 1024;

  void SetUp() override {
    auto const reason = detail::PageWatch::reason_unavailable();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }

  Buffer tracked(std::uint32_t value) {
    auto options = on_sim("tracked");
    options.tracking = Tracking::pages;
    Buffer buffer(count, options);
    static_cast<void>(buffer.host());
    static Kernel const set =
        Kernel("set").host([](WorkItem i, std::span<std::uint32_t> x, std::uint32_t to) { x[i.x] = to; });
    launch(sim.default_queue(), set, Range{count}, write(buffer), value).wait();
    return buffer;
  }

  /// What a kernel hears that looks, once the launch has returned. `operand`: what it may write.
  static std::string heard_in_kernel(Queue& queue, Buffer& operand, std::function<void()> const& look) {
    std::promise<void> launched;
    std::string heard = "nothing";
    auto const kernel =
        Kernel("looks").host([&, ready = launched.get_future().share()](WorkItem, std::span<std::uint32_t>) {
          ready.wait();
          try {
            look();
          } catch (std::exception const& error) {
            heard = error.what();
          }
        });
    auto const event = launch(queue, kernel, Range{1}, readwrite(operand));
    launched.set_value();
    event.wait();
    return heard;
  }

  static std::vector<std::pair<std::string, std::function<void(Buffer&)>>> ways_to_look() {
    return {
        {"host_view", [](Buffer& x) { static_cast<void>(x.host_view()); }},
        {"host", [](Buffer& x) { static_cast<void>(x.host()); }},
        {"sync_to_host", [](Buffer& x) { x.sync_to_host(); }},
        {"synchronize", [](Buffer& x) { x.synchronize(); }},
        {"map", [](Buffer& x) { static_cast<void>(x.map(MapMode::read)); }},
    };
  }
};

TEST_F(TrackedInWork, CopiesBehindARefusedLookAreNoWrites) {
  for (auto const& [name, look] : ways_to_look()) {
    SCOPED_TRACE(name);
    auto seen = tracked(7);
    UnifiedBuffer<std::uint32_t> other(1, on_sim("other"));
    other.fill(0);
    // The bytes would come by the queue that the kernel is on, behind it.
    auto const heard = heard_in_kernel(sim.default_queue(), other, [&, &look = look] {
      EXPECT_THROW(look(seen), UnsupportedOperation);
      EXPECT_EQ(seen.state(), BufferState::device_dirty) << "asked while the copy is under way";
      look(seen);
    });
    sim.synchronize();
    EXPECT_EQ(seen.state(), BufferState::device_dirty);
    EXPECT_THAT(heard, HasSubstr("would never end"));
    EXPECT_THAT(seen.to_vector(), Each(7U));
    auto const h = seen.host();
    EXPECT_THAT(h, Each(7U));
    h[3] = 8;
    EXPECT_EQ(device_bytes(seen, sim)[3], 8U) << "what the host writes afterwards counts";
  }
}

TEST_F(TrackedInWork, LookingAtWhatTheKernelItselfWritesIsRefused) {
  for (auto* const where : {&device("cpu"), &sim}) {
    for (auto const& [name, look] : ways_to_look()) {
      SCOPED_TRACE(std::string(where->id()) + ": " + name);
      auto own = tracked(7);
      auto queue = where->create_queue();
      EXPECT_THAT(heard_in_kernel(queue, own, [&, &look = look] { look(own); }), HasSubstr("would never end"));
      EXPECT_THAT(own.to_vector(), Each(7U));
      own.host()[5] = 6;
      EXPECT_EQ(device_bytes(own, sim)[5], 6U) << "what the host writes afterwards counts";
    }
  }
}

}  // namespace
}  // namespace unimem::testing
