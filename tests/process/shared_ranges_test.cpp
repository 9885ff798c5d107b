#include <unimem/core/error.hpp>

#include "process/segment.hpp"
#include "process/shared_ranges.hpp"

#include "core/sizes.hpp"
#include "forked_child.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

// What several processes know together of who has written what.

namespace unimem::testing {
namespace {

using detail::Segment;
using detail::SharedRanges;
using Holder = SharedRanges::Holder;

/// One table, as several processes see it: each by a mapping of its own.
class SharedRangesTest : public ::testing::Test {
 protected:
  explicit SharedRangesTest(std::size_t contents = 64) : size(contents) {
    ranges.push_back(SharedRanges::make(memory(), size, "a table"));
  }
  [[nodiscard]] std::span<std::byte> memory() {
    if (mappings.empty()) {
      mappings.push_back(Segment::make("table", SharedRanges::bytes()));
    } else {
      detail::UniqueFd again{::dup(mappings.front().descriptor())};
      mappings.push_back(Segment::adopt(std::move(again), SharedRanges::bytes(), "a test"));
    }
    return {mappings.back().data(), mappings.back().size()};
  }
  /// Another process, by number.
  SharedRanges& another() { return ranges.emplace_back(SharedRanges::attach(memory(), size, "a table")); }

