#include <unimem/buffer/detail/published_state.hpp>
#include <unimem/device/sim.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

// What threads without the lock may see of a buffer: never a mixture of two states.

namespace unimem::detail {
namespace {

TEST(PublishedState, AMemoryThatStaysIsSeenWhileOthersComeAndGo) {
  auto& stays = make_sim({});
  auto& comes = make_sim({});
  PublishedState published;
  PublishedState::Facts const alone{.only_on = &stays}, both{.only_on = &comes, .on_several = true};
  published.publish(alone);
  std::atomic<bool> done{false};
  int missed = 0;
  {
    std::jthread const looks([&] {
      while (!done) missed += published.has_memory_on(stays) ? 0 : 1;
    });
    for (int i = 0; i < 200'000; ++i) published.publish(i % 2 == 0 ? both : alone);
    done = true;
  }
  EXPECT_EQ(missed, 0);
  EXPECT_TRUE(published.has_memory_on(stays));
  EXPECT_FALSE(published.has_memory_on(comes));
}

}  // namespace
}  // namespace unimem::detail
