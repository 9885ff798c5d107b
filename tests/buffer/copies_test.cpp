#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"

#include <algorithm>
#include <stdexcept>
#include <thread>
#include <vector>

namespace unimem::testing {
namespace {

using ::testing::Each;

class Copies : public BufferTest {};

TEST_F(Copies, CopyFromRequiresExactlyTheBuffersSize) {
  UnifiedBuffer<std::uint32_t> buffer(10, on_sim());
  try {
    buffer.copy_from(counting(9));
    FAIL() << "nine of ten were taken";
  } catch (SizeMismatch const& error) {
    EXPECT_EQ(error.expected, 10U);
    EXPECT_EQ(error.actual, 9U);
  }
  EXPECT_FALSE(buffer.is_allocated()) << "a refused copy allocates nothing";
  EXPECT_THROW(buffer.copy_from(counting(11)), SizeMismatch);
  buffer.copy_from(counting(10));
  std::vector<std::uint32_t> target(9);
  EXPECT_THROW(buffer.copy_to(target), SizeMismatch);
  target.resize(10);
  buffer.copy_to(target);
  EXPECT_EQ(target, counting(10));
}

TEST_F(Copies, WindowedCopiesTouchNothingElse) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
  buffer.fill(7);
  buffer.sync_to_device();
  buffer.copy_from(counting(10, 500), 20);
  auto expected = std::vector<std::uint32_t>(100, 7U);
  std::ranges::copy(counting(10, 500), expected.begin() + 20);
  EXPECT_EQ(device_bytes(buffer, sim), expected);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{400 + 40, 2, 0, 0})) << "only the window moves again";
  std::vector<std::uint32_t> part(5);
  buffer.copy_to(part, 25);
  EXPECT_EQ(part, counting(5, 505));
  EXPECT_THROW(buffer.copy_from(counting(10), 91), SizeMismatch);
  EXPECT_THROW(buffer.copy_to(part, 96), SizeMismatch);
  EXPECT_THROW(buffer.copy_to(part, std::size_t{0} - 2), SizeMismatch);
  EXPECT_EQ(buffer.to_vector(), expected);
}

TEST_F(Copies, ToVectorIsIndependentOfTheBuffer) {
  UnifiedBuffer<std::uint32_t> buffer(10, on_sim());
  buffer.copy_from(counting(10));
  auto copied = buffer.to_vector();
  copied[0] = 99;
  EXPECT_EQ(buffer.at(0), 0U);
}

/// As long as makes a copy that smears smear for certain: forwards and backwards, waited for or not.
TEST_F(Copies, WithinTheBuffersOwnMemoryMayOverlap) {
  constexpr std::size_t count = 100'000;
  for (auto* const home : {&sim, &device("cpu")}) {
    auto options = on_sim();
    options.device = home;
    for (auto const& [source, target] : {std::pair{0U, 1U}, {1U, 0U}, {0U, 5000U}, {5000U, 0U}, {7U, 7U}}) {
      auto const length = count - 5000;
      for (bool const async : {false, true}) {
        SCOPED_TRACE(::testing::Message()
                     << home->id() << " " << source << " to " << target << (async ? " async" : ""));
        auto expected = counting(count);
        auto const values = counting(length, source);
        std::ranges::copy(values, expected.begin() + target);

        UnifiedBuffer<std::uint32_t> in(count, options);
        in.copy_from(counting(count));
        in.sync_to_device();
        auto const own = std::as_const(in).host_view(source, length);
        if (async) in.copy_from_async(own, target).wait();
        if (!async) in.copy_from(own, target);
        EXPECT_TRUE(device_bytes(in, *home) == expected);
        EXPECT_TRUE(in.to_vector() == expected);

        UnifiedBuffer<std::uint32_t> out(count, options);
        out.copy_from(counting(count));
        out.sync_to_device();
        auto const to_own = out.host(target, length);
        if (async) out.copy_to_async(to_own, source).wait();
        if (!async) out.copy_to(to_own, source);
        EXPECT_TRUE(device_bytes(out, *home) == expected);
        EXPECT_TRUE(out.to_vector() == expected);
      }
    }
  }
}

TEST_F(Copies, FillWorksWhereTheDataIs) {
  UnifiedBuffer<std::uint32_t> buffer(1000, on_sim());
  EXPECT_EQ(&buffer.fill(5), &buffer);
  EXPECT_EQ(buffer.state(), BufferState::host_dirty);
  buffer.sync_to_device();
  buffer.fill(6);
  EXPECT_EQ(buffer.state(), BufferState::device_dirty) << "the device is current, so it fills";
  EXPECT_EQ(moved(buffer.statistics()), (Moved{4000, 1, 0, 0}));
  EXPECT_THAT(buffer.host_view(), Each(6U));
  buffer.fill(8, 10, 5);
  auto expected = std::vector<std::uint32_t>(1000, 6U);
  std::fill_n(expected.begin() + 10, 5, 8U);
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{4000, 1, 4000 + 20, 2}));
}

