#include "cluster/counted_calls.hpp"
#include "cluster/ranks.hpp"

#include <unimem/core/error.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

// Messages behind the caller's back are work like a launch: what needs their bytes waits for them, and they wait for
// what writes theirs.

namespace unimem::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAreArray;

class AsyncMessages : public RanksTest {
 protected:
  using Numbers = UnifiedBuffer<std::uint32_t>;

  /// The neighbours in the ring, which of one rank are that rank itself.
  static int next() { return (rank() + 1) % ranks(); }
  static int previous() { return (rank() + ranks() - 1) % ranks(); }

  /// Waits until `go`, then writes `value`.
  static Kernel held_back(std::shared_ptr<std::atomic<bool>> go) {
    return Kernel("held back").host([go](WorkItem i, std::span<std::uint32_t> x, std::uint32_t value) {
      while (!*go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      x[i.x] = value;
    });
  }
};

TEST_F(AsyncMessages, ARingPassesNumbersOn) {
  for (std::size_t const count : {std::size_t{0}, std::size_t{1}, std::size_t{1000}, std::size_t{1} << 20}) {
    auto x = holding(numbers_of(rank(), count));
    Numbers y(count, on_sim());
    auto const received = mpi::ireceive(write(y), previous(), tag);
    auto const sent = mpi::isend(read(x), next(), tag);
    sent.wait();
    received.wait();
    EXPECT_EQ(y.to_vector(), numbers_of(previous(), count));
    EXPECT_EQ(x.statistics().traffic(), Traffic{});
    EXPECT_EQ(y.statistics().traffic(), Traffic{});
  }
}

TEST_F(AsyncMessages, ALaunchWaitsForWhatIsReceived) {
  Numbers y(1000, on_sim());
  auto const received = mpi::ireceive(write(y), previous(), tag);
  auto const twice = Kernel("twice").host([](WorkItem i, std::span<std::uint32_t> v) { v[i.x] *= 2; });
  auto const launched = launch(sim.default_queue(), twice, Range{1000}, readwrite(y));
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_FALSE(received.ready());
  EXPECT_FALSE(launched.ready());
  MPI_Barrier(MPI_COMM_WORLD);
  auto x = holding(numbers_of(rank(), 1000));
  mpi::isend(read(x), next(), tag).wait();
  auto expected = numbers_of(previous(), 1000);
  for (auto& number : expected) number *= 2;
  EXPECT_THAT(y.to_vector(), ElementsAreArray(expected));
  EXPECT_EQ(y.statistics().host_to_device_copies, 1U);
  EXPECT_EQ(y.statistics().device_to_host_copies, 1U);
}

TEST_F(AsyncMessages, AHostReadWaitsForWhatIsReceived) {
  Numbers y(1000, on_sim());
  auto const received = mpi::ireceive(write(y, 0, 500), previous(), tag);
  auto const sent = mpi::isend(read(y, 500, 500), next(), tag + 1);
  auto x = holding(numbers_of(rank(), 500));
  Numbers z(500, on_sim());
  auto const other = mpi::ireceive(write(z), previous(), tag + 1);
  auto const last = mpi::isend(read(x), next(), tag);
  auto const part = y.slice(0, 500);
  EXPECT_THAT(part.to_vector(), ElementsAreArray(numbers_of(previous(), 500)));
  EXPECT_TRUE(received.ready());
  sent.wait();
  other.wait();
  last.wait();
}

TEST_F(AsyncMessages, WhatIsSentWaitsForTheKernelThatWritesIt) {
  auto const go = std::make_shared<std::atomic<bool>>(false);
  Numbers x(100, on_sim());
  Numbers y(100, on_sim());
  launch(sim.default_queue(), held_back(go), Range{100}, write(x), std::uint32_t{17});
  reset_counted_calls();
  mpi::ireceive(write(y), previous(), tag);
  auto const sent = mpi::isend(read(x), next(), tag);
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_FALSE(sent.ready());
  EXPECT_EQ(counted_calls().sends, 0U);
  *go = true;
  sent.wait();
  EXPECT_EQ(counted_calls().sends, 1U);
  EXPECT_THAT(y.to_vector(), Each(17U));
  EXPECT_EQ(x.statistics().device_to_host_bytes, x.size_bytes());
}

TEST_F(AsyncMessages, AWriteWaitsUntilWhatIsThereIsSent) {
  constexpr std::size_t many = std::size_t{1} << 21;  // more than any MPI buffers
  auto x = holding(std::vector<std::uint32_t>(many, 1));
  auto const sent = mpi::isend(read(x), next(), tag);
  auto const set = Kernel("set").host([](WorkItem i, std::span<std::uint32_t> v) { v[i.x] = 2; });
  launch(device("cpu").default_queue(), set, Range{many}, write(x));
  Numbers y(many, on_sim());
  mpi::ireceive(write(y), previous(), tag).wait();
  EXPECT_EQ(y.to_vector(), std::vector<std::uint32_t>(many, 1));
  EXPECT_EQ(x.to_vector(), std::vector<std::uint32_t>(many, 2));
  sent.wait();
}

TEST_F(AsyncMessages, OneThatWaitsKeepsNoOtherWaiting) {
  auto const go = std::make_shared<std::atomic<bool>>(false);
  Numbers late(10, on_sim());
  launch(sim.default_queue(), held_back(go), Range{10}, write(late), std::uint32_t{1});
  auto early = holding(numbers_of(rank(), 10));
  Numbers a(10, on_sim());
  Numbers b(10, on_sim());
  auto const late_sent = mpi::isend(read(late), next(), tag);
  auto const late_received = mpi::ireceive(write(a), previous(), tag);
  auto const early_sent = mpi::isend(read(early), next(), tag + 1);
  auto const early_received = mpi::ireceive(write(b), previous(), tag + 1);
  early_sent.wait();
  early_received.wait();
  EXPECT_FALSE(late_sent.ready());
  EXPECT_FALSE(late_received.ready());
  EXPECT_EQ(b.to_vector(), numbers_of(previous(), 10));
  MPI_Barrier(MPI_COMM_WORLD);
  *go = true;
  late_sent.wait();
  late_received.wait();
  EXPECT_THAT(a.to_vector(), Each(1U));
}

TEST_F(AsyncMessages, MessagesOfOneTagKeepTheirOrder) {
  auto const go = std::make_shared<std::atomic<bool>>(false);
  Numbers first(10, on_sim());
  launch(sim.default_queue(), held_back(go), Range{10}, write(first), std::uint32_t{1});
  auto second = holding(std::vector<std::uint32_t>(10, 2));
  auto third = holding(std::vector<std::uint32_t>(10, 3));
  std::vector<Numbers> received;
  for (int i = 0; i < 3; ++i) received.emplace_back(10, on_sim());
  std::vector<Event> events;
  for (auto& one : received) events.push_back(mpi::ireceive(write(one), MPI_ANY_SOURCE, MPI_ANY_TAG));
  events.push_back(mpi::isend(read(first), next(), tag));
  events.push_back(mpi::isend(read(second), next(), tag));
  std::jthread const later([go] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    *go = true;
  });
  mpi::send(read(third), next(), tag);  // waits for its turn
  for (auto const event : events) event.wait();
  for (std::uint32_t i = 0; i < 3; ++i) EXPECT_THAT(received[i].to_vector(), Each(i + 1));
}

