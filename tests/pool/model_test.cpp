#include <unimem/pool/memory_pool.hpp>

#include "core/sizes.hpp"
#include "pool/scripted_device.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <vector>

namespace unimem {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t capacity = 4096 * KiB;

/// Random operations against an independent account of what a pool owes: bytes from the driver's books, hits from the
/// set of blocks seen before, and, for every block, the work that was ever said to use it, held against a vector clock
/// of what each queue, and the host, is ordered behind.
///
/// Where blocks age, time passes by the test's clock, and no block that could be given back may grow much older than
/// the interval, whoever keeps it.
class PoolModel : public ::testing::TestWithParam<unsigned> {
 protected:
  explicit PoolModel(std::chrono::nanoseconds interval) : interval_(interval) { watch_driver(); }
  PoolModel() : PoolModel(0s) {}

  static constexpr std::size_t queues = 3;
  using Clock = std::array<Ticket, queues>;  ///< the last ticket of each queue that has ended by then

  struct Live {
    Allocation block;
    std::optional<std::size_t> queue;
  };

  void watch_driver() {
    for (std::size_t q = 0; q < queues; ++q) {
      queue_.push_back(device_.scripted_queue());
      index_of_[queue_.back().first.id()] = q;
    }
    // Nothing goes back to the driver while work of it is pending.
    device_.on_release = [this](DeviceMemory memory) {
      for (auto const event : work_of_[memory.object]) EXPECT_TRUE(event.ready());
      work_of_.erase(memory.object);
      cached_.erase(memory.object);
      due_.erase(memory.object);
    };
  }

  /// What work number `ticket` of a queue is ordered behind: itself, what was before it, and all that was waited for.
  [[nodiscard]] Clock clock_at(std::size_t queue, Ticket ticket) const {
    Clock clock{};
    if (ticket == 0) return clock;
    auto const& behind = behind_[queue];
    auto found = behind.upper_bound(ticket);
    if (found != behind.begin()) clock = std::prev(found)->second;
    clock[queue] = std::max(clock[queue], ticket);
    return clock;
  }

  /// Carries the waits that the pool has put into a queue over into the clocks.
  void follow(std::size_t queue) {
    auto& script = *queue_[queue].second;
    for (auto const event : script.ordered_behind) {
      auto const now = queue_[queue].first.record().ticket();
      auto clock = clock_at(queue, now);
      auto const other = clock_at(index_of_.at(event.queue_id()), event.ticket());
      for (std::size_t i = 0; i < queues; ++i) clock[i] = std::max(clock[i], other[i]);
      behind_[queue][now] = clock;
    }
    script.ordered_behind.clear();
  }

  void check_ordered(Live const& taken) {
    for (auto const event : work_of_[taken.block.memory().object]) {
      if (event.ready()) continue;
      ASSERT_TRUE(taken.queue) << "the host was handed a block with pending work";
      auto const clock = clock_at(*taken.queue, queue_[*taken.queue].first.record().ticket());
      ASSERT_GE(clock[index_of_.at(event.queue_id())], event.ticket()) << "a queue was not ordered behind pending work";
    }
  }

  [[nodiscard]] std::size_t random_below(std::size_t bound) { return random_() % bound; }

  [[nodiscard]] std::size_t random_size() { return 1 + random_() % (std::size_t{1} << (1 + random_below(20))); }