TEST_F(Copies, FillTakesPatternsOfAnySize) {
  struct Triple {
    std::uint32_t a, b, c;
    bool operator==(Triple const&) const = default;
  };
  UnifiedBuffer<Triple> buffer(101, on_sim());
  buffer.fill({1, 2, 3});
  {
    auto const lease = buffer.device();
  }
  buffer.fill({4, 5, 6});
  EXPECT_THAT(buffer.host_view(), Each(Triple{4, 5, 6}));
}

TEST_F(Copies, CloneIsDeepAndFollowsTheData) {
  UnifiedBuffer<std::uint32_t> buffer(10, on_sim());
  buffer.copy_from(counting(10));
  {
    auto const lease = buffer.device();
    lease.data()[1] = 11;
  }
  auto twin = buffer.clone();
  EXPECT_EQ(moved(buffer.statistics()), (Moved{40, 1, 0, 0})) << "the copy was made on the device";
  buffer.fill(0);
  EXPECT_EQ(twin.at(1), 11U);
  EXPECT_EQ(twin.at(9), 9U);
}

TEST_F(Copies, CopyBetweenBuffersWorksAcrossAllSides) {
  for (int from_side = 0; from_side < 3; ++from_side) {
    for (int to_side = 0; to_side < 3; ++to_side) {
      SCOPED_TRACE(::testing::Message() << "from " << from_side << " to " << to_side);
      UnifiedBuffer<std::uint32_t> from(50, on_sim()), to(50, on_sim());
      from.copy_from(counting(50, 300));
      to.fill(1);
      for (auto const& [buffer, side] : {std::pair{&from, from_side}, {&to, to_side}}) {
        if (side == 1) auto const lease = buffer->device(sim);
        if (side == 2) auto const lease = buffer->device(other);
      }
      copy(from, to);
      EXPECT_EQ(to.to_vector(), counting(50, 300));
      EXPECT_EQ(from.to_vector(), counting(50, 300));
      to.core().validate();
    }
  }
  UnifiedBuffer<std::uint32_t> small(3, on_sim()), large(4, on_sim());
  small.fill(1);
  EXPECT_THROW(copy(small, large), SizeMismatch);
  EXPECT_FALSE(large.is_allocated());
  copy(small, small);
  EXPECT_THAT(small.to_vector(), Each(1U));
}

TEST_F(Copies, AWriteOnOneDeviceReachesEveryPlace) {
  UnifiedBuffer<std::uint32_t> buffer(20, on_sim());
  buffer.copy_from(counting(20));
  EXPECT_EQ(device_bytes(buffer, sim), counting(20));
  {
    auto const lease = buffer.device(other);
    lease.data()[7] = 70;
  }
  auto expected = counting(20);
  expected[7] = 70;
  EXPECT_EQ(device_bytes(buffer, sim), expected);
  EXPECT_EQ(buffer.to_vector(), expected);
  auto const counts = buffer.statistics();
  EXPECT_EQ(counts.device_to_device_bytes + counts.device_to_host_bytes, 160U)
      << "once to the other device, once to the host";
}

TEST_F(Copies, WrappedMemoryIsFreedOnceAndNeverMoved) {
  alignas(64) static std::uint32_t memory[16] = {1, 2, 3};
  int freed = 0;
  {
    auto buffer = manager.wrap(memory, 16, Location::host, Ownership::take([&](void* pointer) {
                                 EXPECT_EQ(pointer, memory);
                                 ++freed;
                               }));
    EXPECT_EQ(buffer.state(), BufferState::host_only);
    EXPECT_EQ(buffer.host_view().data(), memory);
    EXPECT_EQ(device_bytes(buffer, sim)[2], 3U);
    EXPECT_EQ(freed, 0);
  }
  EXPECT_EQ(freed, 1);
  EXPECT_THROW(std::ignore = manager.wrap<std::uint32_t>(nullptr, 4, Location::host, Ownership::borrow()),
               InvalidArgument);
  EXPECT_THROW(std::ignore = manager.wrap(reinterpret_cast<std::uint32_t*>(reinterpret_cast<char*>(memory) + 1), 1,
                                          Location::host, Ownership::borrow()),
               InvalidArgument);
  EXPECT_THROW(std::ignore = manager.wrap(memory, 4, Location::device, Ownership::borrow()), UnsupportedOperation);
}

