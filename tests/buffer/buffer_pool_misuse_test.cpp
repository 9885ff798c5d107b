#include <unimem/core/error.hpp>
#include <unimem/core/stack.hpp>

#include "buffer/buffer_pool_fixture.hpp"
#include "device/gate.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// What a pool of whole buffers does not take back, and what it says then.

namespace unimem::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class BufferPoolMisuse : public BufferPoolTest {
 protected:
  /// What releasing `buffer` is refused with, in vain.
  void expect_refused(BufferPool& by, Numbers& buffer, std::string const& value) {
    auto const kept = by.pool_size();
    auto const refused = by.stats().refused;
    auto const* const core = &buffer.core();
    try {
      by.release(buffer);
      ADD_FAILURE() << "was accepted";
    } catch (InvalidArgument const& error) {
      EXPECT_EQ(error.argument, "buffer");
      EXPECT_EQ(error.value, value);
    }
    EXPECT_EQ(&buffer.core(), core) << "the buffer is as it was";
    EXPECT_EQ(by.pool_size(), kept);
    EXPECT_EQ(by.stats().refused, refused + 1);
  }

  /// A second handle to the same buffer, as bindings have them.
  struct Twins {
    Numbers one, twin;
  };
  [[nodiscard]] Twins twins(std::size_t count) {
    auto core = pool.acquire_core(detail::buffer_kind<std::uint32_t>(count, false));
    return {Numbers(count, core), Numbers(count, core)};
  }
};

TEST_F(BufferPoolMisuse, AReleasedHandleRefusesUseAndRelease) {
  auto buffer = pool.acquire<std::uint32_t>(100);
  pool.release(buffer);
  EXPECT_EQ(buffer.size(), 0U);
  EXPECT_THROW((void)buffer.host(), InvalidArgument) << "using it is an error too";
  EXPECT_THROW(pool.release(buffer), InvalidArgument);
  EXPECT_EQ(pool.pool_size(), 1U);
}

TEST_F(BufferPoolMisuse, ReleasingTwiceThroughTwoHandlesIsRefused) {
  auto [one, twin] = twins(100);
  pool.release(one);
  EXPECT_EQ(pool.pool_size(), 0U) << "the other handle still has it";
  expect_refused(pool, twin, "'pooled'");
}

TEST_F(BufferPoolMisuse, ReleasingTwiceDiffersFromReleasingAForeignBuffer) {
  auto [one, twin] = twins(100);
  BufferPool another{options()};
  auto theirs = another.acquire<std::uint32_t>(100);
  EXPECT_THROW(another.release(twin), InvalidArgument);
  pool.release(one);
  try {
    pool.release(twin);
    ADD_FAILURE() << "was accepted";
  } catch (ReleasedTwice const& error) {
    EXPECT_THAT(error.acquired_by, IsEmpty()) << "nobody asked for it";
    EXPECT_THAT(error.released_by, IsEmpty());
    EXPECT_STREQ(error.what(),
                 "invalid buffer ''pooled'': must be one that this buffer pool has lent and not had back since");
  }
  try {
    pool.release(theirs);
    ADD_FAILURE() << "was accepted";
  } catch (ReleasedTwice const&) {
    ADD_FAILURE() << "it was never here";
  } catch (InvalidArgument const& error) {
    EXPECT_EQ(error.argument, "buffer");
  }
}

TEST_F(BufferPoolMisuse, OnlyTheMostRecentReleasesAreRemembered) {
  auto [one, twin] = twins(100);
  pool.release(one);
  for (int i = 0; i < 63; ++i) PooledBuffer<std::uint32_t>(pool, 200).release();
  EXPECT_THROW(pool.release(twin), ReleasedTwice);
  PooledBuffer<std::uint32_t>(pool, 200).release();
  try {
    pool.release(twin);
    ADD_FAILURE() << "was accepted";
  } catch (ReleasedTwice const&) {
    ADD_FAILURE() << "it is forgotten";
  } catch (InvalidArgument const& error) {
    EXPECT_EQ(error.value, "'pooled'");
  }
}

/// Calls that the stacks of a misuse must show, each with work behind it, or it would be a jump and on no stack.
[[gnu::noinline]] std::shared_ptr<BufferCore> take_in_a_named_place(BufferPool& pool) {
  auto core = pool.acquire_core(detail::buffer_kind<std::uint32_t>(100, false));
  EXPECT_NE(core, nullptr);
  return core;
}
[[gnu::noinline]] void give_back_in_a_named_place(BufferPool& pool, Numbers& buffer) {
  pool.release(buffer);
  EXPECT_EQ(buffer.size(), 0U);
}

