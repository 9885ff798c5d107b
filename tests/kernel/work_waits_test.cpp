#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/kernel/launch.hpp>
#include <unimem/manager/memory_manager.hpp>
#include <unimem/pool/upstream.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <new>
#include <numeric>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

// Host kernels that wait: for themselves, for what comes behind them, at a buffer's lock. And what ends in the middle
// of work. Each would hang if it went wrong, and ctest ends what hangs.

namespace unimem {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

class WaitsInWork : public ::testing::TestWithParam<char const*> {
 protected:
  BufferOptions here() {
    BufferOptions options;
    options.manager = &manager;
    options.device = &on;
    return options;
  }

  /// Runs `in_kernel` once, as a kernel that may write `x`; what it throws is the error of the work.
  std::string error_of(UnifiedBuffer<int>& x, std::function<void()> const& in_kernel) {
    // Not before the launch has returned: until then the buffer is what it was.
    std::promise<void> launched;
    auto const ready = launched.get_future().share();
    auto const kernel = Kernel("looks").host([&, ready](WorkItem, std::span<int>) {
      ready.wait();
      in_kernel();
    });
    auto const event = launch(queue, kernel, Range{1}, readwrite(x));
    launched.set_value();
    try {
      event.wait();
    } catch (std::exception const& error) {
      return error.what();
    }
    return "none";
  }

  UnifiedBuffer<int> made(int value, std::size_t count = 100) {
    UnifiedBuffer<int> buffer(count, here());
    buffer.fill(value);
    return buffer;
  }

  Device& on = std::string_view(GetParam()) == "cpu" ? device("cpu") : make_sim({});
  MemoryManager manager;
  Queue queue = on.create_queue();  // the test's own, so that it hears of no other's failures
};

TEST_P(WaitsInWork, LookingAtItsOwnBufferIsRefused) {
  auto const ways = std::vector<std::pair<std::string, std::function<void(UnifiedBuffer<int>&)>>>{
      {"host_view", [](auto& x) { static_cast<void>(x.host_view()); }},
      {"host", [](auto& x) { static_cast<void>(x.host()); }},
      {"copy_to", [](auto& x) { static_cast<void>(x.to_vector()); }},
      {"copy_from", [](auto& x) { x.copy_from(std::vector<int>(100, 9)); }},
      {"sync_to_host", [](auto& x) { x.sync_to_host(); }},
      {"synchronize", [](auto& x) { x.synchronize(); }},
      {"map", [](auto& x) { static_cast<void>(x.map(MapMode::read)); }},
      {"mark", [](auto& x) { x.mark_host_dirty(); }},
  };
  for (auto const& [name, look] : ways) {
    auto x = made(1);
    auto const error = error_of(x, [&] { look(x); });
    EXPECT_THAT(error, HasSubstr("would never end")) << name;
    // The kernel has failed, so on a device of its own memory the buffer is as it was.
    if (!on.shares_storage_with_host()) {
      EXPECT_THROW(static_cast<void>(x.host_view()), std::exception) << name << ": the kernel's error, told once";
      EXPECT_THAT(x.to_vector(), Each(1)) << name;
    }
    auto next = made(2);
    EXPECT_EQ(error_of(next, [] {}), "none") << name << ": the device goes on";
  }
}

TEST_P(WaitsInWork, AKernelThatSynchronizesItsQueueIsRefused) {
  auto x = made(1), y = made(1), z = made(1);
  EXPECT_THAT(error_of(x, [&] { queue.synchronize(); }), HasSubstr("would never end"));
  EXPECT_THAT(error_of(y, [&] { on.synchronize(); }), HasSubstr("would never end"));
  EXPECT_THAT(error_of(z, [&] { queue.record().wait(); }), HasSubstr("would never end"));
}

TEST_P(WaitsInWork, AKernelMayWaitForOtherQueues) {
  auto x = made(1), other = made(2);
  auto second = on.create_queue();
  auto const add = Kernel("add").host([](WorkItem i, std::span<int> data) { ++data[i.x]; });
  EXPECT_EQ(error_of(x, [&] { launch(second, add, Range{100}, readwrite(other)).wait(); }), "none");
  EXPECT_THAT(other.to_vector(), Each(3));
}

TEST_P(WaitsInWork, WaitingForReadersOfItsResultIsRefused) {
  auto const reads = Kernel("reads").host([](WorkItem, std::span<const int>) {});
  for (auto* const there : {&on, &make_sim({})}) {
    auto x = made(1);
    auto second = there->create_queue();
    EXPECT_THAT(error_of(x, [&] { launch(second, reads, Range{1}, read(x)).wait(); }), HasSubstr("would never end"));
  }
}

/// A kernel that looks at `x` for a while, from when `begin` is set; what it hears is in `seen`.
class Looking {
 public:
  [[nodiscard]] Kernel at(UnifiedBuffer<int> const& x) {
    return Kernel("looks").host([this, &x](WorkItem, std::span<int> data) {
      runs_.set_value();
      while (!begin) std::this_thread::yield();
      auto const end = std::chrono::steady_clock::now() + std::chrono::milliseconds{40};
      try {
        while (std::chrono::steady_clock::now() < end) {
          static_cast<void>(x.is_allocated());
          static_cast<void>(x.valid_on_host());
        }
      } catch (UnsupportedOperation const& error) {
        seen = error.what();
      }
      for (auto& value : data) value = 5;
    });
  }
  void await_kernel() { runs_.get_future().wait(); }

