#include <unimem/core/error.hpp>

#include "device/task_queue.hpp"
#include "device/ticket_set.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <random>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

// A program that fails and goes on, for as long as it likes: what is kept of that.

namespace unimem::detail {
namespace {

constexpr auto kept = QueueControl::kept_failures;

/// An error of a user's, of which it can be told how many there are.
struct Counted : std::runtime_error {
  explicit Counted(std::shared_ptr<int> witness_) : std::runtime_error("counted"), witness(std::move(witness_)) {}
  std::shared_ptr<int> witness;
};

TEST(ManyFailures, OnlyTheLatestAreKeptWhole) {
  TaskQueue queue;
  auto const witness = std::make_shared<int>(0);
  constexpr std::size_t rounds = 5000;
  std::vector<Event> bad, good;
  for (std::size_t i = 0; i < rounds; ++i) {
    bad.push_back(queue.submit([witness] { throw Counted(witness); }));
    good.push_back(queue.submit([] {}));
  }
  good.back().wait();
  EXPECT_EQ(static_cast<std::size_t>(witness.use_count()), kept + 1);
  for (auto const event : good) ASSERT_EQ(event.wait_for_error(), nullptr);
  for (std::size_t i = rounds - kept; i < rounds; ++i) ASSERT_THROW(bad[i].wait(), Counted);
  for (std::size_t i = 0; i < rounds - kept; ++i) {
    try {
      bad[i].wait();
      FAIL() << "failure " << i << " has become a success";
    } catch (DeviceError const& error) {
      ASSERT_THAT(error.what(), ::testing::HasSubstr("no longer kept"));
    }
  }
}

TEST(ManyFailures, NeedingOldFailuresNeverBegins) {
  TaskQueue queue;
  auto const failing = [&] { return queue.submit([] { throw std::runtime_error("bad"); }); };
  auto const old = failing();
  bool began = false;
  auto const behind = queue.submit({&old, 1}, [&] { began = true; });
  queue.control().inherit(behind.ticket(), {&old, 1});
  EXPECT_TRUE(behind.wait_for_error());
  for (std::size_t i = 0; i <= 2 * kept; ++i) static_cast<void>(failing().wait_for_error());
  EXPECT_THROW(old.wait(), DeviceError);
  EXPECT_THROW(behind.wait(), DeviceError);
  EXPECT_TRUE(behind.never_began());
  EXPECT_FALSE(old.never_began());
  auto const late = queue.submit({&old, 1}, [&] { began = true; });
  queue.control().inherit(late.ticket(), {&old, 1});
  EXPECT_THROW(late.wait(), DeviceError);
  EXPECT_TRUE(late.never_began());
  EXPECT_FALSE(began);
}

TEST(ManyFailures, AreToldOfByTheQueueOnce) {
  TaskQueue queue;
  Event last;
  for (std::size_t i = 0; i < 3 * kept; ++i) last = queue.submit([] { throw std::runtime_error("bad"); });
  static_cast<void>(last.wait_for_error());
  EXPECT_TRUE(queue.control().take_error());
  EXPECT_FALSE(queue.control().take_error());
}

TEST(ManyFailures, ADestroyedErrorMayAskItsQueue) {
  struct Asking {
    Event other;
    ~Asking() { static_cast<void>(other.error()); }  // which locks
  };
  TaskQueue queue;
  Event last;
  for (std::size_t i = 0; i < 3 * kept; ++i) {
    last = queue.submit([last] { throw std::make_shared<Asking>(last); });
  }
  EXPECT_TRUE(last.wait_for_error());
}

class TicketSets : public ::testing::TestWithParam<unsigned> {};

TEST_P(TicketSets, HoldTicketsAtAnyDensity) {
  std::mt19937_64 random{GetParam()};
  TicketSet set;
  std::set<Ticket> truth;
  Ticket ticket = random() % 3 == 0 ? (Ticket{1} << 40) : 1;
  Ticket const first = ticket;
  for (int stretch = 0; stretch < 12; ++stretch) {
    auto const gap = 1 + random() % (stretch % 2 == 0 ? 3 : 5000);
    for (int i = 0; i < 6000; ++i) {
      ticket += 1 + random() % gap;
      auto const put =
          random() % 16 == 0 ? first + random() % (ticket - first + 1) : ticket;  // now and then an old one
      set.insert(put);
      truth.insert(put);
    }
  }
  for (auto const one : truth) ASSERT_TRUE(set.contains(one)) << one << ", seed " << GetParam();
  for (int i = 0; i < 100'000; ++i) {
    auto const asked = first + random() % (ticket - first + 100);
    ASSERT_EQ(set.contains(asked), truth.contains(asked)) << asked << ", seed " << GetParam();
  }
  EXPECT_LE(set.size_bytes(), 4 * truth.size()) << "seed " << GetParam();
}

INSTANTIATE_TEST_SUITE_P(Seeds, TicketSets, ::testing::Range(1U, 9U));

TEST(TicketSet, TakesFewBytesForARun) {
  TicketSet set;
  std::size_t runs = 0;
  for (Ticket begin = 1; begin < 5'000'000; begin += 5000, ++runs) {
    for (Ticket ticket = begin; ticket < begin + 40; ++ticket) set.insert(ticket);
  }
  EXPECT_LE(set.size_bytes(), 8 * runs + 5'000'000 / 65'536 * 32 + 4096);
  for (Ticket begin = 1; begin < 5'000'000; begin += 5000) {
    ASSERT_TRUE(set.contains(begin) && set.contains(begin + 39)) << begin;
    ASSERT_FALSE(set.contains(begin - 1) || set.contains(begin + 40)) << begin;
  }
}

TEST(TicketSet, TakesABitForEachDenseTicket) {
  TicketSet set;
  constexpr Ticket count = 1'000'000;
  for (Ticket ticket = 1; ticket <= count; ++ticket) set.insert(ticket);
  EXPECT_LE(set.size_bytes(), count / 8 + 8192);
  EXPECT_TRUE(set.contains(1));
  EXPECT_TRUE(set.contains(count));
  EXPECT_FALSE(set.contains(0));
  EXPECT_FALSE(set.contains(count + 1));
}

}  // namespace
}  // namespace unimem::detail