TEST_F(AsyncMessages, ABlockingReceiveTakesNothingFromOneBegunBefore) {
  Numbers first(10, on_sim());
  Numbers second(10, on_sim());
  mpi::ireceive(write(first), previous(), tag);
  auto x = holding(std::vector<std::uint32_t>(10, 1));
  auto y = holding(std::vector<std::uint32_t>(10, 2));
  auto const sent = mpi::isend(read(x), next(), tag);
  auto const also_sent = mpi::isend(read(y), next(), tag);
  mpi::receive(write(second), previous(), tag);
  EXPECT_THAT(second.to_vector(), Each(2U));
  EXPECT_THAT(first.to_vector(), Each(1U));
  sent.wait();
  also_sent.wait();
}

TEST_F(AsyncMessages, WhatArrivesIsPassedOnWithoutAWait) {
  if (ranks() == 1) GTEST_SKIP() << "a ring of one has no end";
  Numbers x(100, on_sim());
  if (rank() == 0) x.copy_from(counting<std::uint32_t>(5, 100));
  auto const add = Kernel("add").host([](WorkItem i, std::span<std::uint32_t> v) { v[i.x] += 1; });
  if (rank() == 0) {
    auto const sent = mpi::isend(read(x), next(), tag);
    auto const back = mpi::ireceive(write(x), previous(), tag);
    back.wait();
    sent.wait();
    EXPECT_EQ(x.to_vector(), counting<std::uint32_t>(5 + static_cast<std::uint32_t>(ranks()) - 1, 100));
  } else {
    auto const received = mpi::ireceive(write(x), previous(), tag);
    launch(sim.default_queue(), add, Range{100}, readwrite(x));
    mpi::isend(read(x), next(), tag).wait();
    EXPECT_TRUE(received.ready());
  }
}