  void acquire() {
    auto const bytes = random_size();
    auto const queue = random_below(3) == 0 ? std::nullopt : std::optional{random_below(queues)};
    AcquireOptions options;
    if (queue) options.queue = &queue_[*queue].first;
    auto const before = pool_.statistics();
    auto const old = overdue();
    try {
      Live taken{pool_.acquire(bytes, options), queue};
      ++acquired_;
      for (std::size_t q = 0; q < queues; ++q) follow(q);
      auto const object = taken.block.memory().object;
      bool const hit = cached_.erase(object) != 0;
      due_.erase(object);
      behind_of_[object] = queue ? queue_[*queue].first.record() : Event{};
      hits_ += hit ? 1 : 0;
      ASSERT_EQ(pool_.statistics().pool_hits, before.pool_hits + (hit ? 1 : 0));
      ASSERT_GE(taken.block.capacity(), bytes);
      ASSERT_LE(taken.block.capacity(), bytes + std::max<std::size_t>(bytes / 8, 4 * KiB)) << "nearly exact";
      ASSERT_TRUE(held_.insert(object).second) << "one block in two hands";
      check_ordered(taken);
      check_ages(old);
      live_bytes_ += taken.block.capacity();
      peak_live_bytes_ = std::max(peak_live_bytes_, live_bytes_);
      live_.push_back(std::move(taken));
    } catch (OutOfMemory const& error) {
      ++failed_;
      ASSERT_EQ(error.live(), live_bytes_);
      ASSERT_EQ(pool_.statistics().active_bytes, before.active_bytes);
      // It may fail only for want of memory: what is live, this and all rounding do not fit together.
      ASSERT_GT(live_bytes_ + bytes, std::min(pool_.max_bytes(), planned_fault_ ? 0 : capacity));
    }
  }

  void release() {
    if (live_.empty()) return;
    std::swap(live_[random_below(live_.size())], live_.back());
    auto taken = std::move(live_.back());
    live_.pop_back();
    auto const object = taken.block.memory().object;
    live_bytes_ -= taken.block.capacity();
    held_.erase(object);
    cached_.insert(object);
    Event last_use;
    if (random_below(3) != 0) {
      auto const queue = taken.queue && random_below(4) != 0 ? *taken.queue : random_below(queues);
      last_use = queue_[queue].second->work();
      work_of_[object].push_back(last_use);
    }
    auto const old = overdue();
    due_[object] = time_ + interval_;
    taken.block.release(last_use);
    check_ages(old);
  }

  /// Those that any acquire and release from now on must give back, having missed the latest look at all.
  [[nodiscard]] std::vector<std::uintptr_t> overdue() {
    std::vector<std::uintptr_t> found;
    if (interval_.count() == 0) return found;
    for (auto& [object, due] : due_) {
      bool const pending = !behind_of_[object].ready() ||
                           !std::ranges::all_of(work_of_[object], [](Event event) { return event.ready(); });
      if (pending) due = std::max(due, time_);
      if (time_ - due > interval_ / 8) found.push_back(object);
    }
    return found;
  }

  void check_ages(std::vector<std::uintptr_t> const& overdue) {
    for (auto const object : overdue) ASSERT_FALSE(cached_.contains(object)) << "a block has been kept for too long";
  }

