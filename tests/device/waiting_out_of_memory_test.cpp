#include <unimem/device/timed_wait.hpp>

#include "core/failing_allocations.hpp"
#include "device/queue_control.hpp"
#include "device/task_queue.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <exception>
#include <latch>
#include <new>
#include <stdexcept>
#include <utility>

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

/// What work fails with, and its number.
class Fault : public std::runtime_error {
 public:
  explicit Fault(Ticket of) : std::runtime_error("fault"), ticket(of) {}
  Ticket ticket;
};

/// Whose failure is told of the ticket; 0: of none.
Ticket told(QueueControl& control, Ticket ticket) {
  try {
    if (auto const failure = control.error(ticket)) std::rethrow_exception(failure);
  } catch (Fault const& fault) {
    return fault.ticket;
  }
  return 0;
}

TEST(FailuresOutOfMemory, AreEnteredWhenThereIsMemory) {
  auto& control = QueueControl::create();
  constexpr Ticket many = 8;
  auto const end = [&](bool fails, bool without_memory) {
    auto const ticket = control.submit().ticket();
    auto failure = fails ? std::make_exception_ptr(Fault{ticket}) : nullptr;
    if (without_memory) unimem::testing::fail_allocation(1);
    control.finish(ticket, std::move(failure));
    unimem::testing::fail_allocation(0);
  };
  for (Ticket ticket = 1; ticket <= many; ++ticket) end(ticket % 2 == 0, true);  // 2, 4, 6 and 8 of eight
  for (int again = 0; again < 2; ++again) {
    for (Ticket ticket = 1; ticket <= many; ++ticket) EXPECT_EQ(told(control, ticket), ticket % 2 == 0 ? ticket : 0);
    end(true, false);  // there is memory: the next time they are where all are
  }
  EXPECT_THROW(std::rethrow_exception(control.take_error()), Fault);
  EXPECT_EQ(control.take_error(), nullptr);
}

TEST(FailuresOutOfMemory, BeyondTheRoomAreMerged) {
  auto& control = QueueControl::create();
  for (Ticket ticket = 1; ticket <= 12; ++ticket) {
    auto const submitted = control.submit().ticket();
    auto failure = ticket % 2 == 0 ? std::make_exception_ptr(Fault{submitted}) : nullptr;
    unimem::testing::fail_allocation(1);
    control.finish(submitted, std::move(failure));
    unimem::testing::fail_allocation(0);
  }
  for (Ticket ticket = 2; ticket <= 12; ticket += 2) EXPECT_NE(told(control, ticket), 0U) << "none is lost";
  for (Ticket ticket = 1; ticket <= 7; ticket += 2) EXPECT_EQ(told(control, ticket), 0U) << "before the room was full";
}

}  // namespace
}  // namespace unimem::detail
