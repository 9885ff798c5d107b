#include "process/peers.hpp"
#include "process/segment.hpp"

#include "peer_processes.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// All that processes offer.

namespace unimem::testing {
namespace {

using detail::Peers;
using detail::Segment;

TEST(PeersList, IsWhatAllOffer) {
  EXPECT_TRUE(Peers::list().empty());
  Staying const other([] {
    auto const segment = Segment::make("test", 4'096);
    Peers::of_this_process().offer({2, 1}, one_of(segment), "the other's");
  });
  Peers mine;
  mine.offer({2, 1}, {}, "second");
  mine.offer({1, 9}, {}, "first");
  mine.offer({3, 3}, {}, "gone");
  mine.withdraw({3, 3});
  std::vector<std::string> unanswered{"before"};
  auto found = Peers::list({}, &unanswered);
  EXPECT_TRUE(unanswered.empty());
  std::ranges::stable_sort(found, {}, [&](auto const& one) { return one.pid == other.pid(); });
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0].bytes, "first");
  EXPECT_EQ(found[0].key, (Peers::Key{1, 9}));
  EXPECT_EQ(found[0].pid, static_cast<std::uint32_t>(::getpid()));
  EXPECT_EQ(found[1].bytes, "second");
  EXPECT_EQ(found[2].bytes, "the other's");
  EXPECT_EQ(found[2].pid, other.pid());
}

TEST(PeersList, OfMoreThanOneMessageIsWhole) {
  Peers mine;
  std::vector<std::size_t> sizes;
  for (std::size_t i = 0; i < 40; ++i) sizes.push_back(Peers::most_bytes - i % 3);
  for (std::size_t i = 0; i < 3'000; ++i) sizes.push_back(i % 100);
  sizes.push_back(Peers::most_bytes);
  for (std::size_t i = 0; i < sizes.size(); ++i)
    mine.offer({i / 7, i}, {}, std::string(sizes[i], static_cast<char>(i)));
  auto const found = Peers::list();
  ASSERT_EQ(found.size(), sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    ASSERT_EQ(found[i].key, (Peers::Key{i / 7, i}));
    ASSERT_EQ(found[i].bytes, std::string(sizes[i], static_cast<char>(i)));
  }
}

}  // namespace
}  // namespace unimem::testing