  void step() {
    if (random_below(3) == 0) time_ += std::chrono::milliseconds{random_below(1'000)};
    switch (random_below(12)) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4:
        acquire();
        break;
      case 5:
      case 6:
      case 7:
      case 8:
        release();
        break;
      case 9:
        queue_[random_below(queues)].second->finish_all();
        break;
      case 10:
        if (random_below(8) == 0) pool_.trim(random_below(capacity));
        if (random_below(8) == 0) pool_.defragment();
        break;
      default:
        if (random_below(8) != 0) break;
        auto const limit = random_below(2 * capacity);
        if (limit >= live_bytes_) {
          pool_.set_max_bytes(limit);
        } else {
          EXPECT_THROW(pool_.set_max_bytes(limit), InvalidArgument);
        }
    }
  }

  void check_counts() {
    pool_.validate();
    auto const statistics = pool_.statistics();
    ASSERT_EQ(statistics.total_allocations, acquired_);
    ASSERT_EQ(statistics.pool_hits, hits_);
    ASSERT_EQ(statistics.failed_allocations, failed_);
    ASSERT_EQ(statistics.active_allocations, live_.size());
    ASSERT_EQ(statistics.active_bytes, live_bytes_);
    ASSERT_EQ(statistics.peak_active_bytes, peak_live_bytes_);
    ASSERT_EQ(statistics.reserved_bytes, device_.live_bytes());
    ASSERT_EQ(statistics.peak_reserved_bytes, device_.peak_bytes());
    ASSERT_LE(statistics.reserved_bytes, pool_.max_bytes());
    ASSERT_EQ(held_.size() + cached_.size(), device_.live_blocks());
    auto const free = pool_.fragmentation();
    ASSERT_EQ(free.total_free, statistics.total_pooled_bytes);
    ASSERT_LE(free.largest_free_block, free.total_free);
  }

  std::mt19937 random_{GetParam()};
  ScriptedDevice device_{capacity};
  std::vector<std::pair<Queue, Script*>> queue_;
  std::map<std::uint64_t, std::size_t> index_of_;
  std::array<std::map<Ticket, Clock>, queues> behind_;
  std::map<std::uintptr_t, std::vector<Event>> work_of_;
  std::set<std::uintptr_t> held_, cached_;
  std::chrono::nanoseconds const interval_;
  std::chrono::steady_clock::time_point time_{1h};
  std::map<std::uintptr_t, std::chrono::steady_clock::time_point> due_;  ///< when cached blocks are too old
  std::map<std::uintptr_t, Event> behind_of_;  ///< what the last owner's queue had before it got the block
  MemoryPool pool_{device_, Location::device, {.trim_interval = interval_, .clock = [this] { return time_; }}};
  std::vector<Live> live_;  ///< goes before the pool
  std::size_t live_bytes_ = 0, peak_live_bytes_ = 0;
  std::uint64_t acquired_ = 0, hits_ = 0, failed_ = 0;
  bool planned_fault_ = false;
};

TEST_P(PoolModel, CountsBlocksAndOrdersUses) {
  SCOPED_TRACE(::testing::Message() << "seed " << GetParam());
  for (int i = 0; i < 20'000; ++i) {
    SCOPED_TRACE(::testing::Message() << "step " << i);
    ASSERT_NO_FATAL_FAILURE(step());
    ASSERT_NO_FATAL_FAILURE(check_counts());
  }
  EXPECT_GT(hits_, 1000U);
  EXPECT_GT(failed_, 10U);
}

TEST_P(PoolModel, AlsoWhenTheDriverFailsAtRandom) {
  SCOPED_TRACE(::testing::Message() << "seed " << GetParam());
  planned_fault_ = true;
  std::mt19937 faults{GetParam() + 1};
  device_.on_allocate = [&faults](std::size_t) {
    if (faults() % 3 != 0) return;
    OutOfMemory::Facts facts;
    facts.reason = "planned";
    throw OutOfMemory(facts);
  };
  for (int i = 0; i < 10'000; ++i) {
    SCOPED_TRACE(::testing::Message() << "step " << i);
    ASSERT_NO_FATAL_FAILURE(step());
    ASSERT_NO_FATAL_FAILURE(check_counts());
  }
  EXPECT_GT(failed_, 100U);
}

class AgingPoolModel : public PoolModel {
 protected:
  AgingPoolModel() : PoolModel(10s) {}
};

TEST_P(AgingPoolModel, NoBlockIsKeptForLong) {
  SCOPED_TRACE(::testing::Message() << "seed " << GetParam());
  for (int i = 0; i < 20'000; ++i) {
    SCOPED_TRACE(::testing::Message() << "step " << i);
    ASSERT_NO_FATAL_FAILURE(step());
    ASSERT_NO_FATAL_FAILURE(check_counts());
  }
  EXPECT_GT(hits_, 500U);
}

INSTANTIATE_TEST_SUITE_P(Seeds, AgingPoolModel, ::testing::Values(1U, 2U, 3U, 2026U));
INSTANTIATE_TEST_SUITE_P(Seeds, PoolModel, ::testing::Values(1U, 2U, 3U, 2026U));

}  // namespace
}  // namespace unimem
