#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"
#include "device/queue_backend.hpp"

#include <cstring>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

namespace unimem::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

/// A discrete device of addresses, with managed memory too, whose driver takes advice: what it was told and not told to
/// forget can be looked at.
class AdvisedDevice final : public Device {
 public:
  struct Told {
    std::size_t offset = 0, bytes = 0;
    Advice advice = Advice::read_mostly;
    Device const* place = nullptr;
    friend bool operator==(Told const&, Told const&) = default;
  };

  explicit AdvisedDevice(std::string id) : Device(Backend::sim, std::move(id)) {
    info_.total_bytes = info_.max_allocation = std::size_t{1} << 20;
    info_.alignment = 64;
  }

  [[nodiscard]] MemoryInfo memory_info() const override { return {info_.total_bytes, info_.total_bytes}; }
  [[nodiscard]] DeviceMemory allocate(std::size_t bytes, Location location) override {
    auto const object = reinterpret_cast<std::uintptr_t>(::operator new(bytes, std::align_val_t{64}));
    locations_.emplace(object, location);
    return {object, 0, bytes};
  }
  void release(DeviceMemory memory, Location location) noexcept override {
    EXPECT_EQ(locations_.at(memory.object), location);
    locations_.erase(memory.object);
    for (auto const& [at, told] : told_) EXPECT_NE(at, memory.object) << "released with advice on it";
    ::operator delete(reinterpret_cast<void*>(memory.object), std::align_val_t{64});
  }
  [[nodiscard]] bool shares_storage_with_host() const noexcept override { return false; }
  [[nodiscard]] bool has_unified_memory() const noexcept override { return true; }
  [[nodiscard]] void* address(DeviceMemory memory) override {
    return reinterpret_cast<void*>(memory.object + memory.offset);
  }
  [[nodiscard]] std::shared_ptr<Program const> compile(ProgramSource const&) override { return nullptr; }

  void advise(DeviceMemory memory, Location location, Advice advice, Device const* place,
              bool holds) noexcept override {
    ++calls;
    EXPECT_EQ(locations_.at(memory.object), location);
    Told const told{memory.offset, memory.bytes, advice, place};
    if (holds) {
      told_.emplace_back(memory.object, told);
    } else {
      EXPECT_EQ(std::erase(told_, std::pair{memory.object, told}), 1U) << "forgets what it was told, and nothing else";
    }
  }

  [[nodiscard]] std::vector<Told> told() const {
    std::vector<Told> result;
    for (auto const& [at, told] : told_) result.push_back(told);
    return result;
  }

  int calls = 0;

 protected:
  [[nodiscard]] std::unique_ptr<detail::QueueBackend> make_queue() override { return std::make_unique<AtOnce>(); }

 private:
  /// Work that has ended when it has been submitted.
  class AtOnce final : public detail::QueueBackend {
   public:
    Event upload(DeviceMemory to, void const* from, std::size_t bytes, detail::CopyTerms const&) override {
      std::memcpy(reinterpret_cast<void*>(to.object + to.offset), from, bytes);
      return mark();
    }
    Event download(void* to, DeviceMemory from, std::size_t bytes, detail::CopyTerms const&) override {
      std::memcpy(to, reinterpret_cast<void const*>(from.object + from.offset), bytes);
      return mark();
    }
    Event copy(DeviceMemory to, DeviceMemory from, std::size_t bytes, detail::CopyTerms const& needs) override {
      return upload(to, reinterpret_cast<void const*>(from.object + from.offset), bytes, needs);
    }
    Event fill(DeviceMemory, std::span<const std::byte>) override { return mark(); }
    Event run(std::shared_ptr<Program const>, Range, std::span<const KernelArgument>, std::span<const Event>) override {
      return mark();
    }
    Event mark() override {
      auto const event = control().submit();
      control().finish(event.ticket());
      return event;
    }
    void wait(Event event) override { static_cast<void>(event.wait_for_error()); }
  };

