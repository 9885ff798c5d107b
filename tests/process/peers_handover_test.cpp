#include <unimem/core/error.hpp>

#include "core/sanitizers.hpp"
#include "process/peers.hpp"
#include "process/peers_protocol.hpp"
#include "process/segment.hpp"

#include "peer_processes.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

// What one process offers goes to another.

namespace unimem::testing {
namespace {

using detail::Peers;
using detail::Segment;
using detail::UniqueFd;
using namespace std::chrono_literals;
namespace peers = detail::peers;

constexpr auto patience = 10s;
constexpr auto no_threads_in_children = "ThreadSanitizer lets no child of a process with threads start one";

class Handover : public ::testing::Test {
 protected:
  Handover() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
    ours = UniqueFd{ends[0]};
    theirs = UniqueFd{ends[1]};
  }
  /// Memory that begins with `number`.
  void offer(std::uint64_t number) {
    auto const segment = Segment::make("test", 4'096);
    std::memcpy(segment.data(), &number, sizeof number);
    mine.offer({7, number}, one_of(segment), "number " + std::to_string(number), Peers::Times::once, 4'096);
  }
  /// Whose that was.
  static std::uint32_t fetched(std::uint64_t number) {
    auto parcel = Peers::fetch({7, number});
    if (!parcel) throw std::runtime_error("nobody offers " + std::to_string(number));
    EXPECT_EQ(parcel->bytes, "number " + std::to_string(number));
    auto const memory = Segment::adopt(std::move(parcel->descriptors.at(0)), 4'096, "another");
    std::uint64_t there = 0;
    std::memcpy(&there, memory.data(), sizeof there);
    EXPECT_EQ(there, number);
    return parcel->pid;
  }
  /// Another process, which takes over what comes at its end, and closes it.
  void begin_other(std::optional<rlim_t> most_descriptors = {}) {
    other.emplace([this, most_descriptors] {
      ours = {};
      if (most_descriptors) {
        ::rlimit const limit{*most_descriptors, *most_descriptors};
        ::setrlimit(RLIMIT_NOFILE, &limit);
      }
      std::thread([this] {
        try {
          Peers::of_this_process().take_over(theirs.get(), patience);
        } catch (IoError const&) {  // the test sees that the line ends
        }
        theirs = {};
      }).detach();
    });
    theirs = {};
  }
  [[nodiscard]] static int code_of(std::function<void()> const& what) {
    try {
      what();
    } catch (IoError const& error) {
      return error.code;
    }
    return 0;
  }
  [[nodiscard]] static peers::Message heard(UniqueFd const& socket) {
    ::pollfd watched{socket.get(), POLLIN, 0};
    ::poll(&watched, 1, 10'000);
    return peers::receive(socket.get(), "test").value();
  }

  Peers mine;
  UniqueFd ours, theirs;
  std::optional<Staying> other;
};

TEST_F(Handover, GivesAllThatIsGivenOnce) {
  if (detail::under_thread_sanitizer) GTEST_SKIP() << no_threads_in_children;
  for (std::uint64_t i = 0; i < 300; ++i) offer(i);
  mine.offer({8, 1}, {}, "any number of times");
  EXPECT_EQ(mine.waiting().count, 300U);
  EXPECT_EQ(mine.waiting().memory, 300U * 4'096);
  auto const open = open_descriptors();
  begin_other();
  EXPECT_EQ(mine.hand_over(ours.get(), patience), 300U);
  EXPECT_EQ(mine.waiting().count, 0U);
  EXPECT_EQ(mine.waiting().memory, 0U);
  EXPECT_EQ(open_descriptors(), open - 301) << "nor are they open here";
  for (std::uint64_t i = 0; i < 300; ++i) EXPECT_EQ(fetched(i), other->pid());
  EXPECT_FALSE(Peers::fetch({7, 0})) << "given once";
  EXPECT_EQ(Peers::fetch({8, 1}).value().pid, static_cast<std::uint32_t>(::getpid()));
}

TEST_F(Handover, AtEachMomentOneOffers) {
  if (detail::under_thread_sanitizer) GTEST_SKIP() << no_threads_in_children;
  constexpr std::uint64_t count = 200, meanwhile = 180;
  for (std::uint64_t i = 0; i < count; ++i) offer(i);
  begin_other();
  std::jthread receiver([&] {
    for (std::uint64_t i = 0; i < meanwhile; ++i) static_cast<void>(fetched(i));
  });
  mine.hand_over(ours.get(), patience);
  ours = {};
  receiver.join();
  for (auto i = meanwhile; i < count; ++i) EXPECT_EQ(fetched(i), other->pid());
  EXPECT_EQ(mine.waiting().count, 0U);
  for (auto const& one : Peers::list()) EXPECT_NE(one.key.registry, 7U) << "what has been given is not offered on";
}

TEST_F(Handover, TellsWhatHasBeenGivenMeanwhile) {
  offer(1);
  offer(2);
  std::vector<std::string> told;
  std::jthread fake([&] {
    for (;;) {
      auto const message = heard(theirs);
      bool const all = message.head.kind == peers::Answer::listed;
      if (all) {
        EXPECT_EQ(fetched(2), static_cast<std::uint32_t>(::getpid()));
      }
      if (message.head.kind == peers::Answer::fetched && message.head.found == 0) {
        Peers::Key key;
        std::memcpy(&key, message.bytes.data(), sizeof key);
        EXPECT_EQ(key, (Peers::Key{7, 2}));
        told.emplace_back("given");
      } else {
        told.emplace_back(all ? "all" : message.bytes.substr(24));
      }
      EXPECT_EQ(peers::send(theirs.get(), {}, {}, {}), 0);
      if (told.back() == "given") return;
    }
  });
  mine.hand_over(ours.get(), patience);
  fake.join();
  EXPECT_EQ(told, (std::vector<std::string>{"number 1", "number 2", "all", "given"}));
}

TEST_F(Handover, ThatFailsLeavesAllHere) {
  for (std::uint64_t i = 0; i < 40; ++i) offer(i);
  EXPECT_EQ(code_of([&] { mine.hand_over(ours.get(), 20ms); }), ETIMEDOUT);
  theirs = {};
  auto const ended = code_of([&] { mine.hand_over(ours.get(), patience); });
  EXPECT_TRUE(ended == EPIPE || ended == ECONNRESET) << ended;
  EXPECT_EQ(mine.waiting().count, 40U);
  for (std::uint64_t i = 0; i < 40; ++i) EXPECT_EQ(fetched(i), static_cast<std::uint32_t>(::getpid()));
}

TEST_F(Handover, OfMoreDescriptorsThanTheOtherMayOpenLeavesAllHere) {
  if (detail::under_thread_sanitizer) GTEST_SKIP() << no_threads_in_children;
  for (std::uint64_t i = 0; i < 40; ++i) offer(i);
  begin_other(static_cast<rlim_t>(open_descriptors() + 10));
  auto const ended = code_of([&] { mine.hand_over(ours.get(), patience); });
  EXPECT_TRUE(ended == EPIPE || ended == ECONNRESET) << ended;
  EXPECT_EQ(mine.waiting().count, 40U);
}

TEST_F(Handover, IsRefusedWhereItIsNone) {
  auto const refused = [&](peers::Answer const& answer, std::string const& bytes) {
    EXPECT_EQ(peers::send(ours.get(), answer, bytes, {}), 0);
    return code_of([&] { mine.take_over(theirs.get(), patience); });
  };
  EXPECT_EQ(refused({.found = 1}, "short"), EPROTO);
  EXPECT_EQ(refused({.found = 2}, std::string(64, 'x')), EPROTO);
  EXPECT_EQ(refused({.kind = peers::Answer::not_understood}, ""), EPROTO);
  EXPECT_EQ(refused({.found = 1, .descriptors = 1}, std::string(64, 'x')), EPROTO);
  EXPECT_EQ(code_of([&] { mine.take_over(theirs.get(), 20ms); }), ETIMEDOUT);
  ASSERT_EQ(peers::send(ours.get(), {.found = 1}, std::string(64, 'x'), {}), 0);
  ours = {};
  EXPECT_NE(code_of([&] { mine.take_over(theirs.get(), patience); }), 0);
  EXPECT_EQ(mine.waiting().count, 0U) << "nothing is offered that was not handed over to its end";
}

TEST_F(Handover, OutlivesWhoHandedOver) {
  ASSERT_EQ(peers::send(ours.get(), {.found = 1}, std::string(24, 'x') + "kept", {}), 0);
  ASSERT_EQ(peers::send(ours.get(), {.kind = peers::Answer::listed}, {}, {}), 0);
  std::jthread taking([&] { mine.take_over(theirs.get(), patience); });
  static_cast<void>(heard(ours));
  static_cast<void>(heard(ours));
  ours = {};  // it was killed
  taking.join();
  EXPECT_EQ(mine.waiting().count, 1U);
  constexpr std::uint64_t number = 0x7878'7878'7878'7878;  // 'x'
  EXPECT_EQ(Peers::fetch({number, number}).value().bytes, "kept");
}

}  // namespace
}  // namespace unimem::testing
