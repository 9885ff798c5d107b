#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/wait_watch.hpp>
#include <unimem/share/buffer_registry.hpp>

#include "buffer/buffer_fixture.hpp"
#include "core/sanitizers.hpp"
#include "forked_child.hpp"
#include "processes/peer_commands.hpp"
#include "processes/peer_process.hpp"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

// Processes that end, stop or fork while they share buffers, and waits for them.

namespace unimem::testing {
namespace {

using namespace std::chrono_literals;
using Byte = std::uint8_t;
using Bytes = std::vector<Byte>;

std::atomic<bool> end_wanted{false};
constexpr WaitWatch watch{[]() noexcept { return true; }, []() noexcept { return end_wanted.load(); }};

class EndsOfProcesses : public BufferTest {
 protected:
  static constexpr std::size_t size = 4096;

  UnifiedBuffer<Byte> zeros() {
    auto options = on_sim();
    options.shared = true;
    UnifiedBuffer<Byte> buffer(size, std::move(options));
    buffer.fill(0);
    return buffer;
  }
  std::string id_of(UnifiedBuffer<Byte> const& buffer) {
    return to_string(shared.publish(buffer, {.cross_process = true}));
  }
  std::unique_ptr<PeerProcess> peer_with(UnifiedBuffer<Byte> const& buffer) {
    auto peer = std::make_unique<PeerProcess>();
    EXPECT_EQ(peer->ask("open " + id_of(buffer)), "ok 4096");
    return peer;
  }
  /// Work on a queue of `device` that waits until it may go on.
  struct Gated {
    std::promise<void> begun, gate;
    Event end;
    void open() { gate.set_value(); }
  };
  std::unique_ptr<Gated> gated(Queue& on, BufferSlice<Byte> const& slice, Intent intent,
                               std::function<void(std::span<Byte>)> work) {
    auto made = std::make_unique<Gated>();
    Operand const operand{&slice.core(), slice.range(), intent};
    made->end = run(on, {&operand, 1}, [&to = *made, work = std::move(work)](auto arguments) {
      to.begun.set_value();
      to.gate.get_future().wait();
      work({static_cast<Byte*>(arguments[0].data), arguments[0].bytes});
    });
    made->begun.get_future().wait();
    return made;
  }

