#include "core/spare_memory.hpp"
#include "core/sanitizers.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <memory>
#include <set>
#include <thread>
#include <vector>

namespace unimem::detail {
namespace {

constexpr bool keeps = !detail::is_sanitized;

/// Each test has a kind of its own, of which nothing is kept before.
template <int number>
struct Object {
  std::array<std::byte, 48> bytes;
};

TEST(SpareMemory, IsWhatTheThreadGaveBackLast) {
  if (!keeps) GTEST_SKIP() << "a sanitizer is to see every block go";
  using Spare = SpareMemory<Object<1>>;
  auto* const one = Spare::take();
  auto* const other = Spare::take();
  Spare::give(one);
  Spare::give(other);
  EXPECT_EQ(Spare::take(), other);
  EXPECT_EQ(Spare::take(), one);
  Spare::give(one);
  Spare::give(other);
}

TEST(SpareMemory, OfWhichAThreadKeepsSixteen) {
  if (!keeps) GTEST_SKIP() << "a sanitizer is to see every block go";
  using Spare = SpareMemory<Object<2>>;
  std::vector<void*> all(40);
  for (auto& one : all) one = Spare::take();
  EXPECT_EQ(std::set(all.begin(), all.end()).size(), all.size());
  for (auto* const one : all) Spare::give(one);
  std::vector<void*> again(16);
  for (auto& one : again) one = Spare::take();
  EXPECT_EQ(again, std::vector(all.rend() - 16, all.rend())) << "those that came first, the last of them first";
  for (auto* const one : again) Spare::give(one);
}

TEST(SpareMemory, MayBeGivenBackByAnotherThread) {
  using Spare = SpareMemory<Object<3>>;
  std::vector<void*> all(20);
  for (auto& one : all) one = Spare::take();
  std::jthread([&] {
    for (auto* const one : all) Spare::give(one);
  }).join();
  Spare::give(Spare::take());
}

TEST(SpareMemory, ServesThreadLocalObjectsThatOutliveIt) {
  using Spare = SpareMemory<Object<4>>;
  struct Late {
    bool* ended;
    ~Late() {
      auto* const one = Spare::take();
      Spare::give(Spare::take());
      Spare::give(one);
      *ended = true;
    }
  };
  bool ended = false;
  std::jthread([&] {
    static thread_local Late const late{&ended};  // made first, so that it goes last
    ASSERT_EQ(late.ended, &ended);
    Spare::give(Spare::take());
  }).join();
  EXPECT_TRUE(ended);
}

TEST(SpareAllocator, ServesSharedOwners) {
  auto const made = std::allocate_shared<Object<5>>(SpareAllocator<Object<5>>{});
  std::weak_ptr const watched = made;
  EXPECT_EQ(watched.use_count(), 1);
  EXPECT_EQ(SpareAllocator<Object<5>>{}, SpareAllocator<int>{});
  EXPECT_THROW(static_cast<void>(SpareAllocator<Object<5>>{}.allocate(2)), std::bad_array_new_length);
}

}  // namespace
}  // namespace unimem::detail
