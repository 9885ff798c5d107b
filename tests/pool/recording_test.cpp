#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/pool/replay.hpp>

#include "core/sizes.hpp"
#include "forked_child.hpp"
#include "limited_files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace unimem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What is recorded is decided when a process makes its first pool: every program here is this one, started anew as a
// disabled test of it.

constexpr unsigned thread_count = 4;
constexpr unsigned small_blocks = 500;
constexpr unsigned large_blocks = 10;
constexpr std::size_t large = 64 * KiB;

TEST(RecordedPrograms, DISABLED_ThreadsTakeAndGiveBackAllAtOnce) {
  auto& sim = make_sim();
  MemoryPool pool(sim, Location::device);
  std::array<Queue, 2> queues{sim.create_queue(), sim.create_queue()};
  for (auto& queue : queues) queue.mark().wait();
  std::vector<std::vector<Allocation>> passed_on(thread_count);
  std::barrier together{thread_count};
  std::vector<std::jthread> threads;
  for (unsigned thread = 0; thread < thread_count; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937 random{thread};
      std::array<Allocation, 8> held;
      for (unsigned i = 0; i < small_blocks; ++i) {
        auto& one = held[random() % held.size()];
        auto& queue = queues[random() % queues.size()];
        one.release(random() % 2 == 0 ? Event{} : queue.record());
        one = pool.acquire(1 + random() % (4 * KiB), {.queue = random() % 2 == 0 ? nullptr : &queue});
      }
      for (auto& one : held) one.release();
      together.arrive_and_wait();
      for (unsigned i = 0; i < large_blocks; ++i) {
        passed_on[(thread + 1) % thread_count].push_back(pool.acquire(large, {.name = Name("large, \"passed\" on")}));
        together.arrive_and_wait();  // one thread's vector at a time is another's: nobody runs ahead
      }
      passed_on[thread].clear();
    });
  }
}

TEST(RecordedPrograms, DISABLED_OneAsksForTooMuchAndForWhatIsThere) {
  auto& sim = make_sim();
  MemoryPool pool(sim, Location::device, {.max_bytes = 64 * KiB});
  EXPECT_THROW(static_cast<void>(pool.acquire(65 * KiB)), OutOfMemory);
  EXPECT_TRUE(pool.acquire_cached(4 * KiB).empty());
  pool.acquire(4 * KiB).release();
  auto const cached = pool.acquire_cached(4 * KiB);
  EXPECT_FALSE(cached.empty());
  EXPECT_TRUE(pool.acquire(0).empty());
}

TEST(RecordedPrograms, DISABLED_OneGivesNamesOfAllKinds) {
  MemoryPool pool(make_sim(), Location::device, {.max_bytes = 64 * KiB});
  for (auto const* const name : {"", "plain", "two\nlines", "of\r\nanother, \"older\" system\n"}) {
    auto const block = pool.acquire(4 * KiB, {.name = Name(name)});
    EXPECT_THROW(static_cast<void>(pool.acquire(65 * KiB, {.name = Name(name)})), OutOfMemory);
  }
}

TEST(RecordedPrograms, DISABLED_OneForks) {
  MemoryPool pool(device("cpu"), Location::host);
  auto const before = pool.acquire(1 * KiB);
  EXPECT_EQ(in_child(
                [] {
                  MemoryPool own(device("cpu"), Location::host);
                  auto const block = own.acquire(2 * KiB);
                  return 0;
                },
                std::exit),
            0);
  auto const after = pool.acquire(3 * KiB);
}

/// Outlives everything that is made after it, the exit handlers of the library among it.
struct LastUser {
  std::optional<MemoryPool> pool;
  Allocation block;
};

TEST(RecordedPrograms, DISABLED_OneKeepsABlockToTheVeryEnd) {
  static LastUser user;
  user.pool.emplace(device("cpu"), Location::host);
  user.block = user.pool->acquire(5 * KiB);
}

/// What RMM's replay takes a log for (`parse_csv` in its log_parser.hpp, over rapidcsv with its defaults); throws
/// std::exception where that refuses one.
class LogOfRmm {
 public:
  struct Event {
    std::string action;
    std::uintptr_t pointer;
    std::size_t size;
  };

  explicit LogOfRmm(std::string const& path) {
    std::ifstream file(path, std::ios::binary);
    for (char c; file.get(c);) read(c);
    if (!row_.empty() || !cell_.empty()) end_row();
  }