  BufferRegistry shared;
  Queue queue = sim.create_queue();
  Queue cpu_queue = device("cpu").create_queue();
};

TEST_F(EndsOfProcesses, BringWhatDevicesAreStillWriting) {
  for (auto const* const on : {"sim", "cpu"}) {
    for (bool const exits : {true, false}) {
      SCOPED_TRACE(std::string(on) + (exits ? ", exit" : ", the end of main"));
      auto buffer = zeros();
      {
        auto const peer = peer_with(buffer);
        ASSERT_EQ(peer->ask(std::string("put_slowly ") + on + " 10 3000 5"), "ok");
        if (exits) peer->tell("exit");
      }
      EXPECT_EQ(buffer.slice(10, 3000).to_vector(), pattern_of(3000, 5));
    }
  }
}

TEST_F(EndsOfProcesses, LoseWhatAKilledOneWasWritingOnDevices) {
  for (auto const* const on : {"sim", "cpu"}) {
    SCOPED_TRACE(on);
    auto buffer = zeros();
    auto const peer = peer_with(buffer);
    ASSERT_EQ(peer->ask(std::string("put_slowly ") + on + " 10 30 5"), "ok");
    peer->kill();
    EXPECT_THROW(static_cast<void>(buffer.slice(39, 1).to_vector()), DataLost);
    EXPECT_EQ(buffer.slice(40, 1).to_vector(), Bytes{0});
    buffer.slice(10, 30).fill(1);
    EXPECT_EQ(buffer.slice(39, 2).to_vector(), (Bytes{1, 0}));
  }
}

TEST_F(EndsOfProcesses, AKernelThatFailsLosesWhatItsMemoryAloneHad) {
  auto buffer = zeros();
  auto const peer = peer_with(buffer), other = peer_with(buffer);
  ASSERT_EQ(peer->ask("fail_on sim 100 50"), "ok failed");
  EXPECT_EQ(other->ask("see 100 50"), "ok " + told(Bytes(50, 0))) << "a copy of it was ruined";
  ASSERT_EQ(peer->ask("fail_on cpu 200 50"), "ok failed");
  EXPECT_TRUE(other->ask("see 200 50").starts_with("error DataLost"));
  EXPECT_THROW(static_cast<void>(buffer.slice(249, 1).to_vector()), DataLost);
  EXPECT_EQ(other->ask("see 250 1"), "ok 00");
  EXPECT_TRUE(peer->ask("see 200 50").starts_with("error"));
  EXPECT_EQ(other->ask("put 200 50 1"), "ok");
  EXPECT_EQ(buffer.slice(200, 50).to_vector(), pattern_of(50, 1));
}

TEST_F(EndsOfProcesses, WaitForWorkThatReadsInHostMemory) {
  auto buffer = zeros();
  auto const peer = peer_with(buffer);
  Byte seen = 1;
  auto const reading = gated(cpu_queue, buffer.slice(0, 100), Intent::read, [&](auto bytes) { seen = bytes[50]; });
  peer->tell("put 50 1 3");
  EXPECT_FALSE(peer->answers_within(100ms));
  reading->open();
  reading->end.wait();
  EXPECT_EQ(peer->answer(), "ok");
  EXPECT_EQ(seen, 0);
}

TEST_F(EndsOfProcesses, DoNotWaitForWorkThatReadsACopy) {
  auto buffer = zeros();
  auto const peer = peer_with(buffer);
  Byte seen = 1;
  auto const reading = gated(queue, buffer.slice(0, 100), Intent::read, [&](auto bytes) { seen = bytes[50]; });
  EXPECT_EQ(peer->ask("put 50 1 3"), "ok");
  reading->open();
  reading->end.wait();
  EXPECT_EQ(seen, 0);
}

TEST_F(EndsOfProcesses, WaitForTheEndOfALeaseThatIsWritten) {
  for (auto* const on : {&sim, &device("cpu")}) {
    SCOPED_TRACE(on->id());
    auto buffer = zeros();
    auto const peer = peer_with(buffer);
    auto part = buffer.slice(0, 10);
    {
      auto const lease = part.device(*on);
      peer->tell("read 0 2");
      EXPECT_FALSE(peer->answers_within(100ms));
      auto fills = on->create_queue();
      fills.fill(lease.native(), std::vector<std::byte>{std::byte{5}}).wait();
    }
    EXPECT_EQ(peer->answer(), "ok 0505");
    // In the order of a queue, whose work goes on behind the lease.
    auto order = on->create_queue();
    std::promise<void> gate;
    {
      auto const lease = part.device_overwrite(order);
      order.run(on->compile({"gate", "", [&](Range, std::size_t, std::size_t, auto) { gate.get_future().wait(); }}),
                Range{1}, {});
      order.fill(lease.native(), std::vector<std::byte>{std::byte{6}});
    }
    peer->tell("read 0 2");
    EXPECT_FALSE(peer->answers_within(100ms));
    gate.set_value();
    EXPECT_EQ(peer->answer(), "ok 0606");
  }
}

TEST_F(EndsOfProcesses, PublishWhatTheCpuDeviceWorksIn) {
  UnifiedBuffer<Byte> buffer(size, on_sim());
  buffer.fill(1);
  auto const writing = gated(cpu_queue, buffer.slice(0, 10), Intent::write, [](auto bytes) {
    std::this_thread::sleep_for(50ms);
    std::ranges::fill(bytes, Byte{7});
  });
  writing->open();
  auto const peer = peer_with(buffer);
  EXPECT_EQ(peer->ask("read 9 2"), "ok 0701");
  auto const again =
      gated(cpu_queue, buffer.slice(5, 10), Intent::write, [](auto bytes) { std::ranges::fill(bytes, Byte{8}); });
  again->open();
  EXPECT_EQ(peer->ask("read 4 2"), "ok 0708");
  ASSERT_EQ(peer->ask("write 0 1 9"), "ok");
  auto const reading = gated(cpu_queue, buffer.slice(0, 5), Intent::read, [](auto bytes) { EXPECT_EQ(bytes[0], 9); });
  reading->open();
  reading->end.wait();
}

TEST_F(EndsOfProcesses, HoldNothingWhileALaunchWaits) {
  auto free = zeros(), busy = zeros();
  auto const holder = peer_with(busy), other = peer_with(free);
  ASSERT_TRUE(holder->ask("map 0 10").starts_with("ok"));
  auto launched = std::async(std::launch::async, [&] {
    std::vector<Operand> const operands{{&free.core(), {0, 10}, Intent::write}, {&busy.core(), {0, 10}, Intent::write}};
    run(queue, operands, [](std::span<const HostArgument> arguments) {
      for (auto const& argument : arguments) *static_cast<Byte*>(argument.data) = 6;
    }).wait();
  });
  EXPECT_EQ(launched.wait_for(100ms), std::future_status::timeout);
  EXPECT_EQ(other->ask("put 0 10 3"), "ok") << "of two operands none is taken while the other is not to be had";
  EXPECT_EQ(holder->ask("unmap"), "ok");
  launched.get();
  EXPECT_EQ(other->ask("read 0 1"), "ok 06");
  EXPECT_EQ(holder->ask("read 0 1"), "ok 06");
}

TEST_F(EndsOfProcesses, WaitForOneThatIsStopped) {
  auto buffer = zeros();
  auto const peer = peer_with(buffer);
  ASSERT_TRUE(peer->ask("map 0 100").starts_with("ok"));
  ASSERT_EQ(peer->ask("poke 4"), "ok");
  peer->stop();
  auto waiting = std::async(std::launch::async, [&] { return buffer.slice(99, 2).to_vector(); });
  EXPECT_EQ(waiting.wait_for(200ms), std::future_status::timeout) << "it lives";
  EXPECT_EQ(buffer.slice(100, 1).to_vector(), Bytes{0});
  peer->go_on();
  EXPECT_EQ(peer->ask("unmap"), "ok");
  EXPECT_EQ(waiting.get(), (Bytes{4, 0}));
}

TEST_F(EndsOfProcesses, WaitsEndWhereThatIsWanted) {
  auto buffer = zeros(), other = zeros();
  auto const peer = peer_with(buffer);
  ASSERT_TRUE(peer->ask("map 0 100").starts_with("ok"));
  peer->stop();
  set_wait_watch(&watch);
  end_wanted = true;
  EXPECT_THROW(static_cast<void>(buffer.slice(0, 1).to_vector()), WaitInterrupted);
  EXPECT_THROW(buffer.slice(0, 1).fill(1), WaitInterrupted);
  EXPECT_THROW(static_cast<void>(buffer.slice(0, 1).map(MapMode::read_write)), WaitInterrupted);
  EXPECT_THROW(copy(other.slice(0, 1), buffer.slice(0, 1)), WaitInterrupted);
  EXPECT_THROW(gated(queue, buffer.slice(0, 1), Intent::read, [](auto) {}), WaitInterrupted);
  auto slice = buffer.slice(0, 1);
  EXPECT_THROW(static_cast<void>(slice.device_overwrite(sim)), WaitInterrupted);
  end_wanted = false;
  set_wait_watch(nullptr);
  peer->go_on();
  EXPECT_EQ(peer->ask("unmap"), "ok");
  EXPECT_EQ(peer->ask("put 0 100 3"), "ok") << "what was interrupted holds nothing";
  EXPECT_EQ(buffer.slice(0, 100).to_vector(), pattern_of(100, 3));
}

/// As a process may stand in its own way: each of two reads, and wants to write what both read.
TEST_F(EndsOfProcesses, TwoThatReadAndWantToWriteWaitUntilOneGivesIn) {
  auto buffer = zeros();
  auto const peer = peer_with(buffer);
  ASSERT_TRUE(peer->ask("hold 0 100").starts_with("ok"));
  auto reading = buffer.slice(0, 100).map(MapMode::read);
  peer->tell("put 0 1 3");
  EXPECT_FALSE(peer->answers_within(100ms));
  set_wait_watch(&watch);
  end_wanted = true;
  EXPECT_THROW(buffer.slice(0, 1).fill(1), WaitInterrupted);
  end_wanted = false;
  set_wait_watch(nullptr);
  reading.unmap();
  EXPECT_EQ(peer->answer(), "ok");
  EXPECT_EQ(peer->ask("drop"), "ok");
  buffer.slice(0, 1).fill(1);
  EXPECT_EQ(peer->ask("read 0 1"), "ok 01");
}

TEST_F(EndsOfProcesses, AForkedChildLooksAndTakesNoTurn) {
  if (detail::is_sanitized) GTEST_SKIP() << "a child that is forked while a thread allocates hangs in the runtime";
  auto buffer = zeros();
  auto const peer = peer_with(buffer);
  buffer.slice(0, 10).fill(2);
  auto mapped = buffer.slice(50, 10).map(MapMode::read_write);
  auto const child = fork_while_others_sleep();
  if (child == 0) {
    auto const refused = [](auto const& operation) {
      try {
        operation();
      } catch (UnsupportedOperation const&) {
        return true;
      } catch (std::exception const&) {
        return false;
      }
      return false;
    };
    int failed = 0;
    if (buffer.slice(9, 2).to_vector() != Bytes{2, 0}) failed |= 1;
    if (!refused([&] { buffer.slice(0, 1).fill(3); })) failed |= 2;
    if (!refused([&] { static_cast<void>(buffer.slice(0, 1).map(MapMode::read_write)); })) failed |= 4;
    if (!refused([&] { static_cast<void>(shared.publish(buffer, {.cross_process = true})); })) failed |= 8;
    ::_exit(failed);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  peer->tell("put 50 10 3");
  EXPECT_FALSE(peer->answers_within(100ms)) << "what the parent maps is still its own";
  mapped.unmap();
  EXPECT_EQ(peer->answer(), "ok");
  EXPECT_EQ(peer->ask("read 9 2"), "ok 0200");
}

std::size_t threads_here() {
  auto const all = std::filesystem::directory_iterator("/proc/self/task");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

TEST_F(EndsOfProcesses, ManyLaunchesUnderWayTakeOneThread) {
  constexpr std::size_t many = 500;
  auto buffer = zeros();
  auto const peer = peer_with(buffer);
  auto const first = gated(queue, buffer.slice(0, 1), Intent::write, [](auto) {});
  auto const before = threads_here();
  for (std::size_t i = 0; i < many; ++i) {
    auto const part = buffer.slice(10, 10);
    Operand const operand{&part.core(), part.range(), Intent::write};
    run(queue, {&operand, 1}, [i](auto arguments) { *static_cast<Byte*>(arguments[0].data) = static_cast<Byte>(i); });
  }
  EXPECT_LE(threads_here(), before + 1);
  first->open();
  EXPECT_EQ(peer->ask("see 10 1"), "ok " + told(Bytes{static_cast<Byte>(many - 1)}));
}

/// More at once than the book has room for: those of one's own are waited for.
TEST_F(EndsOfProcesses, MoreRangesThanMayBeWrittenAtOnceWaitForThoseBefore) {
  constexpr std::size_t many = 400;
  auto buffer = zeros();
  auto const peer = peer_with(buffer);
  auto const first = gated(queue, buffer.slice(0, 1), Intent::write, [](auto) {});
  auto launched = std::async(std::launch::async, [&] {
    for (std::size_t i = 1; i <= many; ++i) {
      auto const part = buffer.slice(i, 1);
      Operand const operand{&part.core(), part.range(), Intent::write};
      run(queue, {&operand, 1}, [i](auto arguments) { *static_cast<Byte*>(arguments[0].data) = static_cast<Byte>(i); });
    }
  });
  EXPECT_EQ(launched.wait_for(100ms), std::future_status::timeout);
  first->open();
  launched.get();
  Bytes expected(many);
  for (std::size_t i = 0; i < many; ++i) expected[i] = static_cast<Byte>(i + 1);
  EXPECT_EQ(peer->ask("see 1 400"), "ok " + told(expected));
}

}  // namespace
}  // namespace unimem::testing