  std::map<std::uintptr_t, Location> locations_;
  std::vector<std::pair<std::uintptr_t, Told>> told_;
};

class Advised : public BufferTest {
 protected:
  [[nodiscard]] BufferOptions on_advised() {
    auto options = on_sim();
    options.device = &advised;
    return options;
  }

  using Told = AdvisedDevice::Told;
  static inline Device& host = device("cpu");
  /// Devices live as long as the process; of the tests each has its own.
  static AdvisedDevice& another() {
    static auto& all = *new std::vector<std::unique_ptr<AdvisedDevice>>;
    return *all.emplace_back(std::make_unique<AdvisedDevice>("advised:0"));
  }
  AdvisedDevice& advised = another();
};

TEST_F(Advised, AdviceOnAnyBufferChangesNothingElse) {
  for (auto* const on : {&host, &sim}) {
    auto options = on_sim();
    options.device = on;
    for (auto const location : {Location::device, Location::pinned, Location::host, Location::unified}) {
      if (location == Location::unified && on == &sim) continue;  // the buffer itself is refused
      options.location = location;
      UnifiedBuffer<std::uint32_t> buffer(100, options);
      buffer.advise(Advice::read_mostly).advise(Advice::preferred_location, host).advise(Advice::accessed_by, other);
      buffer.advise(Advice::preferred_location, *on);
      EXPECT_FALSE(buffer.is_allocated()) << "a hint";
      buffer.copy_from(counting(100));
      set(on->default_queue(), buffer.slice(10, 5), 7);
      auto expected = counting(100);
      std::fill_n(expected.begin() + 10, 5, 7U);
      EXPECT_EQ(buffer.to_vector(), expected);
      auto const state = buffer.state();
      auto const counts = moved(buffer.statistics());
      buffer.unadvise(Advice::read_mostly).advise(Advice::accessed_by, *on).advise(Advice::preferred_location, other);
      EXPECT_EQ(buffer.state(), state);
      EXPECT_EQ(moved(buffer.statistics()), counts);
      EXPECT_EQ(counts, on == &sim ? (Moved{0, 0, 20, 1}) : Moved{}) << "what the device wrote";
    }
  }
}

TEST_F(Advised, PrefetchingAdvisedUnifiedMemoryTransfersNothing) {
  auto options = on_sim();
  options.location = Location::unified;
  options.device = &host;
  UnifiedBuffer<std::uint32_t> buffer(100, options);
  buffer.copy_from(counting(100));
  buffer.advise(Advice::preferred_location, host).advise(Advice::read_mostly);
  auto const before = host.transfers();
  auto const* const address = buffer.host_view().data();
  buffer.prefetch().wait();
  buffer.prefetch(host.default_queue()).wait();
  EXPECT_EQ(buffer.device_view().data(), address);
  EXPECT_EQ(buffer.state(), BufferState::synchronized);
  EXPECT_EQ(buffer.to_vector(), counting(100));
  EXPECT_EQ(moved(buffer.statistics()), Moved{});
  EXPECT_EQ(host.transfers(), before);
}

TEST_F(Advised, ManagedMemoryIsOneCopyForBothSides) {
  auto options = on_advised();
  UnifiedBuffer<std::uint32_t> copied(100, options);
  options.location = Location::unified;
  UnifiedBuffer<std::uint32_t> managed(100, options);
  for (auto* const buffer : {&copied, &managed}) {
    buffer->advise(Advice::preferred_location);
    buffer->copy_from(counting(100));
    auto const* const at_host = buffer->host_view().data();
    {
      auto const lease = buffer->device();
      EXPECT_EQ(lease.data() == at_host, buffer == &managed);
      lease.data()[0] = 5;
    }
    buffer->prefetch().wait();
    auto expected = counting(100);
    expected[0] = 5;
    EXPECT_EQ(buffer->to_vector(), expected);
    EXPECT_EQ(moved(buffer->statistics()), buffer == &managed ? Moved{} : (Moved{400, 1, 400, 1}));
    buffer->core().validate();
  }
  EXPECT_EQ(advised.told().size(), 2U);
  EXPECT_EQ(manager.pool(advised, Location::unified).statistics().active_allocations, 1U);
  EXPECT_EQ(manager.pool(advised, Location::device).statistics().active_allocations, 1U);

  add(sim.default_queue(), managed.slice(0), 1);
  EXPECT_EQ(managed.device_view().data()[0], 6U);
  EXPECT_EQ(moved(managed.statistics()), (Moved{400, 1, 400, 1})) << "from and to a device that cannot reach it";
}