  std::atomic<bool> begin{false};
  std::string seen = "nothing";

 private:
  std::promise<void> runs_;
};

/// The mapping's end comes behind a copy to the device, which comes behind the kernel.
TEST_P(WaitsInWork, LooksWhileAMappingEndsAreAnswered) {
  auto const reads = Kernel("reads").host([](WorkItem, std::span<const int>) {});
  auto const add = Kernel("add").host([](WorkItem i, std::span<int> data) { ++data[i.x]; });
  for (int round = 0; round < 5; ++round) {
    auto x = made(1), other = made(1);
    Looking looking;
    auto mapping = x.map(MapMode::read_write);
    mapping[0] = 9;
    auto const event = launch(queue, looking.at(x), Range{1}, readwrite(other));
    launch(queue, reads, Range{1}, read(x));
    looking.await_kernel();
    std::jthread user{[&] {
      looking.begin = true;
      mapping.unmap();
    }};
    user.join();
    event.wait();
    EXPECT_EQ(looking.seen, "nothing") << round;
    launch(queue, add, Range{100}, readwrite(x)).wait();
    auto const values = x.to_vector();
    EXPECT_EQ(values[0], 10) << round;
    EXPECT_EQ(values[99], 2) << round;
  }
}

/// A failure is told when all that the buffer has pending has ended, and some of that is the kernel's.
TEST_P(WaitsInWork, LooksWhileAFailureIsResolvedAreAnswered) {
  auto const fails = Kernel("fails").host([](WorkItem, std::span<int>) { throw std::domain_error("it fails"); });
  auto const reads = Kernel("reads").host([](WorkItem, std::span<const int>) {});
  for (int round = 0; round < 5; ++round) {
    auto x = made(1);
    auto second = on.create_queue(), third = on.create_queue();
    Looking looking;
    EXPECT_NE(launch(second, fails, Range{1}, readwrite(x.slice(0, 50))).wait_for_error(), nullptr);
    auto const event = launch(queue, looking.at(x), Range{1}, readwrite(x.slice(50, 50)));
    looking.await_kernel();
    std::string told = "nothing";
    std::jthread user{[&] {
      looking.begin = true;
      try {
        launch(third, reads, Range{1}, read(x.slice(0, 50)));
      } catch (std::exception const& error) {
        told = error.what();
      }
    }};
    user.join();
    event.wait();
    EXPECT_EQ(looking.seen, "nothing") << round;
    EXPECT_THAT(told, HasSubstr("it fails")) << round;
    std::vector<int> values(50);
    x.copy_to(values, 50);
    EXPECT_THAT(values, Each(5)) << round;
  }
}

TEST_P(WaitsInWork, OneOfTwoMutualWaitsIsRefused) {
  auto x = made(1), y = made(1);
  auto second = on.create_queue();
  std::promise<void> first_runs, second_runs;
  Event first, last;
  std::promise<void> known;
  auto const ready = known.get_future().share();
  auto const kernel = [&](std::promise<void>& runs, Event const& other) {
    return Kernel("waits").host([&, ready](WorkItem, std::span<int>) {
      runs.set_value();
      ready.wait();
      other.wait();
    });
  };
  first = launch(queue, kernel(first_runs, last), Range{1}, readwrite(x));
  last = launch(second, kernel(second_runs, first), Range{1}, readwrite(y));
  first_runs.get_future().wait();
  second_runs.get_future().wait();
  known.set_value();
  int refused = 0;
  for (auto const event : {first, last}) {
    try {
      event.wait();
    } catch (std::exception const& error) {
      EXPECT_THAT(error.what(), HasSubstr("would never end"));
      ++refused;
    }
  }
  EXPECT_GE(refused, 1);
}

/// No thread waits for work with a buffer's lock held, so a kernel may look at any buffer.
TEST_P(WaitsInWork, LooksAtABufferOthersWaitForAreAnswered) {
  for (int round = 0; round < 20; ++round) {
    auto x = made(1), other = made(2);
    std::promise<void> runs;
    std::string seen = "none";
    std::atomic<bool> waits{false};
    auto const kernel = Kernel("looks").host([&](WorkItem, std::span<int>, std::span<int>) {
      runs.set_value();
      while (!waits.load()) std::this_thread::yield();
      for (int look = 0; look < 200; ++look) {
        try {
          static_cast<void>(other.size_bytes());
          static_cast<void>(other.valid_on_host());
        } catch (UnsupportedOperation const& error) {
          seen = error.what();
          return;
        }
      }
    });
    auto const event = launch(queue, kernel, Range{1}, readwrite(x), readwrite(other));
    runs.get_future().wait();
    std::thread user{[&] {
      waits = true;
      static_cast<void>(other.host_view());  // waits for the kernel, which writes it
    }};
    static_cast<void>(event.wait_for_error());
    user.join();
    EXPECT_EQ(seen, "none") << round;
    auto next = made(3);
    EXPECT_EQ(error_of(next, [] {}), "none") << round;
  }
}

/// The same for everything that waits for a buffer's work, by many threads at once, each with a buffer of its own that
/// all kernels look at.
TEST_P(WaitsInWork, LooksAreAnsweredWhateverOthersDo) {
  constexpr std::size_t users = 4;
  for (unsigned seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::vector<UnifiedBuffer<int>> buffers;
    for (std::size_t i = 0; i < users; ++i) buffers.push_back(made(0));
    std::atomic<int> refused{0}, wrong{0};
    auto const kernel = Kernel("looks at all").host([&](WorkItem, std::span<int> own) {
      for (auto const& each : buffers) {
        try {
          static_cast<void>(each.valid_on_host());
          static_cast<void>(each.is_allocated());
          static_cast<void>(each.state());
        } catch (UnsupportedOperation const&) {
          ++refused;
        }
      }
      for (auto& value : own) ++value;
    });
    auto const use = [&](std::size_t user) {
      std::mt19937 random(seed * users + static_cast<unsigned>(user));
      auto& own = buffers[user];
      auto own_queue = on.create_queue();
      for (int step = 1; step <= 60; ++step) {
        launch(own_queue, kernel, Range{1}, readwrite(own));
        switch (random() % 6) {
          case 0:
            own.release_device();
            break;
          case 1:
            own.sync_to_host();
            break;
          case 2:
            static_cast<void>(own.device_view(on));
            break;
          case 3:
            static_cast<void>(own.core().evict({&on, Location::device}, {}));
            break;
          case 4:
            manager.defragment(on);
            break;
          default:
            break;
        }
        if (own.host_view()[99] != step) ++wrong;
      }
    };
    std::vector<std::jthread> threads;
    for (std::size_t user = 0; user < users; ++user) threads.emplace_back(use, user);
    threads.clear();
    EXPECT_EQ(refused, 0);
    EXPECT_EQ(wrong, 0);
  }
}

TEST_P(WaitsInWork, AQueueDestroyedByItsWorkFinishes) {
  auto x = made(0);
  auto own = std::make_optional(on.create_queue());
  std::promise<void> all_there;
  auto const ready = all_there.get_future().share();
  auto const ends = Kernel("ends").host([&, ready](WorkItem, std::span<int>) {
    ready.wait();
    own.reset();
  });
  auto const add = Kernel("add").host([](WorkItem i, std::span<int> data) { ++data[i.x]; });
  launch(*own, ends, Range{1}, readwrite(x));
  for (int i = 0; i < 10; ++i) launch(*own, add, Range{100}, readwrite(x));
  all_there.set_value();
  EXPECT_THAT(x.to_vector(), Each(10));
  EXPECT_FALSE(own.has_value());
}

TEST_P(WaitsInWork, WrappedMemoryOutlivesTheKernel) {
  for (int round = 0; round < 20; ++round) {
    std::vector<int> memory(100, 1);
    std::promise<void> given_back, dropped;
    std::atomic<bool> kernel_over{false}, too_early{false};
    auto const gone = dropped.get_future().share();
    {
      auto wrapped = std::make_shared<std::optional<UnifiedBuffer<int>>>(
          manager.wrap<int>(memory.data(), memory.size(), Location::host, Ownership::take([&](void*) {
                              too_early = !kernel_over;
                              given_back.set_value();
                            })));
      auto const kernel = Kernel("last owner").host([&, gone, wrapped](WorkItem, std::span<int> x) {
        gone.wait();
        x[0] = 7;
        wrapped->reset();
        x[1] = 8;
        kernel_over = true;
      });
      launch(queue, kernel, Range{1}, readwrite(**wrapped));
    }
    dropped.set_value();
    given_back.get_future().wait();
    queue.synchronize();
    if (on.shares_storage_with_host()) {  // else the kernel has memory of its own, and the wrapped one may go at once
      EXPECT_FALSE(too_early) << round;
      EXPECT_EQ(memory[0], 7);
      EXPECT_EQ(memory[1], 8);
    }
  }
}

/// Memory whose work comes behind the kernel itself is not there for the kernel, and somebody who waits for it with the
/// pool's memory in transit is not waited for.
TEST_P(WaitsInWork, MemoryBehindTheKernelIsRefused) {
  constexpr std::size_t size = 1U << 20;
  PoolOptions options;
  options.max_bytes = size;
  MemoryPool pool(on, Location::device, options);
  std::promise<void> pending, looked;
  std::string alone = "none", behind_another = "none";
  std::size_t trimmed = 1;
  auto const ask = [&] {
    try {
      static_cast<void>(pool.acquire(size));
      return std::string("none");
    } catch (OutOfMemory const& error) {
      return std::string(error.what());
    }
  };
  auto x = made(1);
  auto const asks = Kernel("asks").host([&](WorkItem, std::span<int>) {
    pending.get_future().wait();
    trimmed = pool.trim();
    alone = ask();
    looked.set_value();
    while (pool.statistics().total_pooled_bytes != 0) std::this_thread::yield();  // the other gives it back, and waits
    behind_another = ask();
  });
  auto block = pool.acquire(size);
  auto const kernel = launch(queue, asks, Range{1}, readwrite(x));
  block.release(queue.mark());
  pending.set_value();
  looked.get_future().wait();
  auto const got = pool.acquire(size);  // not in a kernel: it waits for the work
  EXPECT_TRUE(kernel.ready());
  EXPECT_EQ(trimmed, 0U);
  EXPECT_THAT(alone, HasSubstr("out of memory"));
  EXPECT_THAT(behind_another, HasSubstr("out of memory"));
}

/// Memory for one block, however much the pool's limit allows.
class OneBlock final : public Upstream {
 public:
  [[nodiscard]] DeviceMemory allocate(std::size_t bytes, Location location, Device& device) override {
    if (taken_.exchange(true)) throw std::bad_alloc{};
    return device.allocate(bytes, location);
  }
  void release(DeviceMemory memory, Location location, Device& device) noexcept override {
    device.release(memory, location);
    taken_ = false;
  }

