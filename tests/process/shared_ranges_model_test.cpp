#include <unimem/core/error.hpp>

#include "process/segment.hpp"
#include "process/shared_ranges.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

// A table beside a model of it, in which every byte is on its own.

namespace unimem::testing {
namespace {

using detail::Segment;
using detail::SharedRanges;
using Claim = SharedRanges::Claim;
using Holder = SharedRanges::Holder;
using Kind = SharedRanges::Claim::Kind;
using Outcome = SharedRanges::Outcome;

/// What is known of a byte.
struct Byte {
  std::uint64_t version = 0;
  Holder last = 0;
  bool lost = false;
};

using Intervals = std::vector<ByteRange>;

bool meet(Intervals const& some, ByteRange range) {
  return std::ranges::any_of(some, [&](ByteRange one) { return one.meets(range); });
}

/// Processes that do things at random.
class Processes {
 public:
  /// `exact`: there is room for all ranges, so that what is told is what is.
  Processes(SharedRanges& table, std::size_t size, unsigned seed, bool exact)
      : table_(table), bytes_(size), random_(seed), exact_(exact) {
    for (std::uint32_t pid = 1; pid <= 3; ++pid) begin(pid);
  }

  void step() {
    auto& process = processes_[random_() % processes_.size()];
    auto const before = table_.change_count();
    changed_ = false;
    auto const chance = random_() % 32;
    if (chance < 10) begin_write(process);
    if (chance >= 10 && chance < 19) end_write(process);
    if (chance == 19) end_one_that_is_not_there(process);
    if (chance >= 20 && chance < 23) begin_read(process);
    if (chance >= 23 && chance < 27) end_read(process);
    if (chance >= 27 && chance < 31) look(process);
    if (chance == 31 && random_() % 4 == 0) end(process);
    ASSERT_EQ(table_.change_count() != before, changed_) << "told of changes";
    ASSERT_EQ(table_.version(), version_);
  }

  [[nodiscard]] int refusals() const { return refusals_; }

 private:
  struct Process {
    Holder holder = 0;
    std::uint64_t seen = 0;
    std::set<std::size_t> stale;  ///< bytes that others wrote since it looked
    Intervals writing, reading;   ///< each as often as it was begun
    Intervals losing;             ///< writes that have ended so, where others of its own go on
  };

  void begin(std::uint32_t pid) {
    Process made;
    made.holder = table_.join({pid, pid}).value();
    changed_ = true;
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      if (bytes_[i].version != 0) made.stale.insert(i);
    }
    processes_.push_back(std::move(made));
  }
  void end(Process& process) {
    table_.leave(process.holder);
    auto lost = process.writing;
    lost.insert(lost.end(), process.losing.begin(), process.losing.end());
    if (!lost.empty()) ++version_;
    for (auto const range : lost) lose(range);
    for (auto& byte : bytes_) {
      if (byte.last == process.holder) byte.last = 0;
    }
    process = std::move(processes_.back());
    processes_.pop_back();
    begin(100 + static_cast<std::uint32_t>(version_));
  }
  ByteRange some_range(Intervals const& known) {
    if (!known.empty() && random_() % 8 == 0) return known[random_() % known.size()];
    auto const a = random_() % (bytes_.size() + 1), b = random_() % (bytes_.size() + 1);
    auto const longest = random_() % 4 == 0 ? bytes_.size() : std::size_t{8};
    auto const begin = std::min(a, b);
    return {begin, std::min({std::max(a, b), begin + longest})};
  }

  [[nodiscard]] bool others_write(Process const& self, ByteRange range) const {
    return std::ranges::any_of(processes_, [&](Process const& one) {
      return &one != &self && (meet(one.writing, range) || meet(one.losing, range));
    });
  }
  [[nodiscard]] bool others_read(Process const& self, ByteRange range) const {
    return std::ranges::any_of(processes_,
                               [&](Process const& one) { return &one != &self && meet(one.reading, range); });
  }
  void expect_true(Process const& self, ByteRange range, Claim const& told) {
    auto const other = std::ranges::find(processes_, told.holder, &Process::holder);
    ASSERT_NE(other, processes_.end());
    ASSERT_NE(told.holder, self.holder);
    ASSERT_TRUE(told.range.meets(range));
    auto const& claims = told.kind == Kind::read ? other->reading : other->writing;
    ASSERT_TRUE(std::ranges::find(claims, told.range) != claims.end() ||
                (told.kind == Kind::write && std::ranges::find(other->losing, told.range) != other->losing.end()));
    ++refusals_;
  }

  /// Ranges that are written to or lost.
  [[nodiscard]] std::size_t written_or_lost() const {
    std::size_t count = 0;
    for (auto const& one : processes_) {
      auto all = one.writing;
      all.insert(all.end(), one.losing.begin(), one.losing.end());
      std::set<std::pair<std::size_t, std::size_t>> different;
      for (auto const range : all) different.emplace(range.begin, range.end);
      count += different.size();
    }
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      if (bytes_[i].lost && (i == 0 || !bytes_[i - 1].lost)) ++count;
    }
    return count;
  }