  [[nodiscard]] std::vector<std::string> const& header() const { return rows_.at(0); }

  [[nodiscard]] std::vector<Event> events() const {
    std::vector<Event> events;
    for (std::size_t row = 1; row < rows_.size(); ++row) {
      for (auto const* const column : {"Thread", "Stream"}) static_cast<void>(std::stoull(cell(row, column)));
      auto const& action = cell(row, "Action");
      if (action != "allocate" && action != "free" && action != "allocate failure") {
        throw std::invalid_argument("invalid action " + action);
      }
      events.push_back({action, std::stoull(cell(row, "Pointer"), nullptr, 16), std::stoull(cell(row, "Size"))});
    }
    return events;
  }

 private:
  void read(char c) {
    if (c == '"' && (cell_.empty() || cell_[0] == '"')) quoted_ = !quoted_;
    if (c == '\n') {
      end_row();
    } else if (c == ',' && !quoted_) {
      row_.push_back(std::exchange(cell_, {}));
    } else if (c != '\r') {
      cell_ += c;
    }
  }

  void end_row() {
    row_.push_back(std::exchange(cell_, {}));
    rows_.push_back(std::exchange(row_, {}));
    quoted_ = false;  // also in the middle of a quote
  }

  [[nodiscard]] std::string const& cell(std::size_t row, std::string const& column) const {
    auto const found = std::ranges::find(header(), column);
    if (found == header().end()) throw std::out_of_range("no column " + column);
    return rows_[row].at(static_cast<std::size_t>(found - header().begin()));
  }

  std::vector<std::vector<std::string>> rows_;
  std::vector<std::string> row_;
  std::string cell_;
  bool quoted_ = false;
};

/// The log of one of them, and what became of it.
class Recording : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove(path_); }
  void TearDown() override { std::filesystem::remove(path_); }

  int run(char const* program, std::string const& path) {
    return in_child([&] {
      ::setenv("UNIMEM_LOG", path.c_str(), 1);
      auto const filter = std::string("--gtest_filter=RecordedPrograms.DISABLED_") + program;
      // The report that the environment or a flag asks of this process is not to be overwritten.
      ::execl("/proc/self/exe", "recorded", filter.c_str(), "--gtest_also_run_disabled_tests", "--gtest_brief=1",
              "--gtest_output=", nullptr);
      return 127;
    });
  }

  std::vector<std::string> lines_of(char const* program) {
    EXPECT_EQ(run(program, path_), 0);
    std::ifstream file(path_);
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }

  std::string const path_ =
      (std::filesystem::temp_directory_path() / ("unimem-recording-" + std::to_string(::getpid()) + ".csv")).string();
};

TEST_F(Recording, ConcurrentThreadsAreReplayedAlike) {
  ASSERT_EQ(run("ThreadsTakeAndGiveBackAllAtOnce", path_), 0);
  auto const log = read_allocation_log(path_);
  EXPECT_EQ(log.threads, thread_count);
  EXPECT_EQ(log.streams, 2U);
  EXPECT_EQ(log.events.size(), std::size_t{2} * thread_count * (small_blocks + large_blocks));
  auto& sim = make_sim();
  MemoryPool pool(sim, Location::device);
  auto const result = replay(log, pool);
  EXPECT_TRUE(result.completed());
  EXPECT_EQ(result.operations, log.events.size());
  EXPECT_EQ(result.peak_live_bytes, thread_count * large_blocks * large) << "the small ones never reach that";
  EXPECT_GE(result.peak_reserved_bytes, result.peak_live_bytes);
  auto const statistics = pool.statistics();
  EXPECT_EQ(statistics.total_allocations, std::size_t{thread_count} * (small_blocks + large_blocks));
  EXPECT_EQ(statistics.active_allocations, 0U);
}

