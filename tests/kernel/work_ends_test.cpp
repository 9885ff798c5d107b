#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/kernel/launch.hpp>
#include <unimem/manager/memory_manager.hpp>
#include <unimem/pool/memory_pool.hpp>
#include <unimem/pool/upstream.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// What ends in the middle of work, with its last owner: no destructor waits on a thread that runs work, since what it
// waits for may be that work, or come behind it. Each would hang if it went wrong, and ctest ends what hangs.

namespace unimem {
namespace {

using ::testing::Each;

/// The device's own memory, and a count of it. Knows whether any came back before `over` was set.
class WatchedMemory final : public Upstream {
 public:
  [[nodiscard]] DeviceMemory allocate(std::size_t bytes, Location location, Device& device) override {
    auto const memory = device.allocate(bytes, location);
    std::lock_guard const lock{mutex_};
    ++out_;
    return memory;
  }
  void release(DeviceMemory memory, Location location, Device& device) noexcept override {
    device.release(memory, location);
    {
      std::lock_guard const lock{mutex_};
      --out_;
      too_early_ = too_early_ || !over;
    }
    came_back_.notify_all();
  }

  void await_all() {
    std::unique_lock lock{mutex_};
    came_back_.wait(lock, [this] { return out_ == 0; });
  }
  [[nodiscard]] std::size_t out() {
    std::lock_guard const lock{mutex_};
    return out_;
  }
  [[nodiscard]] bool too_early() {
    std::lock_guard const lock{mutex_};
    return too_early_;
  }

  std::atomic<bool> over{false};

 private:
  std::mutex mutex_;
  std::condition_variable came_back_;
  std::size_t out_ = 0;
  bool too_early_ = false;
};

/// Where the last work of a block stands to the kernel that ends its pool.
enum class Behind : std::uint8_t { the_kernel_itself, its_queue, another_queue };
constexpr std::array all_behind{Behind::the_kernel_itself, Behind::its_queue, Behind::another_queue};

class EndsInWork : public ::testing::TestWithParam<char const*> {
 protected:
  BufferOptions here(MemoryManager& manager) {
    BufferOptions options;
    options.manager = &manager;
    options.device = &on;
    return options;
  }

  /// Launches `ends` as a kernel, hands `prepare` an event that cannot come before its end, and lets it begin.
  /// Returns once it has ended; rethrows what it has thrown.
  void end_in_kernel(Behind behind, std::function<void(Event)> const& prepare, std::function<void()> const& ends) {
    std::promise<void> prepared;
    auto const ready = prepared.get_future().share();
    auto const kernel = Kernel("ends").host([&, ready](WorkItem, std::span<int>) {
      ready.wait();
      ends();
    });
    auto const event = launch(queue, kernel, Range{1}, readwrite(x));
    switch (behind) {
      case Behind::the_kernel_itself:
        prepare(event);
        break;
      case Behind::its_queue:
        prepare(queue.mark());
        break;
      case Behind::another_queue:
        second.wait(event);
        prepare(second.mark());
    }
    prepared.set_value();
    event.wait();
  }

