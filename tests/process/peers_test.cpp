#include <unimem/core/error.hpp>

#include "process/peers.hpp"
#include "process/segment.hpp"

#include "core/sanitizers.hpp"
#include "core/sizes.hpp"
#include "forked_child.hpp"
#include "peer_processes.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

// What processes hand to one another.

namespace unimem::testing {
namespace {

using detail::Peers;
using detail::Segment;
using detail::UniqueFd;
using Clock = std::chrono::steady_clock;

class PeersTest : public ::testing::Test {
 protected:
  Peers peers;
};

TEST_F(PeersTest, AnotherProcessMapsTheSameMemory) {
  auto const segment = Segment::make("test", MiB);
  peers.offer({1, 2}, one_of(segment), "what it is");
  EXPECT_EQ(in_child([] {
              auto parcel = Peers::fetch({1, 2});
              if (!parcel || parcel->bytes != "what it is" || parcel->descriptors.size() != 1) return 1;
              if (parcel->pid != static_cast<std::uint32_t>(::getppid())) return 2;
              auto const there = Segment::adopt(std::move(parcel->descriptors[0]), MiB, "parent");
              there.data()[7] = std::byte{42};
              return 0;
            }),
            0);
  EXPECT_EQ(segment.data()[7], std::byte{42});
}

TEST_F(PeersTest, WhatIsNotOfferedIsNotThere) {
  EXPECT_FALSE(Peers::fetch({1, 2}));
  peers.offer({1, 2}, {}, "");
  EXPECT_TRUE(Peers::fetch({1, 2}));
  EXPECT_FALSE(Peers::fetch({1, 3}));
  EXPECT_FALSE(Peers::fetch({2, 1}));
  peers.offer({1, 2}, {}, "other");
  EXPECT_EQ(Peers::fetch({1, 2})->bytes, "other");
  peers.withdraw({1, 2});
  peers.withdraw({1, 2});
  EXPECT_FALSE(Peers::fetch({1, 2}));
}

TEST_F(PeersTest, AnyHolderServesAndAKilledOneLeavesNothing) {
  auto const before = sockets_there();
  auto const offer = [] {
    auto const segment = Segment::make("test", 4096);
    Peers::of_this_process().offer({5, 5}, one_of(segment), "held");
  };
  Staying first(offer);
  Staying second(offer);
  EXPECT_EQ(sockets_there(), before + 2);
  auto const pid = Peers::fetch({5, 5})->pid;
  EXPECT_TRUE(pid == first.pid() || pid == second.pid());
  (pid == first.pid() ? first : second).kill();
  EXPECT_NE(Peers::fetch({5, 5}).value().pid, pid);
  first.kill();
  second.kill();
  EXPECT_FALSE(Peers::fetch({5, 5}));
  EXPECT_EQ(sockets_there(), before);
}

TEST_F(PeersTest, AForkedChildKeepsNothingOfItsParents) {
  auto const before = sockets_there();
  ::pid_t grandchild = 0;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  EXPECT_EQ(in_child([&] {
              Peers::of_this_process().offer({6, 6}, {}, "the child's");
              auto const its_own = ::fork();
              if (its_own == 0) {
                for (;;) ::pause();
              }
              return ::write(ends[1], &its_own, sizeof its_own) == sizeof its_own ? 0 : 1;
            }),
            0);
  ASSERT_EQ(::read(ends[0], &grandchild, sizeof grandchild), static_cast<::ssize_t>(sizeof grandchild));
  auto const deadline = Clock::now() + std::chrono::seconds(5);  // it closes what it inherits when it begins
  while (sockets_there() != before && Clock::now() < deadline) std::this_thread::yield();
  EXPECT_EQ(sockets_there(), before);
  EXPECT_FALSE(Peers::fetch({6, 6}));
  ::kill(grandchild, SIGKILL);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_F(PeersTest, WhoSendsGarbageOrStallsHoldsUpNobody) {
  peers.offer({1, 2}, {}, "here");
  std::string name;
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    auto const at = line.find(fmt::format("@unimem-1-{}-{}-", ::geteuid(), ::getpid()));
    if (at != std::string::npos) name = line.substr(at + 1);
  }
  ASSERT_FALSE(name.empty());
  ::sockaddr_un where{};
  where.sun_family = AF_UNIX;
  std::memcpy(where.sun_path + 1, name.data(), name.size());
  auto const length = static_cast<::socklen_t>(offsetof(::sockaddr_un, sun_path) + 1 + name.size());
  std::vector<UniqueFd> idle;
  for (int i = 0; i < 200; ++i) {
    UniqueFd made{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
    ASSERT_EQ(::connect(made.get(), reinterpret_cast<::sockaddr const*>(&where), length), 0) << i;
    std::string const garbage(static_cast<std::size_t>(i), 'x');
    if (i % 2 == 0) {
      ASSERT_GE(::send(made.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL), 0);
    }
    idle.push_back(std::move(made));
  }
  auto const began = Clock::now();
  EXPECT_EQ(Peers::fetch({1, 2}).value().bytes, "here");
  EXPECT_LT(Clock::now() - began, Peers::patience);
}

TEST_F(PeersTest, AnotherUsersProcessIsNeitherAskedNorAnswered) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs two users";
  auto const name = fmt::format("unimem-1-{}-1-forged", ::geteuid());
  Staying const forger([&] {
    if (::setresuid(65'534, 65'534, 65'534) != 0) throw std::runtime_error("no other user");
    static UniqueFd const kept = listen_as(name);
  });
  auto const began = Clock::now();
  EXPECT_FALSE(Peers::fetch({1, 2}));
  EXPECT_LT(Clock::now() - began, Peers::patience) << "it was asked";
  peers.offer({1, 2}, {}, "ours");
  EXPECT_EQ(in_child([] {
              if (::setresuid(65'534, 65'534, 65'534) != 0) return 1;
              return Peers::fetch({1, 2}) ? 2 : 0;
            }),
            0);
}

TEST_F(PeersTest, WithoutDescriptorsItSaysSo) {
  if (detail::is_sanitized) GTEST_SKIP() << "UndefinedBehaviorSanitizer looks at objects by way of descriptors";
  auto const segment = Segment::make("test", 4096);
  peers.offer({1, 2}, one_of(segment), "");
  EXPECT_EQ(in_child([] {
              auto const used = std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                                              std::filesystem::directory_iterator());
              int taken = 0;
              for (auto left = used + 6; left > 3; --left) {
                ::rlimit const limit{static_cast<::rlim_t>(left), static_cast<::rlim_t>(left)};
                if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
                try {
                  if (Peers::fetch({1, 2})) ++taken;
                } catch (IoError const& error) {
                  return taken > 0 && error.code == EMFILE ? 0 : 2;
                }
              }
              return 3;
            }),
            0);
}

TEST_F(PeersTest, RefusesWhatDoesNotGoOverTheSocket) {
  EXPECT_THROW(peers.offer({1, 2}, {}, std::string(Peers::most_bytes + 1, 'x')), InvalidArgument);
  std::vector<UniqueFd> many(Peers::most_descriptors + 1);
  EXPECT_THROW(peers.offer({1, 2}, std::move(many), ""), InvalidArgument);
  EXPECT_FALSE(Peers::fetch({1, 2}));
  peers.offer({1, 2}, {}, std::string(Peers::most_bytes, 'x'));
  EXPECT_EQ(Peers::fetch({1, 2}).value().bytes.size(), Peers::most_bytes);
}

TEST_F(PeersTest, LeaveNoDescriptorsOpen) {
  auto const descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
  };
  auto const before = descriptors();
  for (int i = 0; i < 20; ++i) {
    Peers some;
    auto const segment = Segment::make("test", 4096);
    some.offer({1, 2}, one_of(segment), "");
    EXPECT_TRUE(Peers::fetch({1, 2}));
  }
  EXPECT_EQ(descriptors(), before);
}

TEST_F(PeersTest, ManyThreadsAskAtOnce) {
  auto const segment = Segment::make("test", 4096);
  peers.offer({1, 2}, one_of(segment), "here");
  std::vector<std::jthread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 50; ++k) EXPECT_EQ(Peers::fetch({1, 2}).value().bytes, "here");
    });
  }
  for (int k = 0; k < 100; ++k) {
    peers.offer({3, static_cast<std::uint64_t>(k)}, one_of(segment), "");
    peers.withdraw({3, static_cast<std::uint64_t>(k)});
  }
}

}  // namespace
}  // namespace unimem::testing