TEST_F(AsyncMessages, AMessageOfAnotherSizeIsTheEventsErrorAndChangesNothing) {
  auto x = holding(numbers_of(rank(), 11));
  auto y = holding(std::vector<std::uint32_t>(10, 42));
  auto const received = mpi::ireceive(write(y), previous(), tag);
  auto const sent = mpi::isend(read(x), next(), tag);
  EXPECT_THROW(received.wait(), SizeMismatch);
  EXPECT_TRUE(received.never_began());
  EXPECT_THROW(static_cast<void>(y.to_vector()), SizeMismatch) << "failed work is told at the next access as well";
  EXPECT_THAT(y.to_vector(), Each(42U));
  sent.wait();
}

TEST_F(AsyncMessages, AFailedKernelSendsNothing) {
  auto x = holding(std::vector<std::uint32_t>(10, 3));
  auto const fails = Kernel("fails").host([](WorkItem, std::span<std::uint32_t>) { throw std::runtime_error("no"); });
  launch(sim.default_queue(), fails, Range{10}, readwrite(x));
  reset_counted_calls();
  // Where the failure is known already it is told at once, as by a launch.
  EXPECT_THROW(mpi::isend(read(x), next(), tag).wait(), std::runtime_error);
  EXPECT_EQ(counted_calls().sends, 0U);
}

TEST_F(AsyncMessages, PiecesAreReceivedBehindTheCallersBack) {
  if (!has_partner()) GTEST_SKIP() << "there is no rank to talk to";
  if (is_first()) {
    auto x = holding_on_device<std::uint32_t>(1, 100'000);
    mpi::send(read(x), partner(), tag, MPI_COMM_WORLD, {.piece_bytes = 4096});
  } else {
    Numbers y(100'000, on_sim());
    mpi::ireceive(write(y), partner(), tag).wait();
    EXPECT_EQ(y.to_vector(), counting<std::uint32_t>(1, 100'000));
  }
}

TEST_F(AsyncMessages, ABufferMayBeDestroyedUnderAMessage) {
  std::vector<Event> events;
  {
    auto x = holding(numbers_of(rank(), 1 << 20));
    Numbers y(1 << 20, on_sim());
    events.push_back(mpi::ireceive(write(y), previous(), tag));
    events.push_back(mpi::isend(read(x), next(), tag));
  }
  for (auto const event : events) event.wait();
}

TEST_F(AsyncMessages, SeveralThreadsSendAndReceiveAtOnce) {
  constexpr int threads = 4;
  std::atomic<int> right{0};
  {
    std::vector<std::jthread> workers;
    for (int i = 0; i < threads; ++i) {
      workers.emplace_back([this, i, &right] {
        for (int round = 0; round < 20; ++round) {
          auto x = holding(numbers_of(rank() * 10 + i + round, 1000));
          Numbers y(1000, on_sim());
          auto const received = mpi::ireceive(write(y), previous(), 100 + i);
          auto const sent = mpi::isend(read(x), next(), 100 + i);
          received.wait();
          sent.wait();
          right += y.to_vector() == numbers_of(previous() * 10 + i + round, 1000) ? 1 : 0;
        }
      });
    }
  }
  EXPECT_EQ(right, threads * 20);
}

TEST_F(AsyncMessages, NoRankIsDoneAtOnce) {
  auto x = holding(numbers_of(rank(), 10));
  EXPECT_EQ(mpi::isend(read(x), MPI_PROC_NULL, tag), Event{});
  EXPECT_EQ(mpi::ireceive(write(x), MPI_PROC_NULL, tag), Event{});
  EXPECT_THROW(static_cast<void>(mpi::isend(read(x), ranks(), tag)), InvalidArgument);
  EXPECT_THROW(static_cast<void>(mpi::ireceive(write(x), 0, -3)), InvalidArgument);
  EXPECT_THROW(static_cast<void>(mpi::ireceive(read(x), 0, tag)), InvalidArgument);
}

}  // namespace
}  // namespace unimem::testing
