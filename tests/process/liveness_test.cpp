#include "process/segment.hpp"
#include "process/shared_ranges.hpp"

#include "forked_child.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

// Which processes live, and what becomes of the claims of those that do not.

namespace unimem::testing {
namespace {

using detail::Segment;
using detail::SharedRanges;
using Holder = SharedRanges::Holder;
using Process = SharedRanges::Process;

/// As a child has written it.
Process read_process(int from) {
  std::array<std::byte, sizeof(Process)> bytes{};
  EXPECT_EQ(::read(from, bytes.data(), bytes.size()), static_cast<::ssize_t>(bytes.size()));
  return std::bit_cast<Process>(bytes);
}

/// A child that does `work`, says who it is, and stays until it is killed; killed, it is a zombie until it is `reap`ed.
class StayingProcess {
 public:
  explicit StayingProcess(std::function<void()> const& work = [] {}) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    child_ = fork_while_others_sleep();
    if (child_ == 0) {
      work();
      auto const self = SharedRanges::this_process();
      static_cast<void>(::write(ends[1], &self, sizeof self));
      for (;;) ::pause();
    }
    ::close(ends[1]);  // so that a child that ends is not waited for
    process = read_process(ends[0]);
    ::close(ends[0]);
  }
  StayingProcess(StayingProcess const&) = delete;
  StayingProcess& operator=(StayingProcess const&) = delete;
  ~StayingProcess() {
    if (child_ > 0) ::kill(child_, SIGKILL);
    reap();
  }
  void kill_to_zombie() const {
    ::kill(child_, SIGKILL);
    ::siginfo_t ended{};
    EXPECT_EQ(::waitid(P_PID, static_cast<::id_t>(child_), &ended, WEXITED | WNOWAIT), 0);
  }
  void reap() {
    if (child_ > 0) ::waitpid(child_, nullptr, 0);
    child_ = 0;
  }
  Process process;

