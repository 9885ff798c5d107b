#include <unimem/core/log.hpp>
#include <unimem/core/stack.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/pool/cuda_resource.hpp>
#include <unimem/pool/pool_resource.hpp>

#include "core/sizes.hpp"
#include "pool/address_table.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cstdint>
#include <map>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace unimem {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class PoolResources : public ::testing::Test {
 protected:
  void TearDown() override {
    resource.validate();
    pool.validate();
  }

  /// Runs `mistake`, which must be reported in these words and change nothing.
  template <class Mistake>
  void expect_refused(Mistake mistake, std::string const& words) {
    auto const before = resource.statistics();
    auto const active = pool.statistics().active_allocations;
    ::testing::internal::CaptureStderr();
    mistake();
    EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr(words));
    auto const after = resource.statistics();
    EXPECT_EQ(after.refused_deallocations, before.refused_deallocations + 1);
    EXPECT_EQ(after.live_allocations, before.live_allocations);
    EXPECT_EQ(after.live_bytes, before.live_bytes);
    EXPECT_EQ(pool.statistics().active_allocations, active);
  }

  MemoryPool pool{device("cpu"), Location::host};
  PoolResource resource{pool, Name("rows")};
};

TEST_F(PoolResources, ServeTheContainersOfTheStandardLibrary) {
  {
    std::pmr::vector<std::uint32_t> numbers(&resource);
    for (std::uint32_t i = 0; i < 100'000; ++i) numbers.push_back(i);
    std::pmr::string text("a string that is much too long to be kept inside of the string object itself", &resource);
    std::pmr::map<int, std::pmr::string> names(&resource);
    for (int i = 0; i < 500; ++i) names.emplace(i, std::string(40, static_cast<char>('a' + i % 26)));
    for (std::uint32_t i = 0; i < 100'000; ++i) ASSERT_EQ(numbers[i], i);
    EXPECT_EQ(text.size(), 76U);
    EXPECT_EQ(std::string_view(names.at(27)), std::string(40, 'b'));
    EXPECT_EQ(names.at(27).get_allocator().resource(), &resource) << "the resource goes into what is inside";
    EXPECT_EQ(resource.statistics().live_allocations, 1 + 1 + 500 + 500U);
    EXPECT_LT(pool.statistics().active_allocations, 30U) << "maps and words are small, and share pages";
    resource.validate();
  }
  EXPECT_EQ(resource.statistics().live_allocations, 0U);
  EXPECT_EQ(resource.statistics().live_bytes, 0U);
  EXPECT_EQ(resource.statistics().refused_deallocations, 0U);
  EXPECT_EQ(pool.statistics().active_bytes, 0U);
}

TEST_F(PoolResources, AreTheUpstreamOfAnArena) {
  {
    std::pmr::monotonic_buffer_resource arena(64 * KiB, &resource);
    std::pmr::vector<double> samples(10'000, 1.5, &arena);
    std::pmr::vector<std::pmr::string> words(1000, "words of a length that does not fit into the object", &arena);
    EXPECT_EQ(std::ranges::count(samples, 1.5), 10'000);
    EXPECT_EQ(words.back().size(), 51U);
    EXPECT_GT(pool.statistics().active_bytes, 130'000U);
  }
  EXPECT_EQ(pool.statistics().active_bytes, 0U);
  EXPECT_EQ(resource.statistics().refused_deallocations, 0U);
}

TEST_F(PoolResources, ReuseWhatWasGivenBack) {
  auto* const first = resource.allocate(10'000, 16);
  resource.deallocate(first, 10'000, 16);
  EXPECT_EQ(resource.allocate(10'000, 16), first);
  EXPECT_EQ(pool.statistics().pool_hits, 1U);
  EXPECT_EQ(pool.statistics().pool_misses, 1U);
  resource.deallocate(first, 10'000, 16);
}

TEST_F(PoolResources, GiveEveryAlignment) {
  for (std::size_t alignment = 1; alignment <= MiB; alignment *= 2) {
    auto* const address = resource.allocate(100, alignment);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(address) % alignment, 0U);
    resource.deallocate(address, 100, alignment);
  }
  for (auto const alignment : {std::size_t{3}, std::size_t{48}}) {
    try {
      static_cast<void>(resource.allocate(100, alignment));
      ADD_FAILURE() << alignment << " was accepted";
    } catch (InvalidArgument const& error) {
      EXPECT_EQ(error.argument, "alignment");
      EXPECT_EQ(error.value, std::to_string(alignment));
    }
  }
  EXPECT_EQ(resource.statistics().live_allocations, 0U);
}

/// Those of libstdc++ ask for chunks that are aligned as they are large.
TEST_F(PoolResources, ServeThePoolResourcesOfTheStandardLibrary) {
  {
    std::pmr::unsynchronized_pool_resource chunks{&resource};
    std::pmr::map<int, std::pmr::string> words{&chunks};
    for (int i = 0; i < 3'000; ++i) words.emplace(i, std::string(static_cast<std::size_t>(i), 'a'));
    for (auto const& [number, word] : words)
      ASSERT_EQ(std::string_view(word), std::string(static_cast<std::size_t>(number), 'a'));
    EXPECT_GT(resource.statistics().live_allocations, 0U);
  }
  EXPECT_EQ(resource.statistics().live_allocations, 0U);
  EXPECT_EQ(resource.statistics().refused_deallocations, 0U);
}

TEST_F(PoolResources, GiveNoBytesAnAddressOfTheirOwn) {
  auto* const one = resource.allocate(0, 1);
  auto* const other = resource.allocate(0, 1);
  EXPECT_NE(one, nullptr);
  EXPECT_NE(one, other);
  EXPECT_EQ(resource.statistics().live_bytes, 0U);
  expect_refused([&] { resource.deallocate(one, 1, 1); }, "with another size");
  resource.deallocate(one, 0, 1);
  resource.deallocate(other, 0, 1);
}

TEST_F(PoolResources, ThrowWhatABadAllocHandlerCatches) {
  pool.set_max_bytes(64 * KiB);
  std::pmr::vector<char> text(&resource);
  try {
    text.resize(65 * KiB);
    ADD_FAILURE() << "was granted";
  } catch (std::bad_alloc const& error) {
    auto const* const typed = dynamic_cast<OutOfMemory const*>(&error);
    ASSERT_NE(typed, nullptr);
    EXPECT_EQ(typed->requested(), 65 * KiB);
    EXPECT_EQ(typed->limit(), 64 * KiB);
  }
  text.resize(60 * KiB);
  EXPECT_EQ(pool.holders(1).front().name, "rows") << "and who holds memory is named";
  EXPECT_EQ(resource.statistics().live_allocations, 1U);
}

TEST_F(PoolResources, RefuseToGiveBackTwice) {
  auto* const address = resource.allocate(1000, 8);
  resource.deallocate(address, 1000, 8);
  expect_refused([&] { resource.deallocate(address, 1000, 8); }, "it was given back already");
  auto* const first = resource.allocate(1000, 8);
  auto* const second = resource.allocate(1000, 8);
  EXPECT_NE(first, second) << "the block is there once";
  resource.deallocate(first, 1000, 8);
  resource.deallocate(second, 1000, 8);
}

TEST_F(PoolResources, RefuseWhatTheyHaveNotHandedOut) {
  PoolResource other{pool};
  int local = 0;
  auto* const theirs = other.allocate(100, 8);
  auto* const ours = static_cast<std::byte*>(resource.allocate(100, 8));
  expect_refused([&] { resource.deallocate(theirs, 100, 8); }, "it was not handed out here");
  expect_refused([&] { resource.deallocate(&local, sizeof local, alignof(int)); }, "it was not handed out here");
  expect_refused([&] { resource.deallocate(ours + 8, 92, 8); }, "it was not handed out here");
  other.deallocate(theirs, 100, 8);
  resource.deallocate(ours, 100, 8);
}

TEST_F(PoolResources, RefuseAnotherSizeOrAlignmentAndNameEverything) {
  auto* const address = resource.allocate(1000, 8);
  expect_refused([&] { resource.deallocate(address, 999, 8); }, "it was handed out with another size");
  expect_refused([&] { resource.deallocate(address, 1000, 16); }, "it was handed out with another alignment");
  expect_refused([&] { resource.deallocate(address, 1, 8); }, "PoolResource 'rows' on cpu host: deallocate(");
  resource.deallocate(address, 1000, 8);
  EXPECT_EQ(resource.statistics().live_allocations, 0U) << "the right way still works";
}

/// Calls that the report of a misuse must show, each with work behind it, or it would be a jump and on no stack.
[[gnu::noinline]] void* take_in_a_named_place(std::pmr::memory_resource& resource) {
  auto* const address = resource.allocate(1000, 8);
  EXPECT_NE(address, nullptr);
  return address;
}
[[gnu::noinline]] void give_back_where_it_is_right(PoolResource& resource, void* address) {
  resource.deallocate(address, 1000, 8);
  EXPECT_EQ(resource.statistics().live_allocations, 0U);
}
[[gnu::noinline]] std::string give_back_where_it_is_wrong(PoolResource& resource, void* address, std::size_t bytes) {
  ::testing::internal::CaptureStderr();
  resource.deallocate(address, bytes, 8);
  return ::testing::internal::GetCapturedStderr();
}

TEST(PoolResourceStacks, TellBothStacksOfADoubleRelease) {
  if (!can_capture_stacks()) GTEST_SKIP() << "this build captures no stacks";
  MemoryPool pool{device("cpu"), Location::host, {.stacks = {.every = 1}}};
  PoolResource resource{pool, Name("rows")};
  auto* const address = take_in_a_named_place(resource);
  give_back_where_it_is_right(resource, address);
  auto const text = give_back_where_it_is_wrong(resource, address, 1000);
  EXPECT_THAT(text, HasSubstr("PoolResource 'rows' on cpu host"));
  auto const acquired = text.find("acquired by"), released = text.find("released first by"),
             refused = text.find("refused to");
  ASSERT_LT(acquired, released);
  ASSERT_LT(released, refused);
  ASSERT_NE(refused, std::string::npos);
  EXPECT_THAT(text.substr(0, acquired), HasSubstr("it was given back already"));
  EXPECT_THAT(text.substr(acquired, released - acquired),
              AllOf(HasSubstr("take_in_a_named_place"), Not(HasSubstr("give_back_where"))));
  EXPECT_THAT(text.substr(released, refused - released),
              AllOf(HasSubstr("give_back_where_it_is_right"), Not(HasSubstr("give_back_where_it_is_wrong"))));
  EXPECT_THAT(text.substr(refused), HasSubstr("give_back_where_it_is_wrong"));
  EXPECT_EQ(resource.statistics().refused_deallocations, 1U);
  pool.validate();
}

TEST(PoolResourceStacks, TellTheOwnerOfAWrongSize) {
  if (!can_capture_stacks()) GTEST_SKIP() << "this build captures no stacks";
  MemoryPool pool{device("cpu"), Location::host, {.stacks = {.every = 1}}};
  PoolResource resource{pool};
  auto* const address = take_in_a_named_place(resource);
  EXPECT_THAT(give_back_where_it_is_wrong(resource, address, 999),
              AllOf(HasSubstr("with another size"), HasSubstr("take_in_a_named_place"),
                    HasSubstr("give_back_where_it_is_wrong"), Not(HasSubstr("released first by"))));
  give_back_where_it_is_right(resource, address);
}

TEST(PoolResourceStacks, WithoutASampleTellTheRefusedCaller) {
  if (!can_capture_stacks()) GTEST_SKIP() << "this build captures no stacks";
  MemoryPool pool{device("cpu"), Location::host, {.stacks = {.every = 2}}};
  PoolResource resource{pool};
  int local = 0;
  auto* const sampled = take_in_a_named_place(resource);
  resource.deallocate(sampled, 1000, 8);
  auto* const other = resource.allocate(500'000, 8);
  resource.deallocate(other, 500'000, 8);
  EXPECT_THAT(give_back_where_it_is_wrong(resource, sampled, 1000), HasSubstr("take_in_a_named_place"));
  for (auto* const address : {other, static_cast<void*>(&local)}) {
    EXPECT_THAT(give_back_where_it_is_wrong(resource, address, 1000),
                AllOf(HasSubstr("give_back_where_it_is_wrong"), Not(HasSubstr("acquired by"))));
  }
}

TEST(PoolResourceStacks, AreNotToldUnlessAskedFor) {
  MemoryPool pool{device("cpu"), Location::host};
  PoolResource resource{pool};
  auto* const address = take_in_a_named_place(resource);
  give_back_where_it_is_right(resource, address);
  auto const text = give_back_where_it_is_wrong(resource, address, 1000);
  EXPECT_THAT(text, HasSubstr("it was given back already"));
  EXPECT_EQ(std::ranges::count(text, '\n'), 1) << text;
}

TEST(AddressTableMemory, KeepsTheLatestReleases) {
  detail::AddressTable table;
  auto const pass_through = [&](std::uintptr_t address, std::unique_ptr<detail::Trail> trail) {
    table.put({address, 1, 1, {}, std::move(trail)});
    std::ignore = table.take(*table.find(address));
  };
  EXPECT_EQ(table.taken_lately(0), nullptr);
  EXPECT_EQ(table.taken_lately(64), nullptr);
  pass_through(64, std::make_unique<detail::Trail>());
  pass_through(128, nullptr);
  auto later = std::make_unique<detail::Trail>();
  auto const* const latest = later.get();
  pass_through(64, std::move(later));
  ASSERT_NE(table.taken_lately(64), nullptr);
  EXPECT_EQ(table.taken_lately(64)->trail.get(), latest);
  ASSERT_NE(table.taken_lately(128), nullptr);
  EXPECT_EQ(table.taken_lately(128)->trail, nullptr);
  for (std::uintptr_t other = 1; other < detail::AddressTable::most_taken; ++other) pass_through(4096 * other, nullptr);
  EXPECT_NE(table.taken_lately(64), nullptr);
  pass_through(4032, nullptr);
  EXPECT_EQ(table.taken_lately(64), nullptr) << "so many and no more";
  table.validate();
}

TEST_F(PoolResources, AreEqualToThemselvesAlone) {
  PoolResource other{pool};
  std::pmr::memory_resource const& same = resource;
  EXPECT_EQ(resource, same);
  EXPECT_NE(resource, other) << "what the one handed out the other would not know";
}

TEST_F(PoolResources, GiveBackAndReportAtTheirEnd) {
  ::testing::internal::CaptureStderr();
  {
    PoolResource brief{pool, Name("brief")};
    static_cast<void>(brief.allocate(1000, 8));
    static_cast<void>(brief.allocate(500, 8));
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("PoolResource 'brief' on cpu host ends with 2 allocations of 1500 bytes in use"));
  EXPECT_EQ(pool.statistics().active_allocations, 0U);
}

TEST(PoolResourceHomes, AreWhereTheHostReachesThePoolsMemory) {
  for (auto const location : {Location::host, Location::pinned, Location::device}) {
    MemoryPool pool{device("cpu"), location};
    PoolResource resource{pool};
    std::pmr::vector<int> numbers(1000, 7, &resource);
    EXPECT_EQ(std::ranges::count(numbers, 7), 1000) << to_string(location);
  }
}

TEST(PoolResourceHomes, DeviceMemoryIsRefusedByName) {
  auto& sim = make_sim({.memory_bytes = MiB});
  MemoryPool pool{sim, Location::device};
  try {
    PoolResource resource{pool};
    ADD_FAILURE() << "was accepted";
  } catch (UnsupportedOperation const& error) {
    EXPECT_EQ(error.operation, "PoolResource");
    EXPECT_EQ(error.where, std::string(sim.id()) + " device");
  }
}

TEST(PoolResourceModel, FindsEveryAddressHoweverTheyComeAndGo) {
  constexpr unsigned seed = 17;
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  MemoryPool pool{device("cpu"), Location::host};
  PoolResource resource{pool};
  std::mt19937 random{seed};
  struct Held {
    void* address;
    std::size_t bytes, alignment;
  };
  std::vector<Held> held;
  std::size_t bytes_held = 0;
  for (int round = 0; round < 20'000; ++round) {
    if (held.size() < 700 && random() % 5 < 3) {
      auto const bytes = random() % (std::size_t{1} << (random() % 14));
      auto const alignment = std::size_t{1} << (random() % 6);
      held.push_back({resource.allocate(bytes, alignment), bytes, alignment});
      bytes_held += bytes;
    } else if (!held.empty()) {
      std::swap(held[random() % held.size()], held.back());
      resource.deallocate(held.back().address, held.back().bytes, held.back().alignment);
      bytes_held -= held.back().bytes;
      held.pop_back();
    }
    if (round % 500 == 0) {
      resource.validate();
      ASSERT_EQ(resource.statistics().live_allocations, held.size());
      ASSERT_EQ(resource.statistics().live_bytes, bytes_held);
    }
  }
  for (auto const& one : held) resource.deallocate(one.address, one.bytes, one.alignment);
  resource.validate();
  EXPECT_EQ(resource.statistics().live_allocations, 0U);
  EXPECT_EQ(resource.statistics().refused_deallocations, 0U);
  EXPECT_EQ(pool.statistics().active_allocations, 0U);
}

TEST(PoolResourceThreads, NoAddressIsHeldTwice) {
  constexpr unsigned thread_count = 4;
  MemoryPool pool{device("cpu"), Location::host};
  PoolResource resource{pool};
  struct Held {
    std::uint64_t* words;
    std::size_t count;
    std::uint64_t tag;
  };
  std::mutex mutex;
  std::vector<Held> passed_on;
  auto const give_back = [&](Held const& held) {
    ASSERT_EQ(std::count(held.words, held.words + held.count, held.tag), static_cast<std::ptrdiff_t>(held.count));
    resource.deallocate(held.words, held.count * 8, 8);
  };
  std::barrier start{static_cast<std::ptrdiff_t>(thread_count)};
  {
    std::vector<std::jthread> threads;
    for (unsigned thread = 0; thread < thread_count; ++thread) {
      threads.emplace_back([&, thread] {
        start.arrive_and_wait();
        std::mt19937 random{thread};
        for (std::uint64_t i = 0; i < 3'000; ++i) {
          auto const count = 1 + random() % (std::size_t{1} << (random() % 9));
          Held const mine{static_cast<std::uint64_t*>(resource.allocate(count * 8, 8)), count,
                          std::uint64_t{thread} << 56 | i};
          std::fill_n(mine.words, count, mine.tag);
          Held other = mine;
          {
            std::lock_guard const lock{mutex};
            passed_on.push_back(mine);
            std::swap(passed_on[random() % passed_on.size()], passed_on.back());
            if (passed_on.size() < 50) continue;
            other = passed_on.back();
            passed_on.pop_back();
          }
          give_back(other);
          if (::testing::Test::HasFatalFailure()) return;
        }
      });
    }
  }
  for (auto const& held : passed_on) give_back(held);
  EXPECT_EQ(resource.statistics().live_allocations, 0U);
  EXPECT_EQ(resource.statistics().refused_deallocations, 0U);
  EXPECT_EQ(pool.statistics().active_allocations, 0U);
  resource.validate();
  pool.validate();
}

TEST(PoolResourceThreads, ConcurrentReleasesOfAnAddressSucceedOnce) {
  constexpr unsigned thread_count = 4;
  set_log_level(LogLevel::off);
  MemoryPool pool{device("cpu"), Location::host};
  PoolResource resource{pool};
  for (int i = 0; i < 4; ++i) static_cast<void>(resource.allocate(256, 8));  // those behind them share pages
  for (int round = 0; round < 200; ++round) {
    auto const bytes = round % 2 == 0 ? 256U : 257U;  // in a page, and alone
    auto* const address = resource.allocate(bytes, 8);
    std::barrier start{static_cast<std::ptrdiff_t>(thread_count)};
    std::vector<std::jthread> threads;
    for (unsigned thread = 0; thread < thread_count; ++thread) {
      threads.emplace_back([&] {
        start.arrive_and_wait();
        resource.deallocate(address, bytes, 8);
      });
    }
  }
  set_log_level(LogLevel::warning);
  EXPECT_EQ(resource.statistics().refused_deallocations, 200U * (thread_count - 1));
  EXPECT_EQ(resource.statistics().live_allocations, 4U);
  EXPECT_EQ(pool.statistics().active_allocations, 4U);
  pool.validate();
}

// What CudaResource does without streams; with them: cuda_resource_test.cpp.

struct host_accessible {};    // NOLINT(readability-identifier-naming): as CCCL spells them
struct device_accessible {};  // NOLINT(readability-identifier-naming)

TEST(CudaResourceWithoutStreams, CopiesShareOnePool) {
  MemoryPool pool{device("cpu"), Location::pinned};
  CudaResource<host_accessible, device_accessible> resource{pool};
  auto copy = resource;
  EXPECT_EQ(copy, resource);
  auto* const address = resource.allocate_sync(1000, 64);
  copy.deallocate_sync(address, 1000, 64);
  EXPECT_EQ(resource.allocate(1000), address);
  resource.deallocate(address, 1000);
  EXPECT_EQ(resource.statistics().live_allocations, 0U);
  EXPECT_NE((CudaResource<host_accessible, device_accessible>{pool}), resource);
}

TEST(CudaResourceWithoutStreams, ClaimsNothingThatIsNotTrue) {
  MemoryPool host{device("cpu"), Location::host}, pinned{device("cpu"), Location::pinned};
  MemoryPool simulated{make_sim({.memory_bytes = MiB}), Location::device}, unified{device("cpu"), Location::unified};
  EXPECT_EQ((CudaResource<host_accessible>{host}.statistics().live_allocations), 0U);
  EXPECT_EQ((CudaResource<host_accessible, device_accessible>{pinned}.statistics().live_allocations), 0U);
  EXPECT_EQ((CudaResource<host_accessible>{unified}.statistics().live_allocations), 0U);
  EXPECT_THROW((CudaResource<device_accessible>{host}), UnsupportedOperation);
  EXPECT_THROW((CudaResource<device_accessible>{unified}), UnsupportedOperation) << "it is ordinary, pageable memory";
  EXPECT_THROW((CudaResource<host_accessible>{simulated}), UnsupportedOperation);
  EXPECT_THROW((CudaResource<device_accessible>{simulated}), UnsupportedOperation);
}

struct NoStream {
  [[nodiscard]] static void* get() { return nullptr; }
};

TEST(CudaResourceWithoutStreams, WithoutCudaRefusesStreams) {
  MemoryPool pool{device("cpu"), Location::pinned};
  CudaResource<host_accessible> resource{pool};
  EXPECT_THROW((void)resource.allocate(NoStream{}, 100, 8), UnsupportedOperation);
  auto* const address = resource.allocate_sync(100, 8);
  ::testing::internal::CaptureStderr();
  resource.deallocate(NoStream{}, address, 100, 8);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("it is not a CUDA device"));
  EXPECT_EQ(resource.statistics().refused_deallocations, 1U);
  EXPECT_EQ(resource.statistics().live_allocations, 1U);
  resource.deallocate_sync(address, 100, 8);
}

}  // namespace
}  // namespace unimem
