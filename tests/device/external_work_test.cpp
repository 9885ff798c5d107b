#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/external_work.hpp>
#include <unimem/device/queue.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace unimem::testing {
namespace {

std::exception_ptr broken() {
  return std::make_exception_ptr(std::runtime_error("broken"));
}

TEST(ExternalWork, EndsWhenItsEndIsTold) {
  ExternalWork work;
  auto const event = work.event();
  EXPECT_FALSE(event.ready());
  int written = 0;
  std::jthread const other([&] {
    written = 7;
    work.succeed();
  });
  event.wait();
  EXPECT_EQ(written, 7);
  EXPECT_TRUE(event.ready());
  EXPECT_EQ(event.error(), nullptr);
}

TEST(ExternalWork, FailsWithWhatWasTold) {
  ExternalWork begun;
  ExternalWork not_begun;
  begun.fail(broken());
  not_begun.fail(broken(), ExternalWork::Began::no);
  EXPECT_THROW(begun.event().wait(), std::runtime_error);
  EXPECT_FALSE(begun.event().never_began());
  EXPECT_THROW(not_begun.event().wait(), std::runtime_error);
  EXPECT_TRUE(not_begun.event().never_began());
}

TEST(ExternalWork, GivenUpIsFailed) {
  Event event;
  {
    ExternalWork const work;
    event = work.event();
  }
  EXPECT_THROW(event.wait(), UnsupportedOperation);
}

TEST(ExternalWork, OverwritesNoOtherByMoving) {
  ExternalWork first;
  ExternalWork second;
  auto const event = first.event();
  first = std::move(second);
  EXPECT_THROW(event.wait(), UnsupportedOperation);
  auto const moved = first.event();
  EXPECT_FALSE(moved.ready());
  first.succeed();
  moved.wait();
}

TEST(ExternalWork, ControlBlocksServeAgainInOrder) {
  std::vector<Event> events;
  std::uint64_t queue = 0;
  for (int i = 0; i < 100; ++i) {
    ExternalWork work;
    events.push_back(work.event());
    if (queue == 0) queue = events.back().queue_id();
    EXPECT_EQ(events.back().queue_id(), queue) << "one at a time needs one block";
    EXPECT_FALSE(events.back().ready());
    i % 3 == 0 ? work.fail(broken()) : work.succeed();
  }
  for (std::size_t i = 0; i < events.size(); ++i) EXPECT_EQ(events[i].error() != nullptr, i % 3 == 0) << i;
}

TEST(ExternalWork, WorkOfQueuesWaitsForIt) {
  auto queue = device("cpu").create_queue();
  ExternalWork work;
  queue.wait(work.event());
  auto const behind = queue.mark();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(behind.ready());
  work.succeed();
  behind.wait();
}

}  // namespace
}  // namespace unimem::testing