  std::size_t size;
  std::vector<Segment> mappings;
  std::vector<SharedRanges> ranges;
};

TEST_F(SharedRangesTest, TellOthersWhatOneHasWritten) {
  ranges.reserve(2);
  auto& mine = ranges.front();
  auto& theirs = another();
  auto const me = mine.join({100, 1}).value(), them = theirs.join({200, 2}).value();
  EXPECT_NE(me, them);
  auto const before = theirs.version();
  EXPECT_EQ(mine.begin_write(me, {8, 16}), std::nullopt);
  EXPECT_EQ(theirs.changes(them, before).written, ByteRanges());
  mine.end_write(me, {8, 16});
  EXPECT_NE(theirs.version(), before);
  auto const seen = theirs.changes(them, before);
  EXPECT_EQ(seen.written, ByteRanges({8, 16}));
  EXPECT_EQ(seen.version, theirs.version());
  EXPECT_EQ(theirs.changes(them, seen.version).written, ByteRanges());
  EXPECT_EQ(mine.changes(me, before).written, ByteRanges()) << "its own";
}

TEST_F(SharedRangesTest, NameWhoIsWritingThere) {
  ranges.reserve(2);
  auto& mine = ranges.front();
  auto& theirs = another();
  auto const me = mine.join({100, 1}).value(), them = theirs.join({200, 2}).value();
  ASSERT_EQ(mine.begin_write(me, {8, 16}), std::nullopt);
  ASSERT_EQ(mine.begin_write(me, {12, 20}), std::nullopt) << "one process knows itself what it is about";
  auto const version = theirs.version();
  auto const refused = theirs.begin_write(them, {18, 30});
  ASSERT_TRUE(refused);
  EXPECT_EQ(*refused, (SharedRanges::Claim{me, {12, 20}}));
  EXPECT_EQ(theirs.version(), version);
  EXPECT_EQ(theirs.changes(them, 0).claims.size(), 2U);
  mine.end_write(me, {12, 20});
  EXPECT_TRUE(theirs.begin_write(them, {14, 30})) << "the first one goes on";
  mine.end_write(me, {8, 16});
  EXPECT_EQ(theirs.begin_write(them, {14, 30}), std::nullopt);
  mine.validate();
}

TEST_F(SharedRangesTest, WhatAKilledWriterWasAtIsLostUntilItIsWritten) {
  ranges.reserve(2);
  auto& mine = ranges.front();
  auto& theirs = another();
  auto const me = mine.join({100, 1}).value(), them = theirs.join({200, 2}).value();
  for (ByteRange const range : {ByteRange{0, 32}, ByteRange{40, 50}}) {
    ASSERT_EQ(mine.begin_write(me, range), std::nullopt);
    mine.end_write(me, range);
  }
  ASSERT_EQ(mine.begin_write(me, {8, 16}), std::nullopt);
  auto const since = theirs.version();
  theirs.leave(me);
  auto const seen = theirs.changes(them, since);
  EXPECT_EQ(seen.lost, ByteRanges({8, 16}));
  EXPECT_EQ(seen.written, ByteRanges({8, 16})) << "nor is a copy of it good";
  EXPECT_TRUE(seen.claims.empty());
  ASSERT_EQ(theirs.begin_write(them, {8, 12}), std::nullopt);
  auto const while_writing = theirs.changes(them, since);
  EXPECT_EQ(while_writing.lost, ByteRanges({12, 16})) << "of what it is just writing nothing is told";
  EXPECT_EQ(while_writing.written, ByteRanges({12, 16}));
  EXPECT_TRUE(while_writing.loses);
  theirs.end_write(them, {8, 12});
  EXPECT_EQ(theirs.changes(them, since).lost, ByteRanges({12, 16}));
  // Another process by the same number has seen nothing of what the first one wrote.
  auto const next = mine.join({300, 3}).value();
  EXPECT_EQ(next, me);
  EXPECT_TRUE(mine.changes(next, 0).written.contains({40, 50}));
  mine.validate();
}

TEST_F(SharedRangesTest, HaveRoomForManyProcesses) {
  auto& table = ranges.front();
  for (std::uint32_t i = 1; i <= SharedRanges::most_holders; ++i) ASSERT_EQ(table.join({i, i}), i);
  EXPECT_EQ(table.join({5000, 1}), std::nullopt);
  EXPECT_EQ(table.participants().size(), SharedRanges::most_holders);
  table.leave(17);
  EXPECT_EQ(table.participants().size(), SharedRanges::most_holders - 1);
  EXPECT_EQ(table.join({5000, 1}), Holder{17});
  EXPECT_EQ(table.participants()[16].process, (SharedRanges::Process{5000, 1}));
}

TEST_F(SharedRangesTest, DamageIsNamed) {
  auto& table = ranges.front();
  auto const bytes = std::span{mappings.front().data(), mappings.front().size()};
  auto const refused = [&](std::size_t other_size) -> std::string {
    try {
      static_cast<void>(SharedRanges::attach(bytes, other_size, "a table"));
    } catch (IoError const& error) {
      EXPECT_EQ(error.code, EBADMSG);
      return error.what();
    }
    return "";
  };
  EXPECT_NE(refused(size + 1).find("the size"), std::string::npos) << refused(size + 1);
  EXPECT_EQ(refused(size), "");
  bytes[8] = std::byte{99};
  EXPECT_NE(refused(size).find("another version"), std::string::npos);
  bytes[0] = std::byte{0};
  EXPECT_NE(refused(size).find("the first bytes"), std::string::npos);
  EXPECT_THROW(static_cast<void>(SharedRanges::attach(bytes.first(100), size, "a table")), InvalidArgument);
  static_cast<void>(table.join({1, 1}));
  // Whatever a process may have written over it: no table, or one that is in order.
  std::mt19937 random{2026};
  for (int i = 0; i < 2'000; ++i) {
    auto const at = 128 + random() % 2'048;  // behind the lock, on which processes rely
    bytes[at] ^= static_cast<std::byte>(1 + random() % 255);
    try {
      table.validate();
      static_cast<void>(table.changes(1, 0));
    } catch (IoError const& error) {
      EXPECT_EQ(error.code, EBADMSG);
    } catch (std::logic_error const&) {  // in order, of things that cannot be
    }
  }
}

/// Byte by byte, what is known.
struct Byte {
  std::uint64_t version = 0;
  Holder last = 0, writer = 0;
  int writes = 0;
  bool lost = false;
};

/// Processes that do things at random, and a table of bytes beside theirs.
class Processes {
 public:
  Processes(SharedRanges& table, std::size_t size, unsigned seed, bool exact)
      : table_(table), bytes_(size), random_(seed), exact_(exact) {
    for (std::uint32_t pid = 1; pid <= 3; ++pid) begin(pid);
  }

  void step() {
    auto& process = processes_[random_() % processes_.size()];
    switch (random_() % 8) {
      case 0:
      case 1:
      case 2:
        return begin_write(process);
      case 3:
      case 4:
      case 5:
        return end_write(process);
      case 6:
        return look(process);
      default:
        if (random_() % 8 == 0) end(process);
    }
  }

