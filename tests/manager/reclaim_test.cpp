#include <unimem/device/discovery.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "core/sizes.hpp"
#include "pool/scripted_device.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace unimem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// A stand-in for a buffer: holds device memory, gives it back when asked, and notes that it was.
class Holder final : public Resident {
 public:
  Holder(MemoryManager& manager, Device& device, std::size_t bytes, double cost_seconds,
         std::vector<std::string>& asked, std::string name)
      : manager_(manager),
        device_(device),
        block_(manager.acquire(device, Location::device, bytes, {.name = Name{name}})),
        cost_seconds_(cost_seconds),
        asked_(asked),
        name_(std::move(name)) {
    manager_.add_resident(*this);
  }
  ~Holder() override { manager_.remove_resident(*this); }

  [[nodiscard]] Evictable evictable(MemoryPlace place, std::span<const ByteRange> /*used*/) noexcept override {
    if (leased || place != MemoryPlace{&device_, Location::device} || block_.empty()) return {};
    return {block_.capacity(), cost_seconds_};
  }
  std::size_t evict(MemoryPlace, std::span<const ByteRange>) override {
    asked_.push_back(name_);
    if (on_reclaim) on_reclaim();
    auto const bytes = block_.capacity();
    block_.release();
    return bytes;
  }

  [[nodiscard]] bool holds() const noexcept { return !block_.empty(); }

  bool leased = false;
  std::function<void()> on_reclaim;  ///< runs where a buffer would save its bytes; may throw

 private:
  MemoryManager& manager_;
  Device& device_;
  Allocation block_;
  double cost_seconds_;
  std::vector<std::string>& asked_;
  std::string name_;
};

class Reclaim : public ::testing::Test {
 protected:
  [[nodiscard]] std::unique_ptr<Holder> holder(std::string name, std::size_t bytes, double cost_seconds) {
    return std::make_unique<Holder>(manager, device, bytes, cost_seconds, asked, std::move(name));
  }
  [[nodiscard]] Allocation acquire(std::size_t bytes) { return manager.acquire(device, Location::device, bytes); }

  ScriptedDevice device{16 * MiB}, other{16 * MiB};
  MemoryManager manager;
  std::vector<std::string> asked;
};

TEST_F(Reclaim, TheCheapestPerByteGoFirst) {
  auto const dear = holder("dear", 4 * MiB, 4.0), cheap = holder("cheap", 2 * MiB, 1.0);
  auto const cheapest = holder("cheapest", 8 * MiB, 2.0);  // the most in all, but the least per byte
  auto const free = holder("free", MiB, 0);

  auto const block = acquire(9 * MiB);
  EXPECT_THAT(asked, ElementsAre("free", "cheapest"));
  EXPECT_TRUE(cheap->holds());
  EXPECT_TRUE(dear->holds());
  auto const statistics = manager.statistics();
  EXPECT_EQ(statistics.reclaims, 2U);
  EXPECT_EQ(statistics.reclaimed_bytes, 9 * MiB);
  EXPECT_EQ(statistics.failed_reclaims, 0U);
}

TEST_F(Reclaim, NobodyIsAskedWhileCachesSuffice) {
  auto const held = holder("held", 8 * MiB, 0);
  acquire(8 * MiB).release();
  auto const block = acquire(5 * MiB);
  EXPECT_THAT(asked, IsEmpty());
}

TEST_F(Reclaim, NoResidentIsAskedBeyondTheDevicesSize) {
  auto const held = holder("held", 8 * MiB, 0);
  EXPECT_THROW((void)acquire(16 * MiB + 1), OutOfMemory);
  EXPECT_THAT(asked, IsEmpty());
}

TEST_F(Reclaim, NoResidentIsAskedInVain) {
  auto const first = holder("first", 3 * MiB, 0), second = holder("second", 3 * MiB, 0);
  auto const in_use = acquire(8 * MiB);
  EXPECT_THROW((void)acquire(9 * MiB), OutOfMemory);
  EXPECT_THAT(asked, IsEmpty()) << "they would lose their copies for nothing";
  auto const fits = acquire(8 * MiB);
  EXPECT_EQ(asked.size(), 2U);
}

TEST_F(Reclaim, LeasedAndForeignResidentsAreLeftAlone) {
  auto const leased = holder("leased", 4 * MiB, 0), held = holder("held", 4 * MiB, 1);
  auto const elsewhere = std::make_unique<Holder>(manager, other, 4 * MiB, 0, asked, "elsewhere");
  leased->leased = true;
  auto const block = acquire(11 * MiB);
  EXPECT_THAT(asked, ElementsAre("held"));
}