TEST_F(Copies, WrappedMemoryIsAtHomeWhereItIs) {
  alignas(64) static std::uint32_t memory[16] = {1, 2, 3};
  auto const pageable = manager.wrap(memory, 16, Location::host, Ownership::borrow());
  EXPECT_EQ(pageable.location(), Location::host);
  EXPECT_FALSE(pageable.is_pinned());
  auto const locked = manager.wrap(memory, 16, Location::pinned, Ownership::borrow());
  EXPECT_EQ(locked.location(), Location::pinned);
  EXPECT_TRUE(locked.is_pinned());
}

TEST_F(Copies, EmptyWrappedMemoryGoesBackAtOnce) {
  auto* const memory = new std::uint32_t[1];
  std::vector<void*> freed;
  auto const taken = [&] {
    return Ownership::take([&freed](void* pointer) {
      freed.push_back(pointer);
      delete[] static_cast<std::uint32_t*>(pointer);
    });
  };
  auto buffer = manager.wrap(memory, 0, Location::host, taken());
  EXPECT_EQ(freed, std::vector<void*>{memory});
  EXPECT_EQ(buffer.size(), 0U);
  EXPECT_TRUE(buffer.to_vector().empty());
  auto const none = manager.wrap<std::uint32_t>(nullptr, 0, Location::host, taken());
  EXPECT_EQ(freed, (std::vector<void*>{memory, nullptr}));
}

TEST_F(Copies, AThrowingDeleterDoesNotEndTheProcess) {
  alignas(64) static std::uint32_t memory[16] = {1, 2, 3};
  int called = 0;
  auto const throwing = [&] {
    return Ownership::take([&](void*) {
      ++called;
      throw std::runtime_error("no");
    });
  };
  EXPECT_THROW(std::ignore = manager.wrap<std::uint32_t>(nullptr, 4, Location::host, throwing()), InvalidArgument);
  auto* const misaligned = reinterpret_cast<std::uint32_t*>(reinterpret_cast<char*>(memory) + 1);
  EXPECT_THROW(std::ignore = manager.wrap(misaligned, 1, Location::host, throwing()), InvalidArgument);
  EXPECT_THROW(std::ignore = manager.wrap(memory, 4, Location::unified, throwing()), UnsupportedOperation);
  EXPECT_EQ(called, 0);
  {
    auto const buffer = manager.wrap(memory, 16, Location::host, throwing());
  }
  EXPECT_EQ(called, 1);
  {
    auto buffer = manager.wrap(memory, 16, Location::host, Ownership::take([&](void*) {
                                 ++called;
                                 throw 7;
                               }));
    buffer.sync_to_device(sim);
    EXPECT_EQ(device_bytes(buffer, sim)[1], 2U);
    EXPECT_EQ(called, 1);
  }
  EXPECT_EQ(called, 2);
}

TEST_F(Copies, AllocatedMemoryIsWhereItWasAskedFor) {
  auto on_device = manager.allocate<std::uint32_t>(100, {.location = Location::device, .device = &sim, .name = "x"});
  EXPECT_EQ(on_device.state(), BufferState::device_only);
  EXPECT_EQ(on_device.name(), "x");
  auto on_host = manager.allocate<std::uint32_t>(100, {.location = Location::host, .device = &sim, .name = {}});
  EXPECT_EQ(on_host.state(), BufferState::host_only);
  auto const data = counting(100);
  auto filled = manager.allocate<std::uint32_t>(std::span<const std::uint32_t>(data),
                                                {.location = Location::device, .device = &sim, .name = {}});
  EXPECT_EQ(filled.state(), BufferState::synchronized);
  EXPECT_EQ(device_bytes(filled, sim), data);
}

TEST_F(Copies, ConcurrentFirstReadersOfADeviceCopyOnce) {
  for (int round = 0; round < 20; ++round) {
    UnifiedBuffer<std::uint32_t> buffer(10'000, on_sim());
    buffer.copy_from(counting(10'000));
    std::vector<std::jthread> readers;
    for (int i = 0; i < 4; ++i) {
      readers.emplace_back([&] {
        auto const lease = std::as_const(buffer).device_view();
        EXPECT_EQ(lease.data()[9'999], 9'999U);
        EXPECT_EQ(std::as_const(buffer).host_view()[5], 5U);
      });
    }
    readers.clear();
    EXPECT_EQ(moved(buffer.statistics()), (Moved{40'000, 1, 0, 0}));
  }
}

TEST_F(Copies, PinnedTellsTheTruth) {
  auto options = on_sim();
  options.pinned = true;
  UnifiedBuffer<std::uint32_t> buffer(1000, options);
  EXPECT_FALSE(buffer.is_pinned()) << "nothing is allocated yet";
  buffer.fill(3);
  auto const pinned_bytes = manager.pool(device("cpu"), Location::pinned).statistics().active_bytes;
  EXPECT_EQ(buffer.is_pinned(), pinned_bytes != 0);
  EXPECT_THAT(buffer.host_view(), Each(3U));
}

}  // namespace
}  // namespace unimem::testing
