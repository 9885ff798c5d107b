#include "kernel/groups_conformance.hpp"

#include <set>

// Groups of the host form.

namespace unimem {
namespace {

INSTANTIATE_TEST_SUITE_P(Host, Groups, ::testing::Values("cpu", "sim"));

TEST(WorkGroups, APhaseVisitsEachItemOnce) {
  WorkGroup const group{Range{8, 6, 4}.group({4, 3, 2}), {1, 0, 1}};
  std::set<std::size_t> numbers;
  std::set<std::array<std::size_t, 3>> items;
  group.each([&](WorkItem item, WorkItem local) {
    EXPECT_EQ(item.x, 4 + local.x);
    EXPECT_EQ(item.y, local.y);
    EXPECT_EQ(item.z, 2 + local.z);
    numbers.insert(group.number(local));
    items.insert({item.x, item.y, item.z});
  });
  EXPECT_EQ(numbers.size(), 24U);
  EXPECT_EQ(*numbers.rbegin(), 23U);
  EXPECT_EQ(items.size(), 24U);
}

TEST(WorkGroups, GroupsAreSpreadOverThreads) {
  // Two MiB: enough for the thread pool.
  MemoryManager manager;
  UnifiedBuffer<std::uint32_t> x(1U << 19U, BufferOptions{.manager = &manager, .device = &device("cpu")});
  x.fill(1);
  auto const number = Kernel("number").group({1024}).host([](WorkGroup const& group, std::span<std::uint32_t> all) {
    std::vector<std::uint32_t> values(group.items());
    group.each([&](WorkItem item, WorkItem local) { values[local.x] = all[item.x]; });
    group_inclusive_sum(std::span{values});
    group.each([&](WorkItem item, WorkItem local) { all[item.x] = values[local.x]; });
  });
  launch(number, Range{x.size()}, readwrite(x));
  auto const all = x.to_vector();
  for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], i % 1024 + 1);
}

TEST(GroupFunctions, TakeArraysOfWhatAGroupShares) {
  std::array<std::int32_t, 5> part{3, -1, 4, 1, 5};
  group_inclusive_sum(std::span(part));
  EXPECT_EQ(part, (std::array<std::int32_t, 5>{3, 2, 6, 7, 12}));
  group_exclusive_sum(std::span(part));
  EXPECT_EQ(part, (std::array<std::int32_t, 5>{0, 3, 5, 11, 18}));
  auto const with = [&](auto const& function) {
    auto copy = part;
    return function(std::span(copy));
  };
  EXPECT_EQ(with([](auto all) { return group_sum(all); }), 37);
  EXPECT_EQ(with([](auto all) { return group_min(all); }), 0);
  EXPECT_EQ(with([](auto all) { return group_max(all); }), 18);
}

TEST(GroupFunctions, TakeAnyNumberOfValues) {
  for (std::size_t count = 0; count < 40; ++count) {
    std::vector<std::int32_t> values(count);
    std::iota(values.begin(), values.end(), -7);
    auto const sum = std::accumulate(values.begin(), values.end(), 0);
    auto const with = [&](auto const& function) {
      auto copy = values;
      return function(std::span{copy});
    };
    EXPECT_EQ(with([](auto all) { return group_sum(all); }), sum);
    if (count == 0) continue;
    EXPECT_EQ(with([](auto all) { return group_min(all); }), -7);
    EXPECT_EQ(with([](auto all) { return group_max(all); }), -8 + static_cast<int>(count));
    auto scanned = values, expected = values;
    group_exclusive_sum(std::span{scanned});
    std::exclusive_scan(values.begin(), values.end(), expected.begin(), 0);
    EXPECT_EQ(scanned, expected);
  }
}

}  // namespace
}  // namespace unimem