/// One that ends on another thread as it is asked what it has: its memory is back already, and nobody has been told.
TEST_F(Reclaim, MemoryReturnedDuringTheSurveyIsFound) {
  class Ending final : public Resident {
   public:
    explicit Ending(Allocation block) : block_(std::move(block)) {}
    [[nodiscard]] Evictable evictable(MemoryPlace, std::span<const ByteRange>) noexcept override {
      block_.release();
      return {};
    }
    std::size_t evict(MemoryPlace, std::span<const ByteRange>) override { return 0; }

   private:
    Allocation block_;
  } ending{acquire(12 * MiB)};
  manager.add_resident(ending);
  EXPECT_EQ(acquire(8 * MiB).capacity(), 8 * MiB);
  EXPECT_EQ(manager.statistics().refusals, 0U);
  manager.remove_resident(ending);
}

TEST_F(Reclaim, HostMemoryIsNeverTakenFromDeviceCopies) {
  auto const held = holder("held", 8 * MiB, 0);
  EXPECT_THROW((void)manager.acquire(device, Location::host, device.info().total_bytes << 30), OutOfMemory);
  EXPECT_THAT(asked, IsEmpty());
}

TEST_F(Reclaim, AfterAFailedSaveTheNextIsAsked) {
  auto const broken = holder("broken", 8 * MiB, 0), sound = holder("sound", 8 * MiB, 1);
  broken->on_reclaim = [] { throw DeviceError("scripted", "download", -7, "SCRIPTED_FAILURE"); };
  auto const block = acquire(4 * MiB);
  EXPECT_THAT(asked, ElementsAre("broken", "sound"));
  EXPECT_TRUE(broken->holds());
  EXPECT_EQ(manager.statistics().failed_reclaims, 1U);
}

TEST_F(Reclaim, IfNoOtherHelpsTheErrorSaysWhy) {
  auto const broken = holder("broken", 16 * MiB, 0);
  broken->on_reclaim = [] { throw DeviceError("scripted", "download", -7, "SCRIPTED_FAILURE"); };
  try {
    auto const block = acquire(4 * MiB);
    ADD_FAILURE() << "was granted";
  } catch (OutOfMemory const& error) {
    EXPECT_THAT(error.facts().reason, HasSubstr("SCRIPTED_FAILURE"));
    EXPECT_THAT(error.what(), HasSubstr("16 MiB in 1 allocation of broken"));
  }
  EXPECT_THAT(asked, ElementsAre("broken"));
}

TEST_F(Reclaim, SavingMayUseTheManagersHostMemory) {
  auto const held = holder("held", 12 * MiB, 0);
  held->on_reclaim = [&] { EXPECT_FALSE(manager.acquire(device, Location::host, 12 * MiB).empty()); };
  EXPECT_FALSE(acquire(8 * MiB).empty());
}

TEST_F(Reclaim, SavingNeverWaitsForItsOwnDeviceMemory) {
  auto const held = holder("held", 16 * MiB, 0);
  held->on_reclaim = [&] { EXPECT_FALSE(acquire(MiB).empty()); };
  EXPECT_THROW((void)acquire(8 * MiB), OutOfMemory);
  EXPECT_TRUE(held->holds());
}

TEST_F(Reclaim, SavingHoldsNoLockOfTheManager) {
  auto const held = holder("held", 16 * MiB, 0);
  held->on_reclaim = [&] {
    std::jthread{[&] {  // would hang
      EXPECT_EQ(manager.available_memory(device), 0U);
      auto const another = std::make_unique<Holder>(manager, device, 0, 0, asked, "another");
      EXPECT_EQ(manager.statistics().reclaims, 0U);
    }};
  };
  EXPECT_FALSE(acquire(8 * MiB).empty());
}

TEST_F(Reclaim, AResidentMayRemoveItselfDuringReclaim) {
  auto const held = holder("held", 16 * MiB, 0);
  held->on_reclaim = [&] { manager.remove_resident(*held); };
  EXPECT_FALSE(acquire(8 * MiB).empty());
  EXPECT_FALSE(acquire(16 * MiB).empty());
  EXPECT_THAT(asked, ElementsAre("held")) << "it is known no more";
}

