#include "manager/usage_book.hpp"

#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>

#include "core/sizes.hpp"
#include "forked_child.hpp"

#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

namespace unimem::detail {
namespace {

using ::testing::IsEmpty;

/// Nanoseconds, set by tests.
std::atomic<std::int64_t> set_time{0};
std::int64_t test_clock() noexcept {
  return set_time.load();
}

Device& cpu() {
  return device("cpu");
}

Device& sim() {
  static auto& one = make_sim();
  return one;
}

using Key = std::tuple<std::string, Location, std::string>;

std::map<Key, UsageCounts> by_key(Usage const& usage) {
  std::map<Key, UsageCounts> lines;
  for (auto const& line : usage.lines) lines[{line.device, line.location, line.name}] = line.counts;
  return lines;
}

/// Every invariant that is promised.
void check(Usage const& usage) {
  UsageCounts sum;
  std::map<std::pair<std::string, Location>, UsageCounts> places;
  auto const add = [](UsageCounts& to, UsageCounts const& one) {
    to.allocations += one.allocations;
    to.releases += one.releases;
    to.live_bytes += one.live_bytes;
    to.allocated_bytes += one.allocated_bytes;
    to.copies_in += one.copies_in;
    to.bytes_in += one.bytes_in;
    to.copies_out += one.copies_out;
    to.bytes_out += one.bytes_out;
    to.host_reads += one.host_reads;
    to.device_writes += one.device_writes;
  };
  auto const agree = [](UsageCounts const& a, UsageCounts const& b) {
    EXPECT_EQ(a.allocations, b.allocations);
    EXPECT_EQ(a.releases, b.releases);
    EXPECT_EQ(a.live_bytes, b.live_bytes);
    EXPECT_EQ(a.allocated_bytes, b.allocated_bytes);
    EXPECT_EQ(a.copies_in, b.copies_in);
    EXPECT_EQ(a.bytes_in, b.bytes_in);
    EXPECT_EQ(a.copies_out, b.copies_out);
    EXPECT_EQ(a.bytes_out, b.bytes_out);
    EXPECT_EQ(a.host_reads, b.host_reads);
    EXPECT_EQ(a.device_writes, b.device_writes);
  };
  for (auto const& line : usage.lines) {
    EXPECT_GE(line.counts.allocations, line.counts.releases);
    EXPECT_GE(line.counts.peak_bytes, line.counts.live_bytes);
    EXPECT_GE(line.counts.allocated_bytes, line.counts.peak_bytes);
    add(sum, line.counts);
    add(places[{line.device, line.location}], line.counts);
  }
  ASSERT_EQ(usage.places.size(), places.size());
  for (auto const& place : usage.places) {
    agree(place.counts, places[{place.device, place.location}]);
    EXPECT_GE(place.counts.peak_bytes, place.counts.live_bytes);
    EXPECT_GE(place.counts.allocated_bytes, place.counts.peak_bytes);
  }
  agree(usage.total, sum);
  EXPECT_GE(usage.total.peak_bytes, usage.total.live_bytes);
  EXPECT_GE(usage.total.allocated_bytes, usage.total.peak_bytes);
}

TEST(UsageBook, IsEmptyAtFirst) {
  UsageBook book;
  auto const usage = book.usage();
  EXPECT_THAT(usage.lines, IsEmpty());
  EXPECT_THAT(usage.places, IsEmpty());
  EXPECT_EQ(usage.total.peak_bytes, 0U);
  EXPECT_THAT(book.live(), IsEmpty());
  EXPECT_EQ(book.use_of(Name("nobody")), RecordedUse{});
}

TEST(UsageBook, KeepsLinesByDeviceLocationAndName) {
  set_time = 0;
  UsageBook book({}, test_clock);
  std::array<UsageEntry, 4> entries;
  book.enter(entries[0], {&cpu(), Location::host, Name("a")}, 1000, 1);
  book.enter(entries[1], {&cpu(), Location::pinned, Name("a")}, 200, 2);
  book.enter(entries[2], {&sim(), Location::device, Name("a")}, 1000, 1);
  set_time = 5'000'000'000;
  book.enter(entries[3], {&cpu(), Location::host, Name("b")}, 30, 3);
  auto const usage = book.usage();
  check(usage);
  auto const lines = by_key(usage);
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines.at({"cpu", Location::host, "a"}).live_bytes, 1000U);
  EXPECT_EQ(lines.at({"cpu", Location::pinned, "a"}).live_bytes, 200U);
  EXPECT_EQ(lines.at({std::string(sim().id()), Location::device, "a"}).live_bytes, 1000U);
  EXPECT_EQ(usage.places.size(), 3U);
  EXPECT_EQ(usage.total.live_bytes, 2230U);

