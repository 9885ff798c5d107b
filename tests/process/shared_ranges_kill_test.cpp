#include "process/shared_ranges.hpp"
#include "process/steps.hpp"

#include "forked_child.hpp"
#include "shared_cells.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

// Processes that are killed while they and others read and write: what stays is whole, and others go on.

namespace unimem::testing {
namespace {

using detail::SharedRanges;
using detail::Step;
using Claim = SharedRanges::Claim;
using Holder = SharedRanges::Holder;

/// How many to kill: more when asked.
unsigned kills() {
  auto const* const asked = std::getenv("UNIMEM_TEST_KILLS");
  return asked != nullptr ? static_cast<unsigned>(std::atoi(asked)) : 100;
}

class KilledProcesses : public ::testing::Test {
 protected:
  struct Child {
    ::pid_t pid = 0;
    std::size_t place = 0;
  };

  ~KilledProcesses() override {
    for (auto const& child : children) end(child);
  }
  static void end(Child const& child) {
    ::kill(child.pid, SIGKILL);
    ::waitpid(child.pid, nullptr, 0);
  }

  /// `at`: the step at which it kills itself, after `passes` of them.
  Child start(std::size_t place, unsigned seed, bool forgets, std::optional<Step> at = std::nullopt, int passes = 0) {
    cells.counts(place).steps = 0;
    auto const pid = fork_while_others_sleep();
    EXPECT_GE(pid, 0);
    if (pid == 0) {
      if (at) {
        last_step = *at;
        passes_left = passes;
        detail::step_watcher.store([](Step step) {
          if (step == last_step && passes_left-- == 0) ::raise(SIGKILL);
        });
      }
      work_until_killed(cells, place, seed, forgets);
    }
    return {pid, place};
  }

  /// Reads and writes itself meanwhile. False: `done` has not come true for long.
  template <class Done>
  bool work_until(Done const& done) {
    auto const deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!done()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      EXPECT_TRUE(cells.step(me, random, false)) << "what it read was not whole";
    }
    return true;
  }

  /// What a process that has ended was writing is lost. Returns how many claims it had.
  std::size_t forget(::pid_t pid, bool others_forget) {
    cells.table.validate();
    std::vector<Holder> numbers;
    for (auto const& one : cells.table.participants()) {
      if (one.process.pid == static_cast<std::uint32_t>(pid)) numbers.push_back(one.holder);
    }
    auto const before = cells.table.changes(me, 0);
    std::vector<Claim> claims;
    for (auto const& claim : before.claims) {
      if (std::ranges::find(numbers, claim.holder) != numbers.end()) claims.push_back(claim);
    }
    auto const forgotten = cells.table.forget_dead();
    auto const after = cells.table.changes(me, before.version);
    if (!others_forget) {
      EXPECT_EQ(forgotten.size(), numbers.size());
      // Others may have written there again by now: they are new bytes then, too.
      for (auto const& claim : claims) EXPECT_TRUE(after.written.contains(claim.range));
    }
    for (auto const& one : cells.table.participants()) EXPECT_NE(one.process.pid, static_cast<std::uint32_t>(pid));
    cells.table.validate();
    return claims.size();
  }

  /// When all have ended.
  void expect_whole() {
    static_cast<void>(cells.table.forget_dead());
    EXPECT_EQ(cells.table.participants().size(), 1U);
    ASSERT_EQ(cells.table.begin_write(me, {0, SharedCells::size}), std::nullopt) << "a claim is stuck";
    cells.table.end_write(me, {0, SharedCells::size}, SharedRanges::Outcome::untouched);
    EXPECT_TRUE(cells.is_whole(me, {0, SharedCells::size}));
    ASSERT_EQ(cells.table.begin_write(me, {0, SharedCells::size}), std::nullopt);
    cells.table.end_write(me, {0, SharedCells::size});
    EXPECT_TRUE(cells.table.changes(me, 0).lost.empty());
  }