TEST_F(Reclaim, RemovalWaitsForTheCallThatIsRunning) {
  auto const held = holder("held", 16 * MiB, 0);
  std::latch inside{1};
  std::atomic<bool> may_go_on{false}, left{false};
  held->on_reclaim = [&] {
    inside.count_down();
    may_go_on.wait(false);
    left = true;
  };
  std::jthread asker{[&] { EXPECT_FALSE(acquire(8 * MiB).empty()); }};
  inside.wait();
  std::jthread remover{[&] {
    may_go_on = true;
    may_go_on.notify_all();
    manager.remove_resident(*held);
    EXPECT_TRUE(left);
  }};
}

TEST_F(Reclaim, ASaveOfAnotherThreadIsAwaited) {
  auto const held = holder("held", 16 * MiB, 0);
  std::latch inside{1};
  std::atomic<bool> second_has_come{false};
  held->on_reclaim = [&] {
    inside.count_down();
    second_has_come.wait(false);
  };
  std::jthread first{[&] { EXPECT_FALSE(acquire(8 * MiB).empty()); }};
  inside.wait();
  std::jthread second{[&] {  // the only resident is busy: nothing is on offer, and yet all will be well
    second_has_come = true;
    second_has_come.notify_all();
    EXPECT_FALSE(acquire(8 * MiB).empty());
  }};
  first.join();
  second.join();
  EXPECT_EQ(asked.size(), 1U);
}

/// Residents that come, go, fill up and are reclaimed in four threads at once.
TEST(ReclaimThreads, ResidentsComeAndGoWhileOthersAreReclaimed) {
  /// Its bytes say whose they are for as long as it holds them.
  class Transient final : public Resident {
   public:
    Transient(MemoryManager& manager, Device& device, std::size_t bytes, unsigned owner)
        : manager_(manager), owner_(owner), block_(manager.acquire(device, Location::device, bytes)) {
      fill(owner_);
      manager_.add_resident(*this);
    }
    ~Transient() override {
      manager_.remove_resident(*this);
      if (!block_.empty()) {
        EXPECT_EQ(*first(), owner_);
      }
    }
    [[nodiscard]] Evictable evictable(MemoryPlace, std::span<const ByteRange>) noexcept override {
      std::unique_lock const lock{mutex_, std::try_to_lock};
      return lock.owns_lock() && !block_.empty() ? Evictable{block_.capacity(), 1.0} : Evictable{};
    }
    std::size_t evict(MemoryPlace, std::span<const ByteRange>) override {
      EXPECT_FALSE(inside_.exchange(true)) << "two threads save one resident";
      std::this_thread::yield();
      auto const bytes = give_back();
      inside_ = false;
      return bytes;
    }

   private:
    std::size_t give_back() {
      std::unique_lock const lock{mutex_, std::try_to_lock};
      if (!lock.owns_lock() || block_.empty()) return 0;
      EXPECT_EQ(*first(), owner_);
      auto const bytes = block_.capacity();
      fill(99);
      block_.release();
      return bytes;
    }
    [[nodiscard]] unsigned* first() const { return static_cast<unsigned*>(block_.data()); }
    void fill(unsigned value) { *first() = value; }

    MemoryManager& manager_;
    unsigned owner_;
    std::atomic<bool> inside_{false};
    std::mutex mutex_;
    Allocation block_;
  };

  constexpr unsigned thread_count = 4;
  ScriptedDevice device{64 * MiB};
  MemoryManager manager;
  manager.set_limit(device, MiB);  // less than any thread alone would like to hold
  std::atomic<std::uint64_t> refused{0};
  {
    std::barrier start{thread_count};
    std::vector<std::jthread> threads;
    for (unsigned thread = 0; thread < thread_count; ++thread) {
      threads.emplace_back([&, thread] {
        std::mt19937 random{thread};
        std::vector<std::unique_ptr<Transient>> mine;
        start.arrive_and_wait();
        for (int i = 0; i < 1'500; ++i) {
          if (mine.size() < 8 && random() % 3 != 0) {
            try {
              mine.push_back(std::make_unique<Transient>(manager, device, 8 + random() % (512 * KiB), thread));
            } catch (OutOfMemory const&) {
              ++refused;
            }
          } else if (!mine.empty()) {
            mine.erase(mine.begin() + static_cast<std::ptrdiff_t>(random() % mine.size()));
          }
        }
      });
    }
  }
  auto const statistics = manager.statistics();
  EXPECT_GT(statistics.reclaims, 0U);
  EXPECT_EQ(statistics.active_allocations, 0U);
  EXPECT_EQ(statistics.active_bytes, 0U);
  EXPECT_LE(device.peak_bytes(), MiB);
  manager.pool(device, Location::device).validate();
}

}  // namespace
}  // namespace unimem
