#include <unimem/core/error.hpp>
#include <unimem/share/message_queue.hpp>

#include "forked_child.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <cstdint>
#include <latch>
#include <memory>
#include <optional>
#include <thread>
#include <tuple>
#include <vector>

namespace unimem {
namespace {

static_assert(!std::is_copy_constructible_v<MessageQueue<int>> && !std::is_move_constructible_v<MessageQueue<int>>);

TEST(MessageQueues, KeepOrderAndCapacity) {
  MessageQueue<int> queue(3);
  EXPECT_EQ(queue.capacity(), 3U);
  EXPECT_EQ(queue.try_receive(), std::nullopt);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(queue.try_send(i));
  EXPECT_FALSE(queue.try_send(3)) << "full";
  EXPECT_EQ(queue.size(), 3U);
  EXPECT_EQ(queue.receive(), 0);
  EXPECT_TRUE(queue.send(3));
  for (int i = 1; i <= 3; ++i) EXPECT_EQ(queue.try_receive(), i);
  EXPECT_EQ(queue.try_receive(), std::nullopt);
  EXPECT_EQ(queue.size(), 0U);
}

TEST(MessageQueues, WithoutRoomForAnythingAreRefused) {
  try {
    MessageQueue<int> const queue(0);
    FAIL() << "was made";
  } catch (InvalidArgument const& error) {
    EXPECT_EQ(error.argument, "capacity");
    EXPECT_EQ(error.value, "0");
  }
  MessageQueue<int> without_end(std::numeric_limits<std::size_t>::max());
  EXPECT_TRUE(without_end.try_send(1)) << "room costs nothing until it is used";
  EXPECT_EQ(without_end.receive(), 1);
}

TEST(MessageQueues, ClosingEndsReceivingAfterTheLastMessage) {
  MessageQueue<int> queue(4);
  EXPECT_TRUE(queue.send(1));
  EXPECT_TRUE(queue.send(2));
  EXPECT_FALSE(queue.closed());
  queue.close();
  queue.close();
  EXPECT_TRUE(queue.closed());
  EXPECT_FALSE(queue.send(3));
  EXPECT_FALSE(queue.try_send(3));
  EXPECT_EQ(queue.receive(), 1);
  EXPECT_EQ(queue.try_receive(), 2);
  EXPECT_EQ(queue.receive(), std::nullopt);
  EXPECT_EQ(queue.try_receive(), std::nullopt);
}

TEST(MessageQueues, ARefusedMessageStaysWithItsSender) {
  MessageQueue<std::unique_ptr<int>> queue(1);
  auto first = std::make_unique<int>(1), second = std::make_unique<int>(2);
  EXPECT_TRUE(queue.try_send(std::move(first)));
  EXPECT_EQ(first, nullptr);  // NOLINT(bugprone-use-after-move): what is tested
  EXPECT_FALSE(queue.try_send(std::move(second)));
  ASSERT_NE(second, nullptr) << "full";  // NOLINT(bugprone-use-after-move)
  queue.close();
  EXPECT_FALSE(queue.send(std::move(second)));
  ASSERT_NE(second, nullptr) << "closed";  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(*second, 2);
  EXPECT_EQ(**queue.receive(), 1);
}

TEST(MessageQueues, AreDestroyedWithTheMessagesThatNobodyReceived) {
  auto const counted = std::make_shared<int>(5);
  {
    MessageQueue<std::shared_ptr<int>> queue(10);
    for (int i = 0; i < 7; ++i) EXPECT_TRUE(queue.send(counted));
    EXPECT_EQ(counted.use_count(), 8);
    EXPECT_EQ(*queue.receive(), counted);
    EXPECT_EQ(counted.use_count(), 7);
  }
  EXPECT_EQ(counted.use_count(), 1);
}

TEST(MessageQueues, WhoWaitsIsWokenByTheOtherSide) {
  MessageQueue<int> queue(1);
  std::vector<int> seen;
  {
    std::jthread const receiver([&] {
      while (auto const message = queue.receive()) seen.push_back(*message);
    });
    for (int i = 0; i < 2000; ++i) ASSERT_TRUE(queue.send(i)) << "waits until there is room for one";
    queue.close();
  }
  ASSERT_EQ(seen.size(), 2000U);
  for (int i = 0; i < 2000; ++i) ASSERT_EQ(seen[static_cast<std::size_t>(i)], i);
}

TEST(MessageQueues, ClosingWakesEverybodyWhoWaits) {
  for (int round = 0; round < 50; ++round) {
    MessageQueue<int> empty(1), full(1);
    ASSERT_TRUE(full.send(0));
    std::atomic<int> ended{0};
    {
      std::latch started{6};
      std::vector<std::jthread> waiting;
      for (int i = 0; i < 3; ++i) {
        waiting.emplace_back([&] {
          started.count_down();
          if (!empty.receive()) ++ended;
        });
        waiting.emplace_back([&] {
          started.count_down();
          if (!full.send(1)) ++ended;
        });
      }
      started.wait();  // whether they wait by now or come too late, they end
      empty.close();
      full.close();
    }
    ASSERT_EQ(ended, 6);
    ASSERT_EQ(full.size(), 1U) << "what was refused is not in it";
  }
}

TEST(MessageQueues, EachMessageIsReceivedOnceInOrder) {
  constexpr std::uint32_t senders = 4, receivers = 4, each = 5000;
  MessageQueue<std::uint64_t> queue(16);
  std::vector<std::vector<std::uint64_t>> received(receivers);
  std::atomic<std::size_t> longest{0};
  {
    std::vector<std::jthread> receiving;
    for (std::uint32_t i = 0; i < receivers; ++i) {
      receiving.emplace_back([&, i] {
        while (auto const message = queue.receive()) {
          received[i].push_back(*message);
          auto const length = queue.size();
          for (auto known = longest.load(); known < length && !longest.compare_exchange_weak(known, length);) {
          }
        }
      });
    }
    {
      std::vector<std::jthread> sending;
      for (std::uint32_t i = 0; i < senders; ++i) {
        sending.emplace_back([&, i] {
          for (std::uint64_t k = 0; k < each; ++k) {
            auto const message = std::uint64_t{i} << 32 | k;
            // Both ways of sending, mixed.
            if (k % 3 == 0 && queue.try_send(message)) continue;
            ASSERT_TRUE(queue.send(message));
          }
        });
      }
    }
    queue.close();
  }
  EXPECT_LE(longest, queue.capacity());
  std::vector<std::uint32_t> seen(senders * each, 0);
  for (auto const& one : received) {
    std::vector<std::int64_t> last(senders, -1);
    for (auto const message : one) {
      auto const sender = message >> 32, number = message & 0xFFFF'FFFF;
      ASSERT_LT(last[sender], static_cast<std::int64_t>(number)) << "of one sender, to one receiver: in order";
      last[sender] = static_cast<std::int64_t>(number);
      ++seen[sender * each + number];
    }
  }
  EXPECT_THAT(seen, ::testing::Each(1U));
}

/// Its first move, into a queue and under the queue's lock, takes until `go`.
struct Slow {
  Slow() = default;
  Slow(Slow&&) noexcept {
    moves = true;
    moves.notify_all();
    go.wait(false);
  }
  static inline std::atomic<bool> moves{false}, go{false};
};

TEST(MessageQueues, InUseAtAForkAreRefusedToTheChild) {
  auto queue = std::make_unique<MessageQueue<Slow>>(2);
  {
    std::jthread const sender{[&] { EXPECT_TRUE(queue->send(Slow{})); }};
    Slow::moves.wait(false);
    EXPECT_EQ(in_child([&] {
                EXPECT_HERE(is_refused([&] { std::ignore = queue->send(Slow{}); }));
                EXPECT_HERE(is_refused([&] { std::ignore = queue->try_send(Slow{}); }));
                EXPECT_HERE(is_refused([&] { std::ignore = queue->receive(); }));
                EXPECT_HERE(is_refused([&] { std::ignore = queue->try_receive(); }));
                queue->close();
                EXPECT_HERE(queue->closed() && queue->size() == 0 && queue->capacity() == 2);
                queue.reset();
                MessageQueue<int> own(1);
                EXPECT_HERE(own.send(5) && own.size() == 1 && own.receive() == 5);
                return 0;
              }),
              0);
    Slow::go = true;
    Slow::go.notify_all();
  }
  EXPECT_FALSE(queue->closed());
  EXPECT_TRUE(queue->receive().has_value());
}

TEST(MessageQueues, EndInAChildDespiteAWaitingThread) {
  auto queue = std::make_unique<MessageQueue<int>>(1);
  std::jthread const receiver{[&] { EXPECT_EQ(queue->receive(), std::nullopt); }};
  EXPECT_EQ(in_child([&] {
              queue.reset();
              return 0;
            }),
            0);
  queue->close();
}

}  // namespace
}  // namespace unimem