TEST_F(BufferPoolMisuse, ReleasingTwiceShowsTheCapturedStacks) {
  if (!can_capture_stacks()) GTEST_SKIP() << "this build captures no stacks";
  MemoryManager watching{{.leaks = {.stacks = {.every = 1}}}};
  auto watched_options = options();
  watched_options.manager = &watching;
  watched_options.name = "rows";
  BufferPool watched{watched_options};
  {
    // Of an earlier time that it was lent nothing is told.
    auto earlier = watched.acquire<std::uint32_t>(100);
    watched.release(earlier);
  }
  auto core = take_in_a_named_place(watched);
  Numbers one(100, core), twin(100, core);
  core.reset();
  give_back_in_a_named_place(watched, one);
  try {
    watched.release(twin);
    ADD_FAILURE() << "was accepted";
  } catch (ReleasedTwice const& error) {
    EXPECT_EQ(error.value, "'rows'");
    EXPECT_FALSE(error.acquired_by.empty());
    EXPECT_FALSE(error.released_by.empty());
    std::string const text = error.what();
    auto const acquired = text.find("acquired by"), released = text.find("released first by");
    ASSERT_LT(acquired, released);
    ASSERT_NE(released, std::string::npos);
    EXPECT_THAT(text.substr(0, acquired), HasSubstr("'rows'"));
    EXPECT_THAT(text.substr(acquired, released - acquired),
                AllOf(HasSubstr("take_in_a_named_place"), Not(HasSubstr("give_back_in_a_named_place"))));
    EXPECT_THAT(text.substr(released),
                AllOf(HasSubstr("give_back_in_a_named_place"), Not(HasSubstr("take_in_a_named_place"))));
  }
  EXPECT_EQ(watched.stats().refused, 1U);
  watched.validate();
}

TEST_F(BufferPoolMisuse, ReleasingForAPreviousOwnerIsRefused) {
  auto core = pool.acquire_core(detail::buffer_kind<std::uint32_t>(100, false));
  auto const* const address = core.get();
  pool.release_core(core);
  EXPECT_EQ(core, nullptr);
  EXPECT_THROW(pool.release_core(core), InvalidArgument);
  auto const now_lent = pool.acquire<std::uint32_t>(100);
  EXPECT_EQ(&now_lent.core(), address);
  EXPECT_EQ(pool.stats().active_buffers, 1U) << "nobody has taken it from its present owner";
}

TEST_F(BufferPoolMisuse, BuffersFromOutsideThePoolAreRefused) {
  BufferPool another{options()};
  auto theirs = another.acquire<std::uint32_t>(100);
  expect_refused(pool, theirs, "'pooled'");
  Numbers mine(100, on_sim("mine"));
  expect_refused(pool, mine, "'mine'");
  Numbers nameless(100, on_sim());
  expect_refused(pool, nameless, "one without a name");
  another.release(theirs);
  EXPECT_EQ(another.pool_size(), 1U);
}

TEST_F(BufferPoolMisuse, AReusedAddressIsNoLentBuffer) {
  static_cast<void>(pool.acquire<std::uint32_t>(100));
  Numbers mine(100, on_sim("mine"));  // where that was, as a rule: sanitizers do not use memory again so soon
  mine.copy_from(counting(100));
  expect_refused(pool, mine, "'mine'");
  EXPECT_EQ(mine.to_vector(), counting(100));
}

TEST_F(BufferPoolMisuse, ReleasingTwiceIsRefusedAfterAClear) {
  auto [one, twin] = twins(100);
  pool.release(one);
  pool.clear();
  expect_refused(pool, twin, "'pooled'");
  EXPECT_EQ(pool.pool_size(), 0U);
}

TEST_F(BufferPoolMisuse, BuffersStillSharedAreNotLentAgain) {
  std::vector<BufferCore const*> in_hands;
  auto sliced = pool.acquire<std::uint32_t>(100), leased = pool.acquire<std::uint32_t>(100),
       mapped = pool.acquire<std::uint32_t>(100);
  for (auto* const buffer : {&sliced, &leased, &mapped}) {
    buffer->copy_from(counting(100));
    in_hands.push_back(&buffer->core());
  }
  auto const slice = sliced.slice(10, 20);
  auto const lease = leased.device_view();
  auto const mapping = mapped.map(MapMode::read);
  pool.release(sliced);
  pool.release(leased);
  pool.release(mapped);
  EXPECT_EQ(pool.pool_size(), 0U);
  EXPECT_EQ(pool.stats().let_go, 3U);
  std::vector<Numbers> others;
  for (int i = 0; i < 3; ++i) {
    others.push_back(pool.acquire<std::uint32_t>(100));
    others.back().fill(99);
    others.back().sync_to_device();
  }
  EXPECT_EQ(slice.to_vector(), counting(20, 10)) << "their holders see what they saw";
  EXPECT_EQ(lease.data()[99], 99U);
  EXPECT_EQ(lease.data()[98], 98U);
  EXPECT_EQ(mapping[98], 98U);
}

TEST_F(BufferPoolMisuse, AResizedBufferIsNotLentAgain) {
  auto buffer = pool.acquire<std::uint32_t>(100);
  buffer.resize(200);
  pool.release(buffer);
  EXPECT_EQ(pool.pool_size(), 0U);
  EXPECT_EQ(pool.stats().let_go, 1U);
  EXPECT_EQ(pool.acquire<std::uint32_t>(100).size_bytes(), 400U);
}

TEST_F(BufferPoolMisuse, ReleasingABufferUnderCaptureIsRefused) {
  auto buffer = pool.acquire<std::uint32_t>(100);
  auto const lease = buffer.core().capture(sim.default_queue(), {0, 400}, {}, true);
  EXPECT_THROW(pool.release(buffer), UnsupportedOperation);
  EXPECT_EQ(pool.pool_size(), 0U);
  EXPECT_EQ(pool.stats().active_buffers, 0U);
}

}  // namespace
}  // namespace unimem::testing