  auto live = book.live();
  ASSERT_EQ(live.size(), 4U);
  auto const oldest = std::ranges::find(live, 2U, &LiveAllocation::buffer);
  ASSERT_NE(oldest, live.end());
  EXPECT_EQ(oldest->bytes, 200U);
  EXPECT_EQ(oldest->location, Location::pinned);
  EXPECT_EQ(oldest->name.view(), "a");
  EXPECT_EQ(oldest->age_seconds, 5.0);
  EXPECT_EQ(std::ranges::find(live, 3U, &LiveAllocation::buffer)->age_seconds, 0.0);
}

TEST(UsageBook, PeaksOfOneThreadAreExact) {
  UsageBook book;
  UsageKey const a{&cpu(), Location::host, Name("a")}, b{&cpu(), Location::host, Name("b")};
  {
    UsageEntry one, two;
    book.enter(one, a, 100, 1);
    book.enter(two, a, 23, 2);
  }
  {
    UsageEntry three;
    book.enter(three, b, 120, 3);
  }
  UsageEntry four;
  book.enter(four, a, 1000 * KiB, 4);
  auto usage = book.usage();
  check(usage);
  auto const lines = by_key(usage);
  EXPECT_EQ(lines.at({"cpu", Location::host, "a"}).peak_bytes, 1000 * KiB);
  EXPECT_EQ(lines.at({"cpu", Location::host, "b"}).peak_bytes, 120U);
  EXPECT_EQ(usage.places.front().counts.peak_bytes, 1000 * KiB) << "the sum's peak, and not the sum of the peaks";
  EXPECT_EQ(usage.total.peak_bytes, 1000 * KiB);
  EXPECT_EQ(usage.total.allocated_bytes, 243 + 1000 * KiB);
}

TEST(UsageBook, UsesCountDuringAndAfterTheirEntry) {
  set_time = 0;
  UsageBook book({}, test_clock);
  UsageKey const on_host{&cpu(), Location::host, Name("x")}, on_device{&sim(), Location::device, Name("x")};
  auto host = std::make_unique<UsageEntry>(), far = std::make_unique<UsageEntry>();
  book.enter(*host, on_host, 4096, 7);
  book.enter(*far, on_device, 4096, 7);
  host->note_host(false, true);
  host->note_copies_out(1, 4096);
  far->note_copies_in(1, 4096);
  far->note_device(true, true);
  set_time = 2'000'000'000;
  RecordedUse const expected{.buffers = 1,
                             .host_reads = 0,
                             .host_writes = 1,
                             .device_reads = 1,
                             .device_writes = 1,
                             .uploads = 1,
                             .uploaded_bytes = 4096,
                             .downloads = 0,
                             .downloaded_bytes = 0,
                             .seconds_alive = 2};
  EXPECT_EQ(book.use_of(Name("x")), expected);
  auto const before = by_key(book.usage());
  host.reset();
  far.reset();
  set_time = 9'000'000'000;
  EXPECT_EQ(book.use_of(Name("x")), expected);
  auto const usage = book.usage();
  check(usage);
  auto const after = by_key(usage).at({"cpu", Location::host, "x"});
  EXPECT_EQ(before.at({"cpu", Location::host, "x"}).host_writes, 1U);
  EXPECT_EQ(after.host_writes, 1U);
  EXPECT_EQ(after.bytes_out, 4096U);
  EXPECT_EQ(after.live(), 0U);
  EXPECT_EQ(after.seconds_alive, 2.0);
  EXPECT_EQ(after.longest_seconds, 2.0);
  EXPECT_EQ(book.use_by_size().small, expected);
  EXPECT_EQ(book.use_by_size().medium, RecordedUse{});
}

TEST(UsageBook, EntriesLeaveFromOtherThreadsThanTheyCame) {
  UsageBook book;
  std::list<UsageEntry> entries;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    book.enter(entries.emplace_back(), {&cpu(), Location::host, Name("moved")}, 100, i);
  }
  std::jthread([&] { entries.clear(); }).join();
  auto const usage = book.usage();
  check(usage);
  EXPECT_EQ(usage.total.allocations, 1000U);
  EXPECT_EQ(usage.total.live_bytes, 0U);
  EXPECT_EQ(usage.total.peak_bytes, 100'000U);
}

TEST(UsageBook, EntriesMayOutliveTheBook) {
  auto book = std::make_unique<UsageBook>();
  std::list<UsageEntry> entries;
  for (std::uint64_t i = 0; i < 10; ++i) {
    book->enter(entries.emplace_back(), {&cpu(), Location::host, Name(i % 2 == 0 ? "even" : "odd")}, 100, i);
  }
  UsageBook::retire(std::move(book));
  std::jthread first([&] {
    for (int i = 0; i < 5; ++i) entries.pop_front();
  });
  first.join();
  entries.clear();  // the last one takes the book with it: LeakSanitizer would complain
  auto idle = std::make_unique<UsageBook>();
  UsageBook::retire(std::move(idle));
  UsageBook::retire(nullptr);
}

TEST(UsageBook, EntriesMayLeaveWhileItIsRetired) {
  for (int round = 0; round < 2'000; ++round) {
    auto book = std::make_unique<UsageBook>();
    std::optional<UsageEntry> entry(std::in_place);
    book->enter(*entry, {&cpu(), Location::host, Name("last")}, 100, 1);
    std::atomic<bool> begun{false};
    std::jthread const leaver([&] {
      begun = true;
      entry.reset();
    });
    while (!begun) std::this_thread::yield();
    UsageBook::retire(std::move(book));  // one of the two destroys it: sanitizers see if both do, or one goes on
  }
}

TEST(UsageBook, EntriesEndInAForkedChildWithoutItsLocks) {
  UsageBook book;
  UsageKey const key{&cpu(), Location::host, Name("parent's")};
  std::atomic<bool> begun{false}, done{false};
  std::jthread const busy([&] {
    while (!done) {
      UsageEntry entry;
      book.enter(entry, key, 1, 1);
      begun = true;
    }
  });
  // The first entry allocates, which a sanitizer's runtime does not survive.
  while (!begun) std::this_thread::yield();
  auto inherited = std::make_unique<UsageEntry>();
  book.enter(*inherited, key, 1, 2);
  for (int round = 0; round < 20; ++round) {
    auto const child = fork();
    if (child == 0) {
      alarm(30);
      inherited->note_host(true, true);
      inherited.reset();
      _exit(0);
    }
    EXPECT_EQ(ending_of(child), 0);
  }
  done = true;
  EXPECT_EQ(book.usage().total.host_reads, 0U) << "what the children did is theirs";
}

TEST(UsageBook, StacksAreSampledAsAskedFor) {
  if (!can_capture_stacks()) GTEST_SKIP() << "this build captures no stacks";
  UsageBook book({.every = 3});
  std::list<UsageEntry> entries;
  for (std::uint64_t i = 0; i < 9; ++i) {
    book.enter(entries.emplace_back(), {&cpu(), Location::host, Name("sampled")}, 1, i);
  }
  auto const live = book.live();
  EXPECT_EQ(std::ranges::count_if(live, [](auto const& one) { return !one.stack.empty(); }), 3);
}

/// Several threads enter, use and leave at random, some for each other, while another looks: at every moment all that
/// is promised holds, and when they are done everything is as a plain map has it.
TEST(UsageBookModel, AgreesWithAPlainMapWhateverThreadsDo) {
  constexpr int threads = 4, steps = 20'000;
  auto const seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  set_time = 0;
  UsageBook book({}, test_clock);
  struct Held {
    std::unique_ptr<UsageEntry> entry = std::make_unique<UsageEntry>();
    Key key;
    std::size_t bytes = 0;
  };
  struct Counts {
    std::uint64_t allocations = 0, releases = 0, allocated = 0, live = 0, reads = 0, moved = 0;
  };
  std::mutex exchange;
  std::vector<Held> given;  // from one thread to whoever comes next
  std::vector<std::map<Key, Counts>> truths(threads);
  std::vector<std::vector<Held>> kept(threads);
  std::atomic<bool> done{false};
  std::array<char const*, 3> const names{"one", "two", ""};
  auto const work = [&](int me) {
    std::mt19937 random{seed + static_cast<unsigned>(me)};
    auto& mine = kept[static_cast<std::size_t>(me)];
    auto& truth = truths[static_cast<std::size_t>(me)];
    auto const drop = [&](Held held) {
      auto& counts = truth[held.key];
      ++counts.releases;
      counts.live -= held.bytes;  // modulo: another thread may have counted it in
    };
    for (int step = 0; step < steps; ++step) {
      auto const dice = random() % 10;
      if (dice < 4 || mine.empty()) {
        Held held;
        auto const name = names.at(random() % names.size());
        bool const far = random() % 2 == 0;
        auto& where = far ? sim() : cpu();
        auto const location = far ? Location::device : Location::host;
        held.bytes = 1 + random() % (random() % 8 == 0 ? 300 * KiB : 500);
        held.key = {std::string(where.id()), location, name};
        book.enter(*held.entry, {&where, location, Name(name)}, held.bytes, static_cast<std::uint64_t>(step));
        auto& counts = truth[held.key];
        ++counts.allocations;
        counts.allocated += held.bytes;
        counts.live += held.bytes;
        mine.push_back(std::move(held));
      } else if (dice < 6) {
        auto& held = mine[random() % mine.size()];
        held.entry->note_host(true, false);
        held.entry->note_copies_in(1, 17);
        ++truth[held.key].reads;
        truth[held.key].moved += 17;
      } else if (dice < 9) {
        std::swap(mine[random() % mine.size()], mine.back());
        drop(std::move(mine.back()));
        mine.pop_back();
      } else {
        std::optional<Held> taken;
        {
          std::lock_guard const lock{exchange};
          given.push_back(std::move(mine.back()));
          mine.pop_back();
          if (given.size() > 1) {
            taken = std::move(given.front());
            given.erase(given.begin());
          }
        }
        if (taken) drop(std::move(*taken));
      }
    }
  };
  {
    std::jthread const observer([&] {
      while (!done) {
        check(book.usage());
        for (auto const& one : book.live()) ASSERT_GT(one.bytes, 0U);
        static_cast<void>(book.use_of(Name("one")));
      }
    });
    std::vector<std::jthread> workers;
    for (int i = 0; i < threads; ++i) workers.emplace_back(work, i);
    workers.clear();
    done = true;
  }
  std::map<Key, Counts> truth;
  for (auto const& part : truths) {
    for (auto const& [key, counts] : part) {
      auto& sum = truth[key];
      sum.allocations += counts.allocations;
      sum.releases += counts.releases;
      sum.allocated += counts.allocated;
      sum.live += counts.live;
      sum.reads += counts.reads;
      sum.moved += counts.moved;
    }
  }
  auto const usage = book.usage();
  check(usage);
  auto const lines = by_key(usage);
  ASSERT_EQ(lines.size(), truth.size());
  std::size_t live = 0;
  for (auto const& [key, expected] : truth) {
    auto const& counts = lines.at(key);
    EXPECT_EQ(counts.allocations, expected.allocations);
    EXPECT_EQ(counts.releases, expected.releases);
    EXPECT_EQ(counts.allocated_bytes, expected.allocated);
    EXPECT_EQ(counts.live_bytes, expected.live);
    EXPECT_EQ(counts.host_reads, expected.reads);
    EXPECT_EQ(counts.bytes_in, expected.moved);
    live += expected.live;
  }
  std::size_t listed = 0;
  for (auto const& one : book.live()) listed += one.bytes;
  EXPECT_EQ(listed, live);
  given.clear();
  kept.clear();
  EXPECT_EQ(book.usage().total.live_bytes, 0U);
  EXPECT_THAT(book.live(), IsEmpty());
}

TEST(UsageBookModel, PeaksOfSeveralThreadsAreWithinTheirSlack) {
  constexpr std::size_t threads = 4, each = 1000, bytes = 1000;
  UsageBook book;
  std::barrier together{static_cast<std::ptrdiff_t>(threads)};
  std::vector<std::jthread> workers;
  for (std::size_t i = 0; i < threads; ++i) {
    workers.emplace_back([&] {
      std::list<UsageEntry> entries;
      for (std::size_t k = 0; k < each; ++k) {
        book.enter(entries.emplace_back(), {&cpu(), Location::host, Name("together")}, bytes, k);
      }
      together.arrive_and_wait();
    });
  }
  workers.clear();
  auto const usage = book.usage();
  check(usage);
  auto const truth = threads * each * bytes;
  EXPECT_LE(usage.total.peak_bytes, truth + threads * 64 * KiB);
  EXPECT_GE(usage.total.peak_bytes + threads * 64 * KiB, truth);
}

}  // namespace
}  // namespace unimem::detail