  Device& on = std::string_view(GetParam()) == "cpu" ? device("cpu") : make_sim({});
  MemoryManager own;
  Queue queue = on.create_queue(), second = on.create_queue();
  UnifiedBuffer<int> x = [this] {
    UnifiedBuffer<int> buffer(10, here(own));
    buffer.fill(0);
    return buffer;
  }();
};

TEST_P(EndsInWork, APoolGivesBackAfterItsKernel) {
  for (auto const behind : all_behind) {
    auto const memory = std::make_shared<WatchedMemory>();
    PoolOptions options;
    options.upstream = memory;
    auto pool = std::make_optional<MemoryPool>(on, Location::device, options);
    auto done = pool->acquire(1 << 16), pending = pool->acquire(1 << 20);
    end_in_kernel(
        behind,
        [&](Event last) {
          done.release();
          pending.release(last);
        },
        [&] {
          memory->over = true;  // what is not in use may go at once
          pool.reset();
          EXPECT_EQ(memory->out(), 1U) << "what waits for the kernel is still there";
        });
    memory->await_all();
  }
}

TEST_P(EndsInWork, APoolWaitsForItsWork) {
  for (auto const behind : all_behind) {
    auto const memory = std::make_shared<WatchedMemory>();
    PoolOptions options;
    options.upstream = memory;
    auto pool = std::make_optional<MemoryPool>(on, Location::device, options);
    std::vector<Allocation> blocks;
    for (std::size_t i = 1; i <= 8; ++i) blocks.push_back(pool->acquire(i << 16));
    end_in_kernel(
        behind,
        [&](Event last) {
          for (auto& block : blocks) block.release(last);
        },
        [&] {
          pool.reset();
          memory->over = true;
        });
    memory->await_all();
    EXPECT_FALSE(memory->too_early());
  }
}

TEST_P(EndsInWork, BlocksMayBeReleasedInAKernel) {
  for (auto const behind : all_behind) {
    auto const memory = std::make_shared<WatchedMemory>();
    PoolOptions options;
    options.upstream = memory;
    auto pool = std::make_optional<MemoryPool>(on, Location::device, options);
    auto first = pool->acquire(1 << 16), last_one = pool->acquire(1 << 20);
    pool.reset();
    Event pending;
    end_in_kernel(
        behind, [&](Event last) { pending = last; },
        [&] {
          first.release(pending);
          last_one.release(pending);
          memory->over = true;
        });
    memory->await_all();
    EXPECT_FALSE(memory->too_early());
  }
}

/// Pages that were unmapped under work are an error on `sim`, and end the process on `cpu`.
TEST_P(EndsInWork, PagesStayUntilTheirWorkEnds) {
  for (auto const behind : all_behind) {
    PoolOptions options;
    options.backing = PoolBacking::pages;
    auto pool = std::make_optional<MemoryPool>(on, Location::device, options);
    auto block = pool->acquire(8U << 20);
    std::array<std::byte, 4> const pattern{};
    Event filled;
    end_in_kernel(
        behind,
        [&](Event last) {
          if (behind != Behind::its_queue) second.wait(last);
          filled = (behind == Behind::its_queue ? queue : second).fill(block.memory(), pattern);
          block.release(filled);
        },
        [&] { pool.reset(); });
    EXPECT_EQ(filled.wait_for_error(), nullptr);
  }
}

/// A manager whose buffers are gone, but not the work on them.
TEST_P(EndsInWork, AManagerIsEndedByAKernel) {
  for (auto const behind : all_behind) {
    auto manager = std::make_optional<MemoryManager>();
    auto buffer = std::make_optional<UnifiedBuffer<int>>(1000, here(*manager));
    buffer->fill(1);
    auto const add = Kernel("add").host([](WorkItem i, std::span<int> data) { ++data[i.x]; });
    Event added;
    end_in_kernel(
        behind,
        [&](Event last) {
          second.wait(last);
          added = launch(second, add, Range{1000}, readwrite(*buffer));
          buffer.reset();
        },
        [&] { manager.reset(); });
    EXPECT_EQ(added.wait_for_error(), nullptr) << "its memory was there";
  }
}

/// Its last owner is what the kernel has captured, which goes before the kernel's event is done.
TEST_P(EndsInWork, AKernelMayOwnAManager) {
  std::weak_ptr<MemoryManager> seen;
  {
    auto manager = std::make_shared<MemoryManager>();
    seen = manager;
    UnifiedBuffer<int> buffer(1000, here(*manager));
    buffer.fill(1);
    auto const add =
        Kernel("add").host([manager](WorkItem i, std::span<int> data) { data[i.x] += manager != nullptr ? 1 : 0; });
    launch(queue, add, Range{1000}, readwrite(buffer));
  }
  queue.synchronize();
  EXPECT_TRUE(seen.expired());
}

TEST_P(EndsInWork, AQueueFinishesAfterTheKernel) {
  UnifiedBuffer<int> y(100, here(own));
  y.fill(1);
  auto other = std::make_optional(on.create_queue());
  auto const add = Kernel("add").host([](WorkItem i, std::span<int> data) { ++data[i.x]; });
  end_in_kernel(
      Behind::the_kernel_itself,
      [&](Event last) {
        other->wait(last);
        for (int i = 0; i < 10; ++i) launch(*other, add, Range{100}, readwrite(y));
      },
      [&] { other.reset(); });
  EXPECT_FALSE(other.has_value());
  EXPECT_THAT(y.to_vector(), Each(11));
}

/// A callback that waits for a kernel, which ends its subscription, or the manager that calls it.
TEST_P(EndsInWork, ASubscriptionEndsDespiteItsCallback) {
  for (bool const whole_manager : {false, true}) {
    auto manager = std::make_optional<MemoryManager>();
    manager->set_limit(on, Location::device, 1 << 20);
    std::promise<void> called, submitted;
    auto const ready = submitted.get_future().share();
    std::optional<PressureSubscription> subscription;
    Event kernel;
    std::promise<void> callback_over;
    subscription = manager->on_pressure([&, first = true](PressureChange const&) mutable {
      if (!std::exchange(first, false)) return;
      called.set_value();
      ready.wait();
      static_cast<void>(kernel.wait_for_error());
      callback_over.set_value();
    });
    auto block = manager->acquire(on, Location::device, 1000 << 10);
    called.get_future().wait();
    block.release();
    auto const ends = Kernel("ends").host([&, ready](WorkItem, std::span<int>) {
      ready.wait();
      whole_manager ? manager.reset() : subscription.reset();
    });
    kernel = launch(queue, ends, Range{1}, readwrite(x));
    submitted.set_value();
    kernel.wait();
    callback_over.get_future().wait();
    subscription.reset();
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, EndsInWork, ::testing::Values("cpu", "sim"),
                         [](auto const& info) { return std::string(info.param); });

}  // namespace
}  // namespace unimem