 private:
  ::pid_t child_ = 0;
};

TEST(Liveness, OfThisProcess) {
  auto const self = SharedRanges::this_process();
  EXPECT_EQ(self.pid, static_cast<std::uint32_t>(::getpid()));
  EXPECT_GT(self.started, 0U);
  EXPECT_EQ(SharedRanges::this_process(), self);
  EXPECT_EQ(SharedRanges::process(self.pid), self);
  EXPECT_EQ(SharedRanges::process(4'194'305), std::nullopt);
  EXPECT_TRUE(SharedRanges::is_alive(self));
  EXPECT_FALSE(SharedRanges::is_alive({self.pid, self.started + 1})) << "another one of this number";
  EXPECT_FALSE(SharedRanges::is_alive({}));
  EXPECT_FALSE(SharedRanges::is_alive({4'194'305, 1})) << "more than any system numbers";
}

TEST(Liveness, AZombieIsDeadAndAStoppedProcessIsNot) {
  StayingProcess child;
  EXPECT_TRUE(SharedRanges::is_alive(child.process));
  ASSERT_EQ(::kill(static_cast<::pid_t>(child.process.pid), SIGSTOP), 0);
  EXPECT_TRUE(SharedRanges::is_alive(child.process));
  child.kill_to_zombie();
  EXPECT_FALSE(SharedRanges::is_alive(child.process));
  EXPECT_EQ(SharedRanges::process(child.process.pid), std::nullopt);
  child.reap();
  EXPECT_FALSE(SharedRanges::is_alive(child.process));
}

TEST(Liveness, WhateverAProcessIsCalled) {
  for (auto const* const name : {"a b", ") Z 1 (", "((", "))", ") X", "\n) Z 1"}) {
    StayingProcess child([&] { ::prctl(PR_SET_NAME, name); });
    EXPECT_TRUE(SharedRanges::is_alive(child.process)) << name;
    child.kill_to_zombie();
    EXPECT_FALSE(SharedRanges::is_alive(child.process)) << name;
  }
}

TEST(Liveness, AProcessWhoseFirstThreadHasEndedLives) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  auto const child = fork_while_others_sleep();
  if (child == 0) {
    auto const self = SharedRanges::this_process();
    static_cast<void>(::write(ends[1], &self, sizeof self));
    std::thread([] {
      for (;;) ::pause();
    }).detach();
    ::syscall(SYS_exit, 0);  // of this thread alone, and without unwinding
  }
  auto const process = read_process(ends[0]);
  auto const is_shown_as_a_zombie = [&] {
    std::ifstream file(fmt::format("/proc/{}/stat", child));
    std::string const text(std::istreambuf_iterator<char>(file), {});
    return text.find(") Z ") != std::string::npos;
  };
  auto const deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!is_shown_as_a_zombie() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_TRUE(is_shown_as_a_zombie());
  EXPECT_TRUE(SharedRanges::is_alive(process));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_FALSE(SharedRanges::is_alive(process));
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(ForgetDead, WhatTheyWereWritingIsLostAndTheyReadNoMore) {
  auto const mapping = Segment::make("table", SharedRanges::bytes());
  auto table = SharedRanges::make({mapping.data(), mapping.size()}, 64, "a table");
  auto const me = table.join(SharedRanges::this_process()).value();
  EXPECT_TRUE(table.forget_dead().empty());
  StayingProcess first, second;
  auto const one = table.join(first.process).value(), other = table.join(second.process).value();
  ASSERT_EQ(table.begin_write(one, {0, 8}), std::nullopt);
  ASSERT_EQ(table.begin_read(one, {8, 16}), std::nullopt);
  ASSERT_EQ(table.begin_write(other, {16, 24}), std::nullopt);
  first.kill_to_zombie();
  auto const forgotten = table.forget_dead();
  ASSERT_EQ(forgotten.size(), 1U);
  EXPECT_EQ(forgotten[0].holder, one);
  EXPECT_EQ(forgotten[0].process, first.process);
  EXPECT_EQ(table.participants().size(), 2U);
  EXPECT_EQ(table.changes(me, 0).lost, ByteRanges({0, 8}));
  EXPECT_EQ(table.begin_write(me, {8, 16}), std::nullopt);
  EXPECT_TRUE(table.begin_write(me, {16, 24}));
  EXPECT_TRUE(table.forget_dead().empty());
  table.validate();
}

TEST(ForgetDead, IsWrittenDownForAllUnlessTheyEndedInGoodOrder) {
  auto const mapping = Segment::make("table", SharedRanges::bytes());
  auto table = SharedRanges::make({mapping.data(), mapping.size()}, 64, "a table");
  ASSERT_TRUE(table.join(SharedRanges::this_process()));
  std::vector<std::unique_ptr<StayingProcess>> children;
  for (int i = 0; i < 4; ++i) children.push_back(std::make_unique<StayingProcess>());
  std::vector<Holder> holders;
  for (auto const& one : children) holders.push_back(table.join(one->process).value());
  ASSERT_EQ(table.begin_write(holders[0], {0, 8}), std::nullopt);
  ASSERT_EQ(table.begin_write(holders[0], {4, 12}), std::nullopt);
  ASSERT_EQ(table.begin_write(holders[2], {20, 24}), std::nullopt);
  table.note_end(holders[1]);
  table.note_end(holders[2]);
  table.note_end(0);
  table.note_end(SharedRanges::most_holders);
  for (auto const& one : children) one->kill_to_zombie();
  EXPECT_EQ(table.deaths(0).count, 0U);
  EXPECT_EQ(table.forget_dead().size(), 4U);
  auto const deaths = table.deaths(0);
  EXPECT_EQ(deaths.count, 3U);
  ASSERT_EQ(deaths.since.size(), 3U);
  EXPECT_EQ(deaths.since[0].process, children[0]->process);
  EXPECT_EQ(deaths.since[0].lost_bytes, 12U) << "each byte once";
  EXPECT_EQ(deaths.since[1].process, children[2]->process) << "it lost what it was writing";
  EXPECT_EQ(deaths.since[1].lost_bytes, 4U);
  EXPECT_EQ(deaths.since[2].process, children[3]->process);
  EXPECT_EQ(table.deaths(2).since.size(), 1U);
  EXPECT_TRUE(table.deaths(3).since.empty());
  EXPECT_TRUE(table.deaths(UINT64_MAX).since.empty());
  table.validate();
}

TEST(ForgetDead, RemembersTheLatestOfManyDeaths) {
  auto const mapping = Segment::make("table", SharedRanges::bytes());
  auto table = SharedRanges::make({mapping.data(), mapping.size()}, 64, "a table");
  Process dead;
  {
    StayingProcess const child;
    dead = child.process;
  }
  constexpr auto most = SharedRanges::most_deaths;
  for (std::size_t i = 0; i < most + 7; ++i) {
    auto const holder = table.join(dead).value();
    ASSERT_EQ(table.begin_write(holder, {0, i % 64 + 1}), std::nullopt);
    static_cast<void>(table.forget_dead());
  }
  auto const deaths = table.deaths(0);
  EXPECT_EQ(deaths.count, most + 7);
  ASSERT_EQ(deaths.since.size(), most);
  for (std::size_t i = 0; i < most; ++i) EXPECT_EQ(deaths.since[i].lost_bytes, (i + 7) % 64 + 1);
  EXPECT_EQ(table.deaths(most + 5).since.size(), 2U);
}

TEST(ForgetDead, OfThoseWhoAskAtOnceOneIsTold) {
  auto const mapping = Segment::make("table", SharedRanges::bytes());
  auto table = SharedRanges::make({mapping.data(), mapping.size()}, 64, "a table");
  Process dead;
  {
    StayingProcess const child;
    dead = child.process;
  }
  auto const self = SharedRanges::this_process();
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(table.join(dead));
    std::atomic<std::size_t> told{0};
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        told += table.forget_dead().size();
        ASSERT_TRUE(table.join(self)) << "by the number of a dead one";
      });
    }
    threads.clear();
    EXPECT_EQ(told, 4U);
    auto const left = table.participants();
    EXPECT_EQ(left.size(), 4U) << "those who live stay";
    for (auto const& one : left) table.leave(one.holder);
  }
}

}  // namespace
}  // namespace unimem::testing