  void kill_at_random(bool others_forget) {
    constexpr std::size_t together = 3;
    for (std::size_t place = 0; place < together; ++place) {
      children.push_back(start(place, static_cast<unsigned>(place), others_forget));
    }
    std::size_t were_writing = 0;
    for (unsigned i = 0; i < kills(); ++i) {
      SCOPED_TRACE(i);
      auto& child = children[random() % together];
      auto& steps = cells.counts(child.place).steps;
      ASSERT_TRUE(work_until([&] { return steps >= 5; })) << "it does nothing";
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
      ASSERT_EQ(::kill(child.pid, SIGKILL), 0);
      ASSERT_EQ(ending_of(child.pid), -SIGKILL) << "it has ended before";
      if (forget(child.pid, others_forget) != 0) ++were_writing;
      child = start(child.place, 1'000 + i, others_forget);
      if (HasFailure()) return;
    }
    for (auto const& child : children) end(child);
    children.clear();
    expect_whole();
    if (!others_forget) {
      EXPECT_GT(were_writing, kills() / 50) << "the kills have met no writers";
    }
  }

  static inline Step last_step{};
  static inline int passes_left = 0;

  SharedCells cells;
  Holder me = cells.table.join(SharedRanges::this_process()).value();
  std::mt19937 random{2026};
  std::vector<Child> children;
};

TEST_F(KilledProcesses, AreForgottenByOne) {
  kill_at_random(false);
}

TEST_F(KilledProcesses, AreForgottenByWhoeverFindsThemInTheWay) {
  kill_at_random(true);
}

/// In each of the steps of a change, of a claim, and of leaving.
class KilledAtAStep : public KilledProcesses, public ::testing::WithParamInterface<Step> {};

TEST_P(KilledAtAStep, OthersGoOn) {
  children.push_back(start(0, 1, false));
  for (int i = 0; i < 20; ++i) {
    SCOPED_TRACE(i);
    auto const killed = start(1, 100 + static_cast<unsigned>(i), false, GetParam(), static_cast<int>(random() % 8));
    int status = 0;
    bool const ended = work_until([&] { return ::waitpid(killed.pid, &status, WNOHANG) == killed.pid; });
    if (!ended) end(killed);
    ASSERT_TRUE(ended) << "it has not come there";
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
    auto const claims = forget(killed.pid, false);
    if (GetParam() == Step::write_claimed) {
      EXPECT_EQ(claims, 1U);
    }
    if (GetParam() == Step::write_ended || GetParam() == Step::left) {
      EXPECT_EQ(claims, 0U);
    }
    if (HasFailure()) return;
  }
  auto& steps = cells.counts(0).steps;
  auto const before = steps.load();
  EXPECT_TRUE(work_until([&] { return steps > before; })) << "the other one is stuck";
  end(children[0]);
  children.clear();
  expect_whole();
}

TEST_F(KilledProcesses, WhatOneDidNotTellTheNextTells) {
  auto const seen = cells.table.change_count();
  auto const killed = start(0, 1, false, Step::change_in_force);
  EXPECT_EQ(ending_of(killed.pid), -SIGKILL);
  EXPECT_EQ(cells.table.change_count(), seen) << "it was killed before";
  EXPECT_EQ(cells.table.participants().size(), 2U);
  EXPECT_NE(cells.table.change_count(), seen);
}

std::string name_of(::testing::TestParamInfo<Step> const& info) {
  constexpr char const* names[] = {"LockTaken",   "ChangePrepared", "ChangeInForce", "WriteClaimed", "WriteEnded",
                                   "ReadClaimed", "ReadEnded",      "Leaving",       "Left"};
  return names[static_cast<int>(info.param) - static_cast<int>(Step::lock_taken)];
}

INSTANTIATE_TEST_SUITE_P(All, KilledAtAStep,
                         ::testing::Values(Step::lock_taken, Step::change_prepared, Step::change_in_force,
                                           Step::write_claimed, Step::write_ended, Step::read_claimed, Step::read_ended,
                                           Step::leaving, Step::left),
                         name_of);

}  // namespace
}  // namespace unimem::testing