 private:
  struct Process {
    Holder holder = 0;
    std::uint64_t seen = 0;
    std::set<std::size_t> stale;  ///< bytes that others wrote since it looked
    std::vector<ByteRange> writing;
  };

  void begin(std::uint32_t pid) {
    Process made;
    made.holder = table_.join({pid, pid}).value();
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      if (bytes_[i].version != 0) made.stale.insert(i);
    }
    processes_.push_back(std::move(made));
  }
  void end(Process& process) {
    table_.leave(process.holder);
    auto const holder = process.holder;
    ++version_;
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      auto& byte = bytes_[i];
      if (byte.last == holder) byte.last = 0;
      if (byte.writer != holder) continue;
      byte = {version_, 0, 0, 0, true};
      for (auto& other : processes_) other.stale.insert(i);
    }
    process = std::move(processes_.back());
    processes_.pop_back();
    begin(100 + static_cast<std::uint32_t>(version_));
  }
  ByteRange some_range() {
    auto const a = random_() % (bytes_.size() + 1), b = random_() % (bytes_.size() + 1);
    auto const longest = random_() % 4 == 0 ? bytes_.size() : std::size_t{8};
    auto const begin = std::min(a, b);
    return {begin, std::min({std::max(a, b), begin + longest})};
  }
  void begin_write(Process& process) {
    auto const range = some_range();
    bool const free = std::ranges::none_of(bytes_.begin() + static_cast<std::ptrdiff_t>(range.begin),
                                           bytes_.begin() + static_cast<std::ptrdiff_t>(range.end),
                                           [&](Byte const& b) { return b.writes != 0 && b.writer != process.holder; });
    std::optional<SharedRanges::Claim> refused;
    try {
      refused = table_.begin_write(process.holder, range);
    } catch (InvalidArgument const&) {
      ASSERT_FALSE(exact_);
      return;
    }
    ASSERT_EQ(free, !refused) << range.begin << " " << range.end;
    if (!free) return;
    for (auto i = range.begin; i < range.end; ++i) {
      bytes_[i].writer = process.holder;
      ++bytes_[i].writes;
    }
    if (!range.empty()) process.writing.push_back(range);
  }
  void end_write(Process& process) {
    if (process.writing.empty()) return;
    auto const at = random_() % process.writing.size();
    auto const range = process.writing[at];
    process.writing.erase(process.writing.begin() + static_cast<std::ptrdiff_t>(at));
    table_.end_write(process.holder, range);
    ++version_;
    for (auto i = range.begin; i < range.end; ++i) {
      auto& byte = bytes_[i];
      if (--byte.writes == 0) byte.writer = 0;
      byte.version = version_;
      byte.last = process.holder;
      byte.lost = false;
      for (auto& other : processes_) {
        if (&other == &process) {
          other.stale.erase(i);
        } else {
          other.stale.insert(i);
        }
      }
    }
  }
  void look(Process& process) {
    auto const changes = table_.changes(process.holder, process.seen);
    process.seen = changes.version;
    ASSERT_EQ(changes.version, table_.version());
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      auto const told = changes.written.contains({i, i + 1});
      if (bytes_[i].writes != 0 && bytes_[i].writer == process.holder) {  // whoever is to know asks before it begins
        ASSERT_FALSE(told || changes.lost.contains({i, i + 1})) << i;
        continue;
      }
      ASSERT_TRUE(told || !process.stale.contains(i)) << i;
      if (exact_ && !bytes_[i].lost) {  // lost neighbours are told as one
        ASSERT_EQ(told, process.stale.contains(i)) << i;
      }
      ASSERT_EQ(changes.lost.contains({i, i + 1}), bytes_[i].lost) << i;
      bool const claimed = std::ranges::any_of(changes.claims, [&](SharedRanges::Claim const& claim) {
        return claim.range.contains({i, i + 1}) && claim.holder == bytes_[i].writer;
      });
      ASSERT_EQ(claimed, bytes_[i].writes != 0 && bytes_[i].writer != process.holder) << i;
    }
    process.stale.clear();
    table_.validate();
  }

  SharedRanges& table_;
  std::vector<Byte> bytes_;
  std::vector<Process> processes_;
  std::mt19937 random_;
  bool exact_;
  std::uint64_t version_ = 0;
};