TEST_F(Advised, WhatHoldsIsListedByBytesAndPlace) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
  EXPECT_THAT(buffer.advice(), IsEmpty());
  buffer.slice(10, 20).advise(Advice::read_mostly);
  buffer.slice(30, 20).advise(Advice::read_mostly, other);  // of no place all the same
  buffer.slice(90, 0).advise(Advice::accessed_by);
  buffer.advise(Advice::accessed_by);
  buffer.advise(Advice::accessed_by, other);
  EXPECT_THAT(buffer.advice(), ElementsAre(AdvisedRange{Advice::read_mostly, nullptr, {40, 200}},
                                           AdvisedRange{Advice::accessed_by, &sim, {0, 400}},
                                           AdvisedRange{Advice::accessed_by, &other, {0, 400}}));
  buffer.slice(20, 5).unadvise(Advice::read_mostly).unadvise(Advice::preferred_location);
  buffer.unadvise(Advice::accessed_by, sim);
  EXPECT_THAT(buffer.advice(), ElementsAre(AdvisedRange{Advice::read_mostly, nullptr, {40, 80}},
                                           AdvisedRange{Advice::read_mostly, nullptr, {100, 200}},
                                           AdvisedRange{Advice::accessed_by, &other, {0, 400}}));
}

TEST_F(Advised, OfPreferredLocationsTheLastCounts) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
  buffer.advise(Advice::preferred_location, host);
  buffer.slice(25, 50).advise(Advice::preferred_location);
  buffer.slice(50, 25).unadvise(Advice::preferred_location, host);  // it is not there
  EXPECT_THAT(buffer.advice(), ElementsAre(AdvisedRange{Advice::preferred_location, &host, {0, 100}},
                                           AdvisedRange{Advice::preferred_location, &host, {300, 400}},
                                           AdvisedRange{Advice::preferred_location, &sim, {100, 300}}));
}

TEST_F(Advised, StorageAllocatedLaterIsAdvisedOnce) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_advised());
  buffer.advise(Advice::read_mostly).slice(50, 10).advise(Advice::preferred_location);
  EXPECT_EQ(advised.calls, 0) << "there is nothing to be advised on";
  buffer.copy_from(counting(100));
  buffer.sync_to_device();
  Told const mostly{0, 400, Advice::read_mostly, nullptr}, preferred{200, 40, Advice::preferred_location, &advised};
  EXPECT_THAT(advised.told(), UnorderedElementsAre(mostly, preferred));
  buffer.advise(Advice::read_mostly).slice(50, 10).advise(Advice::preferred_location);
  EXPECT_EQ(advised.calls, 2) << "it knows";
  buffer.slice(50, 10).advise(Advice::preferred_location, host);
  Told const at_host{200, 40, Advice::preferred_location, &host};
  EXPECT_THAT(advised.told(), UnorderedElementsAre(mostly, at_host));

  buffer.release_device();
  EXPECT_THAT(advised.told(), IsEmpty()) << "the block is somebody else's next";
  buffer.sync_to_device();
  EXPECT_THAT(advised.told(), UnorderedElementsAre(mostly, at_host));
  buffer.free();
  EXPECT_THAT(advised.told(), IsEmpty());
  std::ignore = buffer.device();
  EXPECT_THAT(advised.told(), UnorderedElementsAre(mostly, at_host));
  buffer.unadvise(Advice::read_mostly);
  EXPECT_THAT(advised.told(), ElementsAre(at_host));
  buffer.reset();
  std::ignore = buffer.device();
  EXPECT_THAT(advised.told(), IsEmpty());
  EXPECT_THAT(buffer.advice(), IsEmpty());
}

