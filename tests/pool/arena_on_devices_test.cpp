#include "pool/page_arena.hpp"

#include <unimem/core/error.hpp>
#include <unimem/device/device.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/queue.hpp>
#include <unimem/device/sim.hpp>

#include "core/sizes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace unimem {
namespace {

using detail::PageArena;
using detail::Span;

constexpr std::size_t any = SIZE_MAX / 2;

/// A span of host pages, filled with its own word from end to end.
struct Filled {
  Span* span;
  std::uint64_t word;

  [[nodiscard]] std::uint64_t* words() const { return reinterpret_cast<std::uint64_t*>(span->base); }
  void fill() const { std::fill_n(words(), span->bytes / sizeof word, word); }
  [[nodiscard]] bool intact() const {
    return std::all_of(words(), words() + span->bytes / sizeof word, [this](auto found) { return found == word; });
  }
};

class ArenaOnHost : public ::testing::TestWithParam<unsigned> {};

TEST_P(ArenaOnHost, ContentsSurviveWhateverIsGatheredAroundThem) {
  SCOPED_TRACE(::testing::Message() << "seed " << GetParam());
  std::mt19937_64 random{GetParam()};
  auto& source = *device("cpu").pages();
  PageArena arena{source};
  std::vector<Filled> spans;
  std::uniform_real_distribution<double> logarithm(std::log(256.0), std::log(4.0 * MiB));
  for (std::uint64_t step = 1; step <= 1500; ++step) {
    auto const bytes = static_cast<std::size_t>(std::exp(logarithm(random)));
    while (arena.used() + bytes > 24 * MiB) {
      std::swap(spans[random() % spans.size()], spans.back());
      ASSERT_TRUE(spans.back().intact()) << "step " << step;
      arena.give(*spans.back().span);
      spans.pop_back();
    }
    auto const create = arena.reserved() < 26 * MiB ? any : 0;
    auto* span = arena.gather(bytes, 1, create);
    if (span == nullptr) span = arena.grow(bytes);
    spans.push_back({span, step});
    spans.back().fill();
    if (step % 50 == 0) arena.trim(random() % (32 * MiB));
    arena.validate();
  }
  EXPECT_GT(arena.counts().gathers, 50U) << "or nothing was shown";
  for (auto const& span : spans) ASSERT_TRUE(span.intact());
}

INSTANTIATE_TEST_SUITE_P(Seeds, ArenaOnHost, ::testing::Values(1U, 2U, 2026U));

TEST(ArenaOnSim, FillsADeviceToTheLastPage) {
  auto& sim = make_sim({.memory_bytes = 16 * MiB});
  PageArena arena{*sim.pages()};
  std::vector<Span*> spans;
  for (int i = 0; i < 16; ++i) spans.push_back(arena.grow(MiB));
  EXPECT_EQ(sim.memory_info().free_bytes, 0U);
  EXPECT_THROW(static_cast<void>(arena.grow(1)), OutOfMemory);
  for (std::size_t i = 0; i < 16; i += 2) arena.give(*spans[i]);
  auto* const half = arena.gather(8 * MiB, 1, 0);
  ASSERT_NE(half, nullptr) << "eight pieces of a megabyte are as good as eight megabytes";
  arena.validate();
  EXPECT_EQ(arena.free(), 0U);
  // And all of it can be reached by commands.
  auto queue = sim.create_queue();
  std::vector<std::byte> const news(half->bytes, std::byte{0x5A});
  std::vector<std::byte> olds(half->bytes);
  DeviceMemory const memory{half->base, 0, half->bytes};
  queue.upload(memory, news.data(), news.size());
  queue.download(olds.data(), memory, olds.size()).wait();
  EXPECT_EQ(olds, news);
  arena.give(*half);
  EXPECT_EQ(arena.trim(0), 8 * MiB);
  EXPECT_EQ(sim.memory_info().free_bytes, 8 * MiB);
}

TEST(ArenaOnSim, RefusedPagesChangeNothing) {
  for (std::uint64_t failing = 1; failing <= 4; ++failing) {
    SCOPED_TRACE(::testing::Message() << "allocation " << failing);
    auto& sim = make_sim({.memory_bytes = 64 * MiB, .fail_allocation = failing});
    PageArena arena{*sim.pages()};
    std::size_t refused = 0;
    for (int i = 0; i < 4; ++i) {
      auto const before = arena.reserved();
      try {
        static_cast<void>(arena.grow(3 * MiB));
      } catch (OutOfMemory const&) {
        ++refused;
        EXPECT_EQ(arena.reserved(), before);
      }
      arena.validate();
      EXPECT_EQ(arena.reserved(), 64 * MiB - sim.memory_info().free_bytes);
    }
    EXPECT_EQ(refused, 1U);
    EXPECT_EQ(arena.reserved(), 9 * MiB);
  }
}

}  // namespace
}  // namespace unimem
