#include <unimem/core/detail/lazy.hpp>

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <barrier>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

namespace unimem::detail {
namespace {

TEST(Lazy, MakesWhenItIsAskedAndNeverAgain) {
  Lazy<int> number;
  int made = 0;
  auto const make = [&] { return std::make_unique<int>(++made); };
  EXPECT_EQ(made, 0);
  auto& first = number.get(make);
  EXPECT_EQ(first, 1);
  EXPECT_EQ(&number.get(make), &first);
  EXPECT_EQ(made, 1);
}

TEST(Lazy, FindsWhatHasBeenMadeAndMakesNothing) {
  Lazy<int> number;
  EXPECT_EQ(number.find(), nullptr);
  int const* meanwhile = &number.get([&] {
    EXPECT_EQ(number.find(), nullptr) << "it is being made";
    return std::make_unique<int>(7);
  });
  EXPECT_EQ(number.find(), meanwhile);
}

TEST(Lazy, AMakerThatThrowsIsTriedAgain) {
  Lazy<int> number;
  int tries = 0;
  auto const make = [&] {
    if (++tries < 3) throw std::domain_error("not yet");
    return std::make_unique<int>(tries);
  };
  EXPECT_THROW(static_cast<void>(number.get(make)), std::domain_error);
  EXPECT_THROW(static_cast<void>(number.get(make)), std::domain_error);
  EXPECT_EQ(number.get(make), 3);
  EXPECT_EQ(number.get(make), 3);
}

TEST(Lazy, GivesAllThreadsTheSameAfterAFailure) {
  constexpr std::size_t threads = 8;
  for (int round = 0; round < 50; ++round) {
    Lazy<std::vector<int>> numbers;
    std::atomic<int> tries = 0, refused = 0;
    std::barrier ready{threads};
    std::array<std::vector<int> const*, threads> seen{};
    {
      std::vector<std::jthread> all;
      for (auto& mine : seen) {
        all.emplace_back([&] {
          ready.arrive_and_wait();
          auto const make = [&] {
            if (tries++ == 0) throw std::domain_error("the first one");
            return std::make_unique<std::vector<int>>(100, 7);
          };
          while (mine == nullptr) {
            try {
              mine = &numbers.get(make);
            } catch (std::domain_error const&) {
              ++refused;
            }
          }
        });
      }
    }
    EXPECT_EQ(refused, 1);
    EXPECT_EQ(tries, 2);
    for (auto const* const one : seen) {
      ASSERT_EQ(one, seen.front());
      EXPECT_EQ(*one, std::vector<int>(100, 7));
    }
  }
}

}  // namespace
}  // namespace unimem::detail