TEST_F(Advised, AResizeExtendsAdviceOnTheWholeBuffer) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_advised());
  buffer.advise(Advice::accessed_by).slice(40, 50).advise(Advice::preferred_location);
  {
    auto const lease = buffer.device_overwrite();
    std::copy_n(counting(100).data(), 100, lease.data());
  }
  buffer.resize(200);
  EXPECT_THAT(advised.told(), UnorderedElementsAre(Told{0, 800, Advice::accessed_by, &advised},
                                                   Told{160, 200, Advice::preferred_location, &advised}));
  EXPECT_EQ(std::vector(buffer.host_view().begin(), buffer.host_view().begin() + 100), counting(100));
  buffer.resize(60);
  EXPECT_THAT(buffer.advice(), ElementsAre(AdvisedRange{Advice::accessed_by, &advised, {0, 240}},
                                           AdvisedRange{Advice::preferred_location, &advised, {160, 240}}));
  EXPECT_EQ(buffer.to_vector(), counting(60));
}

TEST_F(Advised, ARecycledBlockCarriesNoAdvice) {
  {
    UnifiedBuffer<std::uint32_t> buffer(100, on_advised());
    buffer.advise(Advice::read_mostly);
    std::ignore = buffer.device();
    EXPECT_EQ(advised.told().size(), 1U);
  }
  UnifiedBuffer<std::uint32_t> next(100, on_advised());
  std::ignore = next.device();
  EXPECT_EQ(manager.pool(advised, Location::device).statistics().pool_hits, 1U);
  EXPECT_THAT(advised.told(), IsEmpty());
  EXPECT_THAT(next.clone().advise(Advice::read_mostly).clone().advice(), IsEmpty()) << "a clone starts without";
}

TEST_F(Advised, BadAdviceIsRefusedBeforeAnythingChanges) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_advised());
  auto const outgrown = buffer.slice(50, 50);
  std::ignore = buffer.device();
  buffer.advise(Advice::read_mostly);
  auto const before = buffer.advice();
  try {
    buffer.advise(static_cast<Advice>(3));
    FAIL() << "there is no such advice";
  } catch (InvalidArgument const& error) {
    EXPECT_EQ(error.argument, "advice");
    EXPECT_EQ(error.value, "3");
  }
  EXPECT_THROW(buffer.unadvise(static_cast<Advice>(255), sim), InvalidArgument);
  EXPECT_THROW(buffer.core().advise({392, 404}, Advice::read_mostly, nullptr, false), InvalidArgument);
  EXPECT_EQ(buffer.advice(), before);
  EXPECT_EQ(advised.calls, 1);

  buffer.resize(80);
  EXPECT_THROW(BufferSlice(outgrown).advise(Advice::read_mostly), InvalidArgument);
  auto const moved_on = std::move(buffer);
  EXPECT_THROW(buffer.advise(Advice::read_mostly), InvalidArgument);  // NOLINT(bugprone-use-after-move)
  EXPECT_THROW(std::ignore = buffer.advice(), InvalidArgument);       // NOLINT(bugprone-use-after-move)
  EXPECT_THROW(BufferSlice<std::uint32_t>{}.advise(Advice::read_mostly), InvalidArgument);
}

TEST(AdviceWords, AreThoseOfTheField) {
  EXPECT_EQ(to_string(Advice::read_mostly), "read_mostly");
  EXPECT_EQ(to_string(Advice::preferred_location), "preferred_location");
  EXPECT_EQ(to_string(Advice::accessed_by), "accessed_by");
  EXPECT_EQ(to_string(static_cast<Advice>(9)), "unknown");
}

}  // namespace
}  // namespace unimem::testing
