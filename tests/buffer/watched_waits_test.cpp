#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/device/wait_watch.hpp>
#include <unimem/manager/memory_manager.hpp>
#include <unimem/pool/memory_pool.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <future>
#include <optional>
#include <thread>
#include <vector>

// Waits that a program ends by its WaitWatch: at a buffer's lock, for room on a device, for memory of a pool. The work
// that each waits for does not end before the wait has: where that fails, ctest ends what hangs.

namespace unimem {
namespace {

using ::testing::Each;

std::atomic<std::thread::id> watched_thread{};
std::atomic<bool> end_wanted{true};
std::atomic<int> looks{0};

constexpr WaitWatch watch{[]() noexcept { return watched_thread.load() == std::this_thread::get_id(); },
                          []() noexcept {
                            ++looks;
                            return end_wanted.load();
                          }};

/// Holds a queue up with a kernel that is under way on the queue's own thread: one that had not begun would be carried
/// out by the thread that waits for it.
class Gate {
 public:
  explicit Gate(Queue& queue) {
    auto const waits = [this](Range, std::size_t, std::size_t, auto) {
      begun_.set_value();
      opened_.wait();
    };
    event_ = queue.run(queue.device().compile({"gate", "", waits}), Range{1}, {});
    begun_.get_future().wait();
  }
  Gate(Gate const&) = delete;
  Gate& operator=(Gate const&) = delete;
  ~Gate() {
    open_.set_value();
    static_cast<void>(event_.wait_for_error());
  }

 private:
  std::promise<void> begun_, open_;
  std::shared_future<void> opened_{open_.get_future()};
  Event event_;
};

class WatchedWaits : public ::testing::Test {
 protected:
  WatchedWaits() {
    looks = 0;
    end_wanted = true;
    watched_thread = std::this_thread::get_id();
    set_wait_watch(&watch);
  }
  ~WatchedWaits() override { set_wait_watch(nullptr); }

  BufferOptions here() {
    BufferOptions options;
    options.manager = &manager;
    options.device = &sim;
    return options;
  }
  UnifiedBuffer<int> made(int value, std::size_t count) {
    UnifiedBuffer<int> buffer(count, here());
    buffer.fill(value);
    return buffer;
  }
  /// Work that adds one to the first element, behind what holds the queue up.
  Event add_one(UnifiedBuffer<int>& to) {
    Operand const operand{&to.core(), {0, to.size_bytes()}, Intent::read_write};
    auto const program = sim.compile(
        {"add", "", [](Range, std::size_t, std::size_t, auto arguments) { ++*static_cast<int*>(arguments[0].data); }});
    auto& queue = sim.default_queue();
    return use_on_device(queue, {&operand, 1}, [&](std::span<const DeviceMemory> memory, std::span<const Event> needs) {
      KernelArgument argument;
      argument.memory = memory.front();
      argument.writes = true;
      return queue.run(program, Range{1}, {&argument, 1}, needs);
    });
  }
  /// A thread in the middle of an operation on the buffer, which has its lock as long as this lives.
  class User {
   public:
    explicit User(UnifiedBuffer<int>& buffer)
        : thread_([this, &core = buffer.core(), until = done_.get_future().share()] {
            Operand const operand{&core, {0, core.size_bytes()}, Intent::read};
            auto& queue = core.default_device().default_queue();
            use_on_device(queue, {&operand, 1}, [&](std::span<const DeviceMemory>, std::span<const Event>) {
              begun_.set_value();
              until.wait();
              return queue.record();
            });
          }) {
      begun_.get_future().wait();  // and no look at the buffer, which may be a wait that the watch ends
    }
    User(User const&) = delete;
    User& operator=(User const&) = delete;
    ~User() { done_.set_value(); }

   private:
    std::promise<void> begun_, done_;
    std::jthread thread_;
  };

  Device& sim = make_sim({.memory_bytes = std::size_t{1} << 20});
  MemoryManager manager;
};

TEST_F(WatchedWaits, AtABuffersLockEndAndChangeNothing) {
  auto buffer = made(1, 100);
  std::optional<Gate> gate{sim.default_queue()};
  auto const event = add_one(buffer);
  std::optional<User> user{buffer};
  EXPECT_THROW(static_cast<void>(buffer.host_view()), WaitInterrupted);
  EXPECT_THROW(buffer.copy_from(std::vector<int>(100, 9)), WaitInterrupted);
  EXPECT_THROW(add_one(buffer), WaitInterrupted);
  EXPECT_FALSE(event.ready());
  user.reset();
  gate.reset();
  auto expected = std::vector<int>(100, 1);
  expected[0] = 2;
  end_wanted = false;
  EXPECT_EQ(buffer.to_vector(), expected);
}

TEST_F(WatchedWaits, ForWorkOnABufferEnd) {
  auto buffer = made(1, 100);
  std::optional<Gate> gate{sim.default_queue()};
  auto const event = add_one(buffer);
  EXPECT_THROW(static_cast<void>(buffer.host_view()), WaitInterrupted);
  EXPECT_FALSE(event.ready());
  gate.reset();
  EXPECT_EQ(buffer.to_vector()[0], 2);
}

TEST_F(WatchedWaits, ForDeviceRoomEndWithoutHarmingOtherBuffers) {
  for (bool const used : {false, true}) {
    auto large = made(1, 200'000), next = made(5, 200'000);
    std::optional<Gate> gate{sim.default_queue()};
    auto const event = add_one(large);
    std::optional<User> user;
    if (used) user.emplace(large);
    EXPECT_THROW(add_one(next), WaitInterrupted) << used;
    EXPECT_FALSE(event.ready()) << used;
    user.reset();
    gate.reset();
    end_wanted = false;
    EXPECT_EQ(large.to_vector()[0], 2) << used;
    EXPECT_THAT(next.to_vector(), Each(5)) << used;
    end_wanted = true;
  }
}

TEST_F(WatchedWaits, ForMemoryOfAPoolEnd) {
  constexpr std::size_t size = std::size_t{1} << 19;
  PoolOptions options;
  options.max_bytes = size;
  MemoryPool pool(sim, Location::device, options);
  std::optional<Gate> gate{sim.default_queue()};
  pool.acquire(size).release(sim.default_queue().mark());
  EXPECT_THROW(static_cast<void>(pool.acquire(size)), WaitInterrupted);      // the block itself
  EXPECT_THROW(static_cast<void>(pool.acquire(size / 2)), WaitInterrupted);  // its memory
  std::jthread const other{[&] { pool.trim(); }};                            // on its way back
  while (pool.statistics().total_pooled_bytes != 0) std::this_thread::yield();
  EXPECT_THROW(static_cast<void>(pool.acquire(size)), WaitInterrupted);
  gate.reset();
  end_wanted = false;
  EXPECT_EQ(pool.acquire(size).size(), size);
}

TEST_F(WatchedWaits, GoOnWhileNoEndIsWanted) {
  end_wanted = false;
  auto buffer = made(1, 100);
  std::optional<Gate> gate{sim.default_queue()};
  add_one(buffer);
  std::jthread const opens{[&] {
    while (looks.load() < 3) std::this_thread::yield();
    gate.reset();
  }};
  EXPECT_EQ(buffer.to_vector()[0], 2);
  EXPECT_GE(looks.load(), 3);
}

}  // namespace
}  // namespace unimem
