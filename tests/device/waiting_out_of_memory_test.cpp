#include <unimem/device/timed_wait.hpp>

#include "core/failing_allocations.hpp"
#include "device/task_queue.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <latch>
#include <new>

namespace unimem::detail {
namespace {

TEST(WaitingOutOfMemory, WhoSleepsUntilWorkEndsTakesNoMemory) {
  using namespace std::chrono_literals;
  TaskQueue queue;
  std::latch begun{1}, go{1};
  auto const event = queue.submit([&] {
    begun.count_down();
    go.wait();
  });
  begun.wait();  // the queue's own thread is in the middle of it, and allocates nothing there
  unimem::testing::fail_allocation(1);
  bool const ended = wait_until(event, std::chrono::steady_clock::now() + 20ms);
  EXPECT_THROW(static_cast<void>(::operator new(1)), std::bad_alloc) << "the wait took none";
  EXPECT_FALSE(ended);
  go.count_down();
  event.wait();
  EXPECT_TRUE(event.ready());
}

}  // namespace
}  // namespace unimem::detail