TEST_F(Recording, ColumnsBeginWithRmms) {
  auto const lines = lines_of("OneAsksForTooMuchAndForWhatIsThere");
  ASSERT_EQ(lines.size(), 6U);
  EXPECT_EQ(lines[0], "Thread,Time,Action,Pointer,Size,Stream,Device,Location,Name,Capacity,Event");
  EXPECT_THAT(lines[1], HasSubstr(",allocate failure,0x0,66560,0,sim:0,device,,0,"));
  EXPECT_THAT(lines[2], ::testing::ContainsRegex("^[0-9]+,[0-9]{2}:[0-9]{2}:[0-9]{2}[.][0-9]{6},allocate,"
                                                 "0x[0-9a-f]+,4096,0,sim:0,device,,4096,$"));
  EXPECT_THAT(lines[3], HasSubstr(",free,0x"));
  EXPECT_THAT(lines[4], HasSubstr(",allocate,0x")) << "from the cache";
  EXPECT_THAT(lines[5], HasSubstr(",free,0x"));
  for (auto const& line : lines) EXPECT_EQ(std::ranges::count(line, ','), 10) << line;
}

TEST_F(Recording, NamesAreQuotedAndEventsNamed) {
  auto const lines = lines_of("ThreadsTakeAndGiveBackAllAtOnce");
  auto const has = [&lines](std::string_view what) {
    return std::ranges::any_of(lines, [what](auto const& line) { return line.find(what) != std::string::npos; });
  };
  EXPECT_TRUE(has(",allocate,"));
  EXPECT_TRUE(has(",device,\"large, \"\"passed\"\" on\",65536,"));
  EXPECT_TRUE(std::ranges::any_of(lines, [](auto const& line) { return line.ends_with(":1"); }))
      << "a release after the first work of a queue";
}

TEST_F(Recording, AnyNameIsReadByRmm) {
  ASSERT_EQ(run("OneGivesNamesOfAllKinds", path_), 0);
  LogOfRmm const log{path_};
  EXPECT_THAT(log.header(), ElementsAre("Thread", "Time", "Action", "Pointer", "Size", "Stream", "Device", "Location",
                                        "Name", "Capacity", "Event"));
  auto const events = log.events();
  ASSERT_EQ(events.size(), 12U);
  for (std::size_t i = 0; i < events.size(); i += 3) {
    EXPECT_EQ(events[i].action, "allocate");
    EXPECT_NE(events[i].pointer, 0U);
    EXPECT_EQ(events[i].size, 4 * KiB);
    EXPECT_EQ(events[i + 1].action, "allocate failure");
    EXPECT_EQ(events[i + 1].size, 65 * KiB);
    EXPECT_EQ(events[i + 2].action, "free");
    EXPECT_EQ(events[i + 2].pointer, events[i].pointer);
    EXPECT_EQ(events[i + 2].size, 4 * KiB);
  }
  std::ifstream file(path_);
  std::string const text(std::istreambuf_iterator<char>(file), {});
  EXPECT_THAT(text, HasSubstr(",device,two lines,4096,"));
  EXPECT_THAT(text, HasSubstr(",device,\"of  another, \"\"older\"\" system \",4096,"));
  EXPECT_EQ(read_allocation_log(path_).events.size(), 8U) << "and our own replay";
}

TEST_F(Recording, AForkedChildLeavesTheLogAlone) {
  auto const lines = lines_of("OneForks");
  ASSERT_EQ(lines.size(), 5U);
  EXPECT_THAT(lines[1], HasSubstr(",allocate,"));
  EXPECT_THAT(lines[1], HasSubstr(",1024,0,cpu,host,"));
  EXPECT_THAT(lines[2], HasSubstr(",3072,0,cpu,host,"));
  EXPECT_THAT(lines[3], HasSubstr(",free,"));
  EXPECT_THAT(lines[4], HasSubstr(",free,"));
}

TEST_F(Recording, RecordsAfterTheExitHandlers) {
  auto const lines = lines_of("OneKeepsABlockToTheVeryEnd");
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_THAT(lines[2], HasSubstr(",free,"));
  EXPECT_THAT(lines[2], HasSubstr(",5120,0,cpu,host,"));
}

TEST_F(Recording, AFileThatCannotBeWrittenDisturbsNobody) {
  for (auto const* const path : {"/nowhere/log.csv", "/dev/full", "/"}) {
    EXPECT_EQ(run("ThreadsTakeAndGiveBackAllAtOnce", path), 0) << path;
  }
  EXPECT_EQ(in_child([&] {
              limit_files_to(4 * KiB);
              return run("ThreadsTakeAndGiveBackAllAtOnce", path_);
            }),
            0);
  EXPECT_EQ(std::filesystem::file_size(path_), 4 * KiB) << "and then no more";
}

}  // namespace
}  // namespace unimem
