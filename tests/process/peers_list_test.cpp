#include <unimem/core/error.hpp>

#include "process/peers.hpp"
#include "process/segment.hpp"

#include "peer_processes.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <utility>
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
  std::ranges::sort(found, {}, [&](auto const& one) { return std::pair(one.pid == other.pid(), one.key); });
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

/// Wants what does not begin with "not", each once; a descriptor that comes is a segment of one byte.
class Collector final : public Peers::Visitor {
 public:
  std::map<Peers::Key, std::byte> got;
  std::size_t asked = 0;

  [[nodiscard]] bool wants(Peers::Offered const& one) override {
    ++asked;
    return !one.bytes.starts_with("not") && !got.contains(one.key);
  }
  void take(Peers::Offered const& one, std::vector<UniqueFd> descriptors) override {
    if (descriptors.size() != 1) throw IoError("a test", EPROTO, "a descriptor is missing");
    got.emplace(one.key, Segment::adopt(std::move(descriptors.front()), 1, "a test").data()[0]);
  }
};

TEST(PeersList, GivesTheDescriptorsThatAreWanted) {
  auto const offer = [](Peers& peers, std::uint64_t number, std::string bytes, Peers::Times times = Peers::Times::any) {
    auto const segment = Segment::make("test", 1);
    segment.data()[0] = static_cast<std::byte>(number);
    peers.offer({5, number}, one_of(segment), std::move(bytes), times);
  };
  // First of all: a child of threads may start none of its own under ThreadSanitizer.
  Staying const other([&] { offer(Peers::of_this_process(), 50, "the same"); });
  Peers mine;
  // Over several messages, of which each is gone through before the next.
  for (std::uint64_t i = 0; i < 100; ++i) offer(mine, i, std::string(Peers::most_bytes / 10, 'x'));
  offer(mine, 200, "not this", Peers::Times::once);
  auto const before = open_descriptors();
  Collector collector;
  std::vector<std::string> unanswered;
  EXPECT_EQ(Peers::list(collector, {}, &unanswered).size(), 102U);
  EXPECT_TRUE(unanswered.empty());
  ASSERT_EQ(collector.got.size(), 100U);
  for (auto const& [key, byte] : collector.got) EXPECT_EQ(byte, static_cast<std::byte>(key.number));
  EXPECT_EQ(collector.asked, 102U);
  EXPECT_EQ(mine.waiting().count, 1U) << "what is not wanted is not taken";
  // The thread that has answered closes its end a little later.
  auto const until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (open_descriptors() != before && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  EXPECT_EQ(open_descriptors(), before);
}

TEST(PeersList, TellsOfThoseWhoseDescriptorsAreBad) {
  Peers mine;
  mine.offer({5, 1}, {}, "without one");
  Collector collector;
  std::vector<std::string> unanswered;
  EXPECT_EQ(Peers::list(collector, {}, &unanswered).size(), 1U);
  ASSERT_EQ(unanswered.size(), 1U);
  EXPECT_NE(unanswered.front().find("a descriptor is missing"), std::string::npos) << unanswered.front();
}

}  // namespace
}  // namespace unimem::testing
