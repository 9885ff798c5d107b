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
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

// What several processes know together of who has written what.

namespace unimem::testing {
namespace {

using detail::Segment;
using detail::SharedRanges;
using Claim = SharedRanges::Claim;
using Holder = SharedRanges::Holder;
using Outcome = SharedRanges::Outcome;

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

TEST_F(SharedRangesTest, TellWhoDoesNotTakePartWhatGoesOn) {
  ranges.reserve(3);
  auto& mine = ranges.front();
  auto& theirs = another();
  auto const& looks = another();
  auto const me = mine.join({100, 1}).value(), them = theirs.join({200, 2}).value();
  ASSERT_EQ(mine.begin_write(me, {8, 16}), std::nullopt);
  ASSERT_EQ(theirs.begin_read(them, {20, 30}), std::nullopt);
  ASSERT_EQ(theirs.begin_write(them, {40, 44}), std::nullopt);
  theirs.end_write(them, {40, 44}, Outcome::lost);
  auto const count = looks.change_count();
  auto const found = looks.situation(std::chrono::milliseconds(100));
  ASSERT_EQ(found.participants.size(), 2U);
  EXPECT_EQ(found.participants[0].holder, me);
  EXPECT_EQ(found.participants[0].process, (SharedRanges::Process{100, 1}));
  EXPECT_EQ(found.participants[1].holder, them);
  EXPECT_EQ(found.participants[1].process, (SharedRanges::Process{200, 2}));
  EXPECT_EQ(found.claims, (std::vector<Claim>{{me, {8, 16}, Claim::Kind::write}, {them, {20, 30}, Claim::Kind::read}}));
  EXPECT_EQ(found.lost, ByteRanges({40, 44}));
  EXPECT_EQ(looks.change_count(), count) << "nothing has changed by looking";
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

TEST_F(SharedRangesTest, AReadStandsInTheWayOfOthersWritesAlone) {
  auto& table = ranges.front();
  auto const me = table.join({100, 1}).value(), them = table.join({200, 2}).value();
  auto const version = table.version();
  ASSERT_EQ(table.begin_read(me, {8, 16}), std::nullopt);
  ASSERT_EQ(table.begin_read(me, {8, 16}), std::nullopt);
  EXPECT_EQ(table.begin_read(them, {0, 12}), std::nullopt) << "several may read";
  table.end_read(them, {0, 12});
  auto const refused = table.begin_write(them, {15, 20});
  EXPECT_EQ(refused, (Claim{me, {8, 16}, Claim::Kind::read}));
  EXPECT_EQ(table.begin_write(them, {16, 20}), std::nullopt) << "beside it";
  EXPECT_EQ(table.begin_write(me, {10, 12}), std::nullopt) << "its own";
  EXPECT_EQ(table.begin_read(them, {11, 20}), (Claim{me, {10, 12}, Claim::Kind::write}));
  EXPECT_EQ(table.begin_write(them, {11, 20}), (Claim{me, {10, 12}, Claim::Kind::write})) << "before the read";
  EXPECT_EQ(table.changes(me, 0).claims, (std::vector<Claim>{{them, {16, 20}}})) << "writes alone, of others";
  EXPECT_EQ(table.version(), version) << "nothing is written";
  table.validate();
  table.end_write(me, {10, 12}, Outcome::untouched);
  table.end_read(me, {8, 16});
  EXPECT_TRUE(table.begin_write(them, {15, 16})) << "begun twice";
  table.end_read(me, {8, 16});
  EXPECT_EQ(table.begin_write(them, {15, 16}), std::nullopt);
  table.end_read(me, {8, 16});  // there is none
  ASSERT_EQ(table.begin_read(me, {0, 4}), std::nullopt);
  table.leave(me);
  EXPECT_EQ(table.begin_write(them, {0, 4}), std::nullopt) << "it reads no more";
  table.validate();
}

TEST_F(SharedRangesTest, AWriteThatTouchedNothingChangesNothing) {
  auto& table = ranges.front();
  auto const me = table.join({100, 1}).value(), them = table.join({200, 2}).value();
  ASSERT_EQ(table.begin_write(me, {0, 32}), std::nullopt);
  table.end_write(me, {0, 32});
  ASSERT_EQ(table.begin_write(me, {40, 44}), std::nullopt);
  table.end_write(me, {40, 44}, Outcome::lost);
  auto const before = table.changes(them, 0);
  ASSERT_EQ(table.begin_write(them, {8, 42}), std::nullopt);
  table.end_write(them, {8, 42}, Outcome::untouched);
  EXPECT_EQ(table.version(), before.version);
  auto const after = table.changes(them, 0);
  EXPECT_EQ(after.written, before.written);
  EXPECT_EQ(after.lost, ByteRanges({40, 44}));
  EXPECT_EQ(after.lost, before.lost);
  EXPECT_EQ(table.changes(me, 0).written, ByteRanges({40, 44})) << "the rest is still what it wrote";
  EXPECT_EQ(table.begin_write(me, {8, 42}), std::nullopt) << "the claim is gone";
  table.validate();
}

TEST_F(SharedRangesTest, WhatAWriterGivesUpIsLostWhenItsOtherWritesThereHaveEnded) {
  auto& table = ranges.front();
  auto const me = table.join({100, 1}).value(), them = table.join({200, 2}).value();
  ASSERT_EQ(table.begin_write(me, {8, 16}), std::nullopt);
  ASSERT_EQ(table.begin_write(me, {12, 20}), std::nullopt);
  table.end_write(me, {8, 16}, Outcome::lost);
  EXPECT_EQ(table.changes(them, 0).lost, ByteRanges());
  EXPECT_EQ(table.begin_write(them, {8, 10}), (Claim{me, {8, 16}})) << "it is not over";
  auto const before = table.version();
  table.end_write(me, {12, 20});
  EXPECT_EQ(table.version(), before + 1);
  EXPECT_EQ(table.changes(them, 0).lost, ByteRanges({8, 16}));
  EXPECT_EQ(table.changes(them, before).written, ByteRanges({8, 20}));
  EXPECT_EQ(table.changes(me, before).written, ByteRanges({8, 16})) << "it has not got them, either";
  ASSERT_EQ(table.begin_write(them, {8, 16}), std::nullopt);
  table.end_write(them, {8, 16});
  EXPECT_EQ(table.changes(me, 0).lost, ByteRanges());
  // The same range twice, given up once.
  ASSERT_EQ(table.begin_write(me, {0, 4}), std::nullopt);
  ASSERT_EQ(table.begin_write(me, {0, 4}), std::nullopt);
  table.end_write(me, {0, 4}, Outcome::lost);
  EXPECT_EQ(table.changes(them, 0).lost, ByteRanges());
  table.end_write(me, {0, 4}, Outcome::untouched);
  EXPECT_EQ(table.changes(them, 0).lost, ByteRanges({0, 4}));
  table.validate();
}

TEST_F(SharedRangesTest, ClaimsOutsideTheContentsAreRefused) {
  auto& table = ranges.front();
  auto const me = table.join({100, 1}).value();
  EXPECT_THROW(static_cast<void>(table.begin_write(me, {0, size + 1})), InvalidArgument);
  EXPECT_THROW(static_cast<void>(table.begin_read(me, {size, size + 1})), InvalidArgument);
  EXPECT_EQ(table.begin_write(me, {size, size}), std::nullopt);
  EXPECT_TRUE(table.changes(me + 1, 0).claims.empty());
  table.validate();
}

TEST_F(SharedRangesTest, ReadsBeyondTheirNumberAreRefused) {
  auto& table = ranges.front();
  auto const me = table.join({100, 1}).value(), them = table.join({200, 2}).value();
  std::vector<ByteRange> all;
  for (std::size_t begin = 0; begin < 64; ++begin) {
    for (auto end = begin + 1; end <= 64; ++end) all.push_back({begin, end});
  }
  for (std::size_t i = 0; i < SharedRanges::most_reads; ++i) ASSERT_EQ(table.begin_read(me, all[i]), std::nullopt);
  auto const count = table.change_count();
  try {
    static_cast<void>(table.begin_read(them, all.front()));
    FAIL() << "one more";
  } catch (InvalidArgument const& error) {
    EXPECT_NE(std::string(error.what()).find("1024"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("1024 process 100's"), std::string::npos) << error.what();
  }
  EXPECT_EQ(table.change_count(), count);
  EXPECT_EQ(table.begin_read(me, all[7]), std::nullopt) << "the same one again";
  table.end_read(me, all[8]);
  EXPECT_EQ(table.begin_read(them, all.front()), std::nullopt);
  table.validate();
  table.leave(me);
  EXPECT_EQ(table.begin_write(them, {0, size}), std::nullopt);
}

class ManySharedRanges : public SharedRangesTest {
 protected:
  ManySharedRanges() : SharedRangesTest(4 * SharedRanges::most_writes + 8) {}
};

TEST_F(ManySharedRanges, AllThatIsBeingWrittenToMayBeLost) {
  auto& table = ranges.front();
  auto const me = table.join({100, 1}).value(), them = table.join({200, 2}).value();
  ByteRanges expected;
  for (std::size_t i = 0; i < SharedRanges::most_writes; ++i) {
    ASSERT_EQ(table.begin_write(me, {4 * i + 1, 4 * i + 3}), std::nullopt);
    expected.add({4 * i + 1, 4 * i + 3});
  }
  EXPECT_THROW(static_cast<void>(table.begin_write(me, {0, 1})), InvalidArgument);
  table.leave(me);
  EXPECT_EQ(table.changes(them, 0).lost, expected);
  EXPECT_EQ(table.changes(them, 0).written, expected);
  table.validate();
  EXPECT_THROW(static_cast<void>(table.begin_write(them, {0, 1})), InvalidArgument);
  EXPECT_THROW(static_cast<void>(table.begin_write(them, {6, 8})), InvalidArgument) << "the other half stays lost";
  // What is lost can be written.
  for (auto const outcome : {Outcome::lost, Outcome::untouched, Outcome::written}) {
    ASSERT_EQ(table.begin_write(them, {4, 8}), std::nullopt);
    table.end_write(them, {4, 8}, outcome);
    table.validate();
  }
  expected.remove({4, 8});
  EXPECT_EQ(table.changes(them, 0).lost, expected);
  ASSERT_EQ(table.begin_write(them, {0, size}), std::nullopt);
  table.end_write(them, {0, size});
  EXPECT_EQ(table.changes(them, 0).lost, ByteRanges());
}

TEST_F(ManySharedRanges, BeyondTheirNumberTheErrorSaysWhose) {
  auto& table = ranges.front();
  std::vector<SharedRanges::Holder> all;
  for (std::uint32_t pid = 100; pid < 107; ++pid) all.push_back(table.join({pid, 1}).value());
  std::size_t begin = 0;
  auto const write = [&](std::size_t who, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i, begin += 2) {
      ASSERT_EQ(table.begin_write(all[who], {begin, begin + 1}), std::nullopt);
    }
  };
  write(0, 40);
  table.leave(all[0]);
  write(1, 10);
  write(2, SharedRanges::most_writes - 40 - 10 - 20 - 3);
  write(3, 20);
  for (std::size_t who = 4; who < 7; ++who) write(who, 1);
  try {
    static_cast<void>(table.begin_write(all[1], {begin, begin + 1}));
    FAIL() << "one more";
  } catch (InvalidArgument const& error) {
    EXPECT_NE(
        std::string(error.what()).find("183 process 102's, 40 lost, 20 process 103's, 10 process 101's, 3 of others"),
        std::string::npos)
        << error.what();
  }
  table.validate();
}

TEST_F(ManySharedRanges, WhatIsWrittenInManyPlacesIsWrittenAsAWhole) {
  auto& table = ranges.front();
  auto const me = table.join({100, 1}).value(), them = table.join({200, 2}).value();
  for (std::size_t i = 0; i < SharedRanges::most_writes; ++i) {
    auto const who = i % 2 == 0 ? me : them;
    ASSERT_EQ(table.begin_write(who, {4 * i, 4 * i + 1}), std::nullopt);
    table.end_write(who, {4 * i, 4 * i + 1});
  }
  ASSERT_EQ(table.begin_write(me, {0, size}), std::nullopt);
  table.end_write(me, {0, size});
  EXPECT_EQ(table.changes(them, table.version() - 1).written, ByteRanges({0, size}));
}

TEST_F(ManySharedRanges, BeyondTheirNumberNeighboursAreOneThatAnyoneWrote) {
  auto& table = ranges.front();
  auto const me = table.join({100, 1}).value(), them = table.join({200, 2}).value();
  for (std::size_t begin = 0; begin < size; ++begin) {
    auto const who = begin % 2 == 0 ? me : them;
    ASSERT_EQ(table.begin_write(who, {begin, begin + 1}), std::nullopt);
    table.end_write(who, {begin, begin + 1});
  }
  for (auto const who : {me, them}) {
    auto const written = table.changes(who, 0).written;
    for (std::size_t i = 0; i < size; ++i)
      ASSERT_TRUE(written.contains({i, i + 1}) || (i % 2 == 0) == (who == me)) << i;
    EXPECT_LE(written.ranges().size(), SharedRanges::most_ranges);
  }
  table.validate();
}

TEST_F(SharedRangesTest, WhoWaitsIsWokenByEveryChange) {
  auto& table = ranges.front();
  auto const me = table.join({100, 1}).value();
  using Clock = std::chrono::steady_clock;
  for (int i = 0; i < 50; ++i) {
    auto const seen = table.change_count();
    std::jthread const changes([&] {
      if (i % 2 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (!table.begin_read(me, {0, 8})) table.end_read(me, {0, 8});
    });
    auto const deadline = Clock::now() + std::chrono::seconds(20);
    while (table.change_count() == seen && Clock::now() < deadline) {
      table.wait_for_change(seen, std::chrono::seconds(20));
    }
    ASSERT_NE(table.change_count(), seen);
    ASSERT_LT(Clock::now(), deadline) << "it has slept through it";
  }
  // A bound, and what has changed already.
  table.wait_for_change(table.change_count(), std::chrono::milliseconds(5));
  table.wait_for_change(table.change_count(), std::chrono::milliseconds(-5));
  table.wait_for_change(table.change_count() - 1, std::chrono::hours(1));
}

TEST_F(SharedRangesTest, AnotherProcessWakesWhoWaits) {
  auto& table = ranges.front();
  auto const me = table.join({100, 1}).value();
  auto const seen = table.change_count();
  auto const child = fork_while_others_sleep();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    static_cast<void>(table.begin_read(me, {0, 8}));
    std::_Exit(0);
  }
  auto const began = std::chrono::steady_clock::now();
  while (table.change_count() == seen) table.wait_for_change(seen, std::chrono::seconds(20));
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
  EXPECT_EQ(ending_of(child), 0);
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
}

TEST_F(SharedRangesTest, WhateverIsWrittenOverThemNothingElseIsDamaged) {
  auto const bytes = std::span{mappings.front().data(), mappings.front().size()};
  std::mt19937 random{2026};
  int damaged = 0, worked = 0;
  for (int round = 0; round < 40; ++round) {
    std::ranges::fill(bytes, std::byte{0});
    auto table = SharedRanges::make(bytes, size, "a table");
    auto const me = table.join({1, 1}).value(), other = table.join({2, 2}).value();
    for (int i = 0; i < 200; ++i) {
      // Behind the lock, on which processes rely; mostly where something is.
      auto const at = 64 + random() % (random() % 2 == 0 ? 512 : bytes.size() - 64);
      bytes[at] ^= static_cast<std::byte>(1U << random() % 8);
      auto const begin = random() % size;
      ByteRange const range{begin, begin + 1 + random() % (size - begin)};
      auto const work = [&](auto const& what) {
        try {
          what();
          ++worked;
        } catch (IoError const& error) {
          EXPECT_EQ(error.code, EBADMSG);
          ++damaged;
        } catch (std::logic_error const&) {  // in order, of things that cannot be; or too many
          ++damaged;
        }
      };
      work([&] { table.validate(); });
      work([&] {
        for (auto const& claim : table.changes(me, 0).claims) ASSERT_LE(claim.range.end, size);
      });
      work([&] {
        if (!table.begin_write(me, range)) table.end_write(me, range, static_cast<Outcome>(random() % 3));
      });
      work([&] {
        auto const claim = table.begin_read(other, range);
        if (claim) {
          ASSERT_LE(claim->range.end, size);
        }
      });
      if (i % 50 == 49) work([&] { table.leave(i % 100 == 49 ? other : static_cast<Holder>(random() % 1'200)); });
      if (i % 50 == 20) work([&] { static_cast<void>(table.join({3, 3})); });
      work([&] { static_cast<void>(table.participants()); });
    }
  }
  EXPECT_GT(damaged, 100);
  EXPECT_GT(worked, 100);
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