  void begin_write(Process& process) {
    auto const range = some_range(process.writing);
    std::optional<Claim> refused;
    try {
      refused = table_.begin_write(process.holder, range);
    } catch (InvalidArgument const&) {
      ASSERT_GE(written_or_lost(), SharedRanges::most_writes);
      return;
    }
    bool const written = others_write(process, range), free = !written && !others_read(process, range);
    ASSERT_EQ(free, !refused) << range.begin << " " << range.end;
    if (refused) {
      ASSERT_EQ(refused->kind, written ? Kind::write : Kind::read);
      return expect_true(process, range, *refused);
    }
    changed_ = !range.empty();
    if (changed_) process.writing.push_back(range);
  }
  void end_write(Process& process) {
    if (process.writing.empty()) return;
    auto const range = process.writing[random_() % process.writing.size()];
    auto const chance = random_() % 8;
    auto const outcome = chance == 0 ? Outcome::lost : chance <= 2 ? Outcome::untouched : Outcome::written;
    table_.end_write(process.holder, range, outcome);
    ended(process, range, outcome);
  }
  void ended(Process& process, ByteRange range, Outcome outcome) {
    changed_ = true;
    process.writing.erase(std::ranges::find(process.writing, range));
    if (outcome == Outcome::lost && std::ranges::find(process.losing, range) == process.losing.end()) {
      process.losing.push_back(range);
    }
    Intervals lost;
    std::erase_if(process.losing, [&](ByteRange one) {
      if (meet(process.writing, one)) return false;
      lost.push_back(one);
      return true;
    });
    if (outcome == Outcome::written || !lost.empty()) ++version_;
    if (outcome == Outcome::written) write(process, range);
    for (auto const one : lost) lose(one);
  }
  void end_one_that_is_not_there(Process& process) {
    auto const range = some_range({});
    if (std::ranges::find(process.writing, range) == process.writing.end()) {
      table_.end_write(process.holder, range, Outcome::lost);
    }
    if (std::ranges::find(process.reading, range) == process.reading.end()) table_.end_read(process.holder, range);
  }
  void write(Process& process, ByteRange range) {
    for (auto i = range.begin; i < range.end; ++i) {
      bytes_[i] = {version_, process.holder, false};
      for (auto& other : processes_) {
        if (&other == &process) {
          other.stale.erase(i);
        } else {
          other.stale.insert(i);
        }
      }
    }
  }
  void lose(ByteRange range) {
    for (auto i = range.begin; i < range.end; ++i) {
      bytes_[i] = {version_, 0, true};
      for (auto& other : processes_) other.stale.insert(i);
    }
  }
  void begin_read(Process& process) {
    auto const range = some_range(process.reading);
    auto const refused = table_.begin_read(process.holder, range);
    ASSERT_EQ(refused.has_value(), others_write(process, range));
    if (refused) {
      ASSERT_EQ(refused->kind, Kind::write);
      return expect_true(process, range, *refused);
    }
    changed_ = !range.empty();
    if (changed_) process.reading.push_back(range);
  }
  void end_read(Process& process) {
    if (process.reading.empty()) return;
    auto const at = process.reading.begin() + static_cast<std::ptrdiff_t>(random_() % process.reading.size());
    table_.end_read(process.holder, *at);
    changed_ = true;
    process.reading.erase(at);
  }
  void look(Process& process) {
    auto const changes = table_.changes(process.holder, process.seen);
    process.seen = changes.version;
    ASSERT_EQ(changes.version, table_.version());
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      auto const told = changes.written.contains({i, i + 1});
      if (meet(process.writing, {i, i + 1}) || meet(process.losing, {i, i + 1})) {  // whoever is to know asks before it begins
        ASSERT_FALSE(told || changes.lost.contains({i, i + 1})) << i;
        continue;
      }
      ASSERT_TRUE(told || !process.stale.contains(i)) << i;
      if (exact_ && !bytes_[i].lost) {  // lost neighbours are told as one
        ASSERT_EQ(told, process.stale.contains(i)) << i;
      }
      ASSERT_EQ(changes.lost.contains({i, i + 1}), bytes_[i].lost) << i;
      auto const claimed =
          std::ranges::any_of(changes.claims, [&](Claim const& claim) { return claim.range.contains({i, i + 1}); });
      ASSERT_EQ(claimed, others_write(process, {i, i + 1})) << i;
    }
    for (auto const& claim : changes.claims) {
      ASSERT_EQ(claim.kind, Kind::write);
      expect_true(process, claim.range, claim);
    }
    process.stale.clear();
    table_.validate();
  }

  SharedRanges& table_;
  std::vector<Byte> bytes_;
  std::vector<Process> processes_;
  std::mt19937 random_;
  bool exact_;
  bool changed_ = false;
  std::uint64_t version_ = 0;
  int refusals_ = 0;
};

/// Each seed is a table of its own, and the processes that use it.
void expect_to_agree(std::size_t size, unsigned seeds, int steps, bool exact) {
  int refusals = 0;
  for (unsigned seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE(seed);
    auto const mapping = Segment::make("table", SharedRanges::bytes());
    auto table = SharedRanges::make({mapping.data(), mapping.size()}, size, "a table");
    Processes processes(table, size, seed, exact);
    for (int i = 0; i < steps && !::testing::Test::HasFatalFailure(); ++i) processes.step();
    refusals += processes.refusals();
  }
  EXPECT_GT(refusals, 100) << "they have not met";
}

TEST(SharedRangesModel, AgreesByteByByte) {
  expect_to_agree(64, 40, 2'000, true);
}

TEST(SharedRangesModel, WithMoreRangesThanFitNothingIsMissed) {
  expect_to_agree(2'000, 4, 2'000, false);
}

}  // namespace
}  // namespace unimem::testing
