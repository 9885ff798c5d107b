#include <unimem/buffer/buffer_pool.hpp>
#include <unimem/core/error.hpp>
#include <unimem/share/buffer_registry.hpp>

#include "buffer/buffer_fixture.hpp"
#include "device/gate.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace unimem::testing {
namespace {

using ::testing::Each;

using Words = UnifiedBuffer<std::uint32_t>;

/// What becomes of a published buffer, whatever is done to it and in whichever order its holders let go.
class SharedLifetimes : public BufferTest {
 protected:
  void TearDown() override { shared.validate(); }

  [[nodiscard]] std::size_t active() { return manager.pool(sim, Location::device).statistics().active_bytes; }

  BufferRegistry shared;
};

TEST_F(SharedLifetimes, AnIdKeepsTheBuffer) {
  std::optional<Words> buffer{synchronized()};
  auto const id = shared.publish(*buffer);
  buffer.reset();
  EXPECT_NE(active(), 0U);
  EXPECT_EQ(shared.list().front().holders, 0U) << "nobody but the registry";
  EXPECT_EQ(shared.open<std::uint32_t>(id).to_vector(), counting(100)) << "what is opened is what was left";
  shared.release(id);
  EXPECT_EQ(active(), 0U);
}

TEST_F(SharedLifetimes, HandlesOutliveIdAndPublisher) {
  std::optional<Words> buffer{synchronized()};
  auto const id = shared.publish(*buffer);
  std::optional<Words> opened{shared.open<std::uint32_t>(id)};
  std::optional<BufferSlice<std::uint32_t>> slice{shared.resolve<std::uint32_t>({id, 50, 10})};
  shared.release(id);
  EXPECT_EQ(buffer->to_vector(), counting(100)) << "released is not freed";
  buffer.reset();
  EXPECT_EQ(opened->to_vector(), counting(100));
  opened.reset();
  EXPECT_EQ(slice->to_vector(), counting(10, 50));
  EXPECT_NE(active(), 0U);
  slice.reset();
  EXPECT_EQ(active(), 0U);
}

TEST_F(SharedLifetimes, WhatIsOpenedOutlivesTheRegistry) {
  std::optional<BufferRegistry> registry_of_its_own{std::in_place};
  auto const id = registry_of_its_own->publish(synchronized());
  auto opened = registry_of_its_own->open<std::uint32_t>(id);
  auto const published_and_forgotten = registry_of_its_own->publish(synchronized());
  EXPECT_TRUE(registry_of_its_own->contains(published_and_forgotten));
  auto const both = active();
  registry_of_its_own.reset();
  EXPECT_EQ(active(), both / 2) << "what nobody had opened went with it";
  EXPECT_EQ(opened.to_vector(), counting(100));
}

TEST_F(SharedLifetimes, AnIdFollowsAMovedBuffer) {
  auto buffer = synchronized();
  auto const id = shared.publish(buffer);
  Words const moved_to{std::move(buffer)};
  EXPECT_EQ(&shared.open<std::uint32_t>(id).core(), &moved_to.core());
  try {
    std::ignore = shared.publish(buffer);  // NOLINT(bugprone-use-after-move): what is tested
    FAIL() << "was published";
  } catch (InvalidArgument const& error) {
    EXPECT_EQ(error.argument, "buffer");
  }
  EXPECT_EQ(shared.size(), 1U);
  buffer = synchronized(10);
  EXPECT_EQ(shared.open<std::uint32_t>(id).size(), 100U) << "the object's next data is not what was published";
}

TEST_F(SharedLifetimes, FreeResetAndDiscardActOnAllHandles) {
  for (auto const& [name, loses] : std::vector<std::pair<char const*, std::function<void(Words&)>>>{
           {"free", [](Words& one) { one.free(); }},
           {"reset", [](Words& one) { one.reset(); }},
           {"discard", [](Words& one) { one.discard(); }}}) {
    SCOPED_TRACE(name);
    auto buffer = synchronized();
    auto const id = shared.publish(buffer);
    auto opened = shared.open<std::uint32_t>(id);
    loses(opened);
    EXPECT_EQ(buffer.state(), BufferState::uninitialized);
    EXPECT_EQ(opened.state(), BufferState::uninitialized);
    if (std::string_view(name) != "discard") {
      EXPECT_THROW(buffer.sync_to_device(), BufferNotAllocated);
    }
    // It may be used again, by whomever, as any buffer may.
    shared.open<std::uint32_t>(id).fill(3);
    EXPECT_THAT(buffer.to_vector(), Each(3U));
    EXPECT_THAT(device_bytes(opened, sim), Each(3U));
    shared.release(id);
  }
}

TEST_F(SharedLifetimes, AHandleThatNoLongerFitsIsRefused) {
  auto buffer = synchronized();
  auto const id = shared.publish(buffer);
  auto stale = shared.open<std::uint32_t>(id);
  std::ignore = std::as_const(stale).host_view();
  buffer.resize(60);
  auto target = synchronized();
  std::vector<std::uint32_t> out(100);
  using Access = std::function<void()>;
  for (auto const& [name, access] : std::vector<std::pair<char const*, Access>>{
           {"host", [&] { std::ignore = stale.host(); }},
           {"host_view", [&] { std::ignore = std::as_const(stale).host_view(); }},
           {"a part that would fit", [&] { std::ignore = std::as_const(stale).host_view(0, 10); }},
           {"at", [&] { std::ignore = std::as_const(stale).at(99); }},
           {"device", [&] { std::ignore = stale.device(sim); }},
           {"device_view on a queue", [&] { std::ignore = stale.device_view(sim.default_queue()); }},
           {"sync_to_device", [&] { stale.sync_to_device(); }},
           {"mark", [&] { stale.mark_host_dirty(); }},
           {"fill", [&] { stale.fill(1); }},
           {"copy_to", [&] { stale.copy_to(out); }},
           {"copy_from", [&] { stale.copy_from(out); }},
           {"map", [&] { std::ignore = stale.map(MapMode::read_write); }},
           {"slice", [&] { std::ignore = stale.slice(0, 1); }},
           {"copy", [&] { copy(stale, target); }},
           {"clone", [&] { std::ignore = stale.clone(); }},
           {"a launch", [&] {
              Operand const operand{&stale.core(), {0, stale.size_bytes()}, Intent::read_write};
              run(sim.default_queue(), {&operand, 1}, [](auto) {});
            }}}) {
    SCOPED_TRACE(name);
    EXPECT_THROW(access(), InvalidArgument);
  }
  try {
    std::ignore = std::as_const(stale).host_view();
  } catch (InvalidArgument const& error) {
    EXPECT_EQ(error.argument, "buffer");
    EXPECT_EQ(error.value, "bytes [0, 400)");
    EXPECT_EQ(error.requirement, "within the buffer's 240 bytes, to which it was resized");
  }
  EXPECT_EQ(buffer.to_vector(), counting(60)) << "and nothing of it has happened";
  EXPECT_EQ(shared.open<std::uint32_t>(id).to_vector(), counting(60)) << "opened now, it is as it is now";
  EXPECT_THROW(std::ignore = shared.resolve({id, 60, 1}), InvalidArgument);

  stale.resize(100);  // any handle may resize it, this one too
  EXPECT_EQ(std::as_const(stale).host_view(0, 60).size(), 60U);
  EXPECT_EQ(shared.open<std::uint32_t>(id).size(), 100U);
  EXPECT_EQ(buffer.to_vector(), counting(60)) << "its handle has the size it had";
}

TEST_F(SharedLifetimes, AGrownBufferIsOpenedWhole) {
  UnifiedBuffer<std::uint32_t> buffer({10, 10}, on_sim());
  buffer.copy_from(counting(100));
  auto const id = shared.publish(buffer);
  auto earlier = shared.open<std::uint32_t>(id);
  buffer.resize(150);
  buffer.fill(9, 100, 50);
  EXPECT_EQ(earlier.to_vector(), counting(100));
  EXPECT_EQ(earlier.extent(0), 10U);
  auto const later = shared.open<std::uint32_t>(id);
  EXPECT_EQ(later.rank(), 1U);
  EXPECT_EQ(later.size(), 150U);
  EXPECT_THAT(later.slice(100).to_vector(), Each(9U));
  EXPECT_EQ(shared.list().front().shape, Shape(150));
  EXPECT_EQ(shared.list().front().bytes, 600U);
  EXPECT_EQ(shared.resolve({id}).size(), 600U) << "to the end, as it is now";
}

TEST_F(SharedLifetimes, APublishedBufferIsNotLentAgain) {
  BufferPool pool({.manager = &manager, .device = &sim});
  auto buffer = pool.acquire<std::uint32_t>({100});
  buffer.copy_from(counting(100));
  auto const id = shared.publish(buffer);
  auto const* const core = &buffer.core();
  pool.release(buffer);
  EXPECT_EQ(pool.pool_size(), 0U) << "somebody else still has it";
  auto next = pool.acquire<std::uint32_t>({100});
  EXPECT_NE(&next.core(), core);
  next.fill(1);
  EXPECT_EQ(shared.open<std::uint32_t>(id).to_vector(), counting(100));
  shared.release(id);
}

TEST_F(SharedLifetimes, TheLastHandleFreesWrappedMemory) {
  int freed = 0;
  auto memory = std::make_unique<std::uint32_t[]>(100);
  std::optional<Words> buffer{
      manager.wrap(memory.get(), 100, Location::host, Ownership::take([&](void*) { ++freed; }))};
  auto const id = shared.publish(*buffer);
  buffer->host()[5] = 17;
  buffer.reset();
  EXPECT_EQ(freed, 0);
  {
    auto const opened = shared.open<std::uint32_t>(id);
    shared.release(id);
    EXPECT_EQ(opened.host_view().data(), memory.get()) << "in place, as it was wrapped";
    EXPECT_EQ(opened.host_view()[5], 17U);
    EXPECT_EQ(freed, 0);
  }
  EXPECT_EQ(freed, 1);
}

TEST_F(SharedLifetimes, WorkInFlightIsWhosoeverLooks) {
  auto queue = sim.create_queue();
  std::optional<Words> buffer{synchronized()};
  auto const id = shared.publish(*buffer);
  std::optional<Gate> gate{queue};
  auto const work = add(queue, buffer->slice(0), 1);
  buffer.reset();
  auto opened = shared.open<std::uint32_t>(id);
  auto const more = add(sim.default_queue(), opened.slice(0), 10);
  EXPECT_FALSE(work.ready());
  EXPECT_FALSE(more.ready()) << "behind the publisher's, though on another queue";
  gate.reset();
  EXPECT_EQ(opened.to_vector(), counting(100, 11));
  std::optional<Gate> again{queue};
  auto const last = add(queue, opened.slice(0), 1);
  shared.release(id);
  opened = Words(1, on_sim());
  EXPECT_FALSE(last.ready()) << "letting go of the last share waits for nothing";
  again.reset();
  last.wait();
  EXPECT_EQ(active(), 0U);
}

TEST_F(SharedLifetimes, AFailureIsToldToWhoeverLooksNext) {
  auto buffer = synchronized();
  auto const id = shared.publish(buffer);
  set_sim_faults(sim, {.fail_run = 1});
  auto const failed = set(sim.default_queue(), shared.open<std::uint32_t>(id).slice(0), 9);
  EXPECT_THROW(failed.wait(), DeviceError);
  EXPECT_THROW(std::ignore = buffer.to_vector(), DeviceError);
  EXPECT_EQ(shared.open<std::uint32_t>(id).to_vector(), counting(100)) << "then the last good copy is there for all";
}

}  // namespace
}  // namespace unimem::testing