 private:
  std::atomic<bool> taken_{false};
};

/// Threads that find no memory tell each other that something has changed, and none of them ever waits for long.
TEST_P(WaitsInWork, MemoryOthersLackIsRefused) {
  constexpr std::size_t size = 1U << 20;
  PoolOptions options;
  options.max_bytes = 64 * size;
  options.upstream = std::make_shared<OneBlock>();
  MemoryPool pool(on, Location::device, options);
  auto x = made(1);
  std::promise<void> pending;
  constexpr int tries = 300;
  int refused = 0;
  auto const asks = Kernel("asks").host([&](WorkItem, std::span<int>) {
    pending.get_future().wait();
    while (pool.statistics().total_pooled_bytes != 0) std::this_thread::yield();  // another gives it back, and waits
    for (int i = 0; i < tries; ++i) {
      try {
        static_cast<void>(pool.acquire(2 * size));
      } catch (OutOfMemory const&) {
        ++refused;
      }
    }
  });
  auto block = pool.acquire(size);  // too small for all of them
  auto const kernel = launch(queue, asks, Range{1}, readwrite(x));
  block.release(queue.mark());
  std::vector<std::jthread> threads;
  std::atomic<int> had{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      // Not in a kernel: one of them waits for the work. Those that come when it has the block try again.
      for (bool got = false; !got; had += got ? 1 : 0) {
        try {
          got = !pool.acquire(2 * size).empty();
        } catch (OutOfMemory const&) {
          std::this_thread::yield();
        }
      }
    });
  }
  pending.set_value();
  kernel.wait();
  threads.clear();
  EXPECT_EQ(refused, tries);
  EXPECT_EQ(had, 4);
}

INSTANTIATE_TEST_SUITE_P(Devices, WaitsInWork, ::testing::Values("cpu", "sim"),
                         [](auto const& info) { return std::string(info.param); });

}  // namespace
}  // namespace unimem