TEST_F(SharedRangesTest, AgreeWithATableOfBytes) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    auto mapping = Segment::make("table", SharedRanges::bytes());
    auto table = SharedRanges::make({mapping.data(), mapping.size()}, 64, "a table");
    Processes processes(table, 64, seed, true);
    for (int i = 0; i < 2'000 && !HasFatalFailure(); ++i) processes.step();
  }
}

TEST_F(SharedRangesTest, WithMoreRangesThanFitNothingIsMissed) {
  for (unsigned seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(seed);
    auto mapping = Segment::make("table", SharedRanges::bytes());
    auto table = SharedRanges::make({mapping.data(), mapping.size()}, 2'000, "a table");
    Processes processes(table, 2'000, seed, false);
    for (int i = 0; i < 2'000 && !HasFatalFailure(); ++i) processes.step();
  }
}

/// A child that claims and writes at random until it is killed.
[[noreturn]] void write_until_killed(SharedRanges& table, Holder self, unsigned seed) {
  std::mt19937 random{seed};
  for (;;) {
    auto const begin = random() % 60, count = 1 + random() % 4;
    ByteRange const range{begin, begin + count};
    if (!table.begin_write(self, range)) table.end_write(self, range);
  }
}

TEST_F(SharedRangesTest, AProcessThatIsKilledAnywhereLeavesAWholeTable) {
  auto& table = ranges.front();
  auto const me = table.join({1, 1}).value();
  std::mt19937 random{2026};
  int lost = 0;
  for (unsigned i = 0; i < 100; ++i) {
    auto const child_holder = table.join({2 + i, 1}).value();
    auto const child = fork_while_others_sleep();
    ASSERT_GE(child, 0);
    if (child == 0) write_until_killed(table, child_holder, i);
    auto const began = table.version();
    auto const deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (table.version() < began + 20 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    ASSERT_GE(table.version(), began + 20) << "the child has not written";
    table.validate();
    auto const claims = table.changes(me, 0).claims;
    ByteRanges claimed;
    for (auto const& claim : claims) claimed.add(claim.range);
    EXPECT_LE(claimed.ranges().size(), 1U);
    table.leave(child_holder);
    auto const after = table.changes(me, 0);
    EXPECT_TRUE(after.claims.empty());
    EXPECT_EQ(after.lost, claimed);
    if (!claimed.empty()) ++lost;
    // All can be written again.
    ASSERT_EQ(table.begin_write(me, {0, size}), std::nullopt);
    table.end_write(me, {0, size});
    EXPECT_TRUE(table.changes(me, 0).lost.empty());
  }
  EXPECT_GT(lost, 10) << "the kills have met no writers";
}

TEST_F(SharedRangesTest, AStoppedHolderOfTheLockIsNotWaitedForForEver) {
  // In place of a process that is stopped in the middle: one that never gives the lock back.
  detail::SharedLock& lock = *reinterpret_cast<detail::SharedLock*>(mappings.front().data() + 24);
  ASSERT_EQ(lock.take(std::chrono::milliseconds(0)), detail::SharedLock::Taken::yes);
  auto taken = detail::SharedLock::Taken::yes;
  std::jthread([&] { taken = lock.take(std::chrono::milliseconds(20)); }).join();
  EXPECT_EQ(taken, detail::SharedLock::Taken::no);
  lock.release();
  auto const child = fork_while_others_sleep();
  ASSERT_GE(child, 0);
  if (child == 0) {
    static_cast<void>(lock.take(std::chrono::milliseconds(0)));
    std::_Exit(0);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(lock.take(std::chrono::milliseconds(0)), detail::SharedLock::Taken::after_death);
  lock.release();
  EXPECT_EQ(lock.take(std::chrono::milliseconds(0)), detail::SharedLock::Taken::yes) << "as before";
  lock.release();
}

}  // namespace
}  // namespace unimem::testing
