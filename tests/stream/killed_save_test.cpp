#include "forked_child.hpp"
#include "stream/save_fixture.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <random>
#include <thread>

// Processes that are killed while they write files of buffers: what is there then. They are this program again, which
// then does what a test that is disabled says, until it is killed.

namespace unimem::testing {
namespace {

constexpr auto file_variable = "UNIMEM_TEST_KILLED_FILE";

/// How many rounds a process has finished, in memory that it shares with others by a file.
class Rounds {
 public:
  explicit Rounds(std::filesystem::path const& path) {
    auto const file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    auto* const memory = file < 0 || ::ftruncate(file, sizeof(std::atomic<Word>)) != 0
                             ? MAP_FAILED
                             : ::mmap(nullptr, sizeof(std::atomic<Word>), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ::close(file);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    finished_ = static_cast<std::atomic<Word>*>(memory);
  }
  Rounds(Rounds const&) = delete;
  Rounds& operator=(Rounds const&) = delete;
  ~Rounds() { ::munmap(finished_, sizeof(std::atomic<Word>)); }
  [[nodiscard]] Word finished() const noexcept { return finished_->load(); }
  void finish(Word round) noexcept { finished_->store(round); }

 private:
  std::atomic<Word>* finished_;
};

std::filesystem::path rounds_of(std::filesystem::path const& path) {
  return path.parent_path().string() + ".rounds";
}

/// Runs the disabled test `doing` with that file in a process of its own, and kills that in the middle of a round, but
/// for the first. Returns how many it had finished.
Word killed_while(char const* doing, std::filesystem::path const& path, std::chrono::microseconds after) {
  std::filesystem::remove(rounds_of(path));
  Rounds const rounds(rounds_of(path));
  auto const filter = std::string("--gtest_filter=") + doing;
  auto const child = ::fork();
  if (child == 0) {
    static_cast<void>(::dup2(::open("/dev/null", O_WRONLY | O_CLOEXEC), STDOUT_FILENO));
    ::setenv(file_variable, path.c_str(), 1);
    ::execl("/proc/self/exe", "killed", filter.c_str(), "--gtest_also_run_disabled_tests", nullptr);
    ::_exit(127);
  }
  auto const deadline = std::chrono::steady_clock::now() + std::chrono::seconds{30};
  while (rounds.finished() == 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::microseconds{100});
  }
  std::this_thread::sleep_for(after);
  ::kill(child, SIGKILL);
  EXPECT_EQ(ending_of(child), -SIGKILL);
  auto const finished = rounds.finished();
  std::filesystem::remove(rounds_of(path));
  EXPECT_GT(finished, 0U);
  return finished;
}

/// A hundred at most: each takes up to a second.
int kills() {
  auto const* const told = std::getenv("UNIMEM_TEST_KILLS");
  return told == nullptr ? 10 : std::min(std::atoi(told), 100);
}

constexpr std::size_t saved_count = 4 * MiB / sizeof(Word);
constexpr std::array names{"a", "b", "c"};

class KilledWriter : public Saving {
 protected:
  void SetUp() override {
    auto const* const told = std::getenv(file_variable);
    if (told == nullptr) GTEST_SKIP() << "another test runs it";
    path = told;
    ::alarm(60);
  }
  std::filesystem::path path;
};

TEST_F(KilledWriter, DISABLED_SavesForEver) {
  Rounds rounds(rounds_of(path));
  std::vector<Buffer> buffers;
  for (auto const* const name : names) buffers.push_back(fresh(name, saved_count, manager));
  for (Word round = 1; !HasFailure(); ++round) {
    for (auto& buffer : buffers) buffer.fill(round);
    only_on_device(buffers[1]);
    save(manager, path);
    rounds.finish(round);
  }
}

using Pair = std::uint64_t;

/// A word whose halves are both the round's.
constexpr Pair twice(Pair round) {
  return round << 32U | round;
}

TEST_F(KilledWriter, DISABLED_FlushesForEver) {
  Rounds rounds(rounds_of(path));
  FileOptions options;
  options.manager = &manager;
  options.mode = FileMode::read_write;
  auto buffer = from_file<Pair>(path, options);
  for (Word round = 1; !HasFailure(); ++round) {
    buffer.fill(twice(round));
    buffer.flush();
    rounds.finish(round);
  }
}

TEST_F(Saving, AKilledSaveLeavesTheOldFileOrTheNewOne) {
  std::mt19937 random{2026};
  for (int i = 0; i < kills(); ++i) {
    ScratchFolder const own;
    auto const round = killed_while("KilledWriter.DISABLED_SavesForEver", own / "state.safetensors",
                                    std::chrono::microseconds(random() % 60'000));
    EXPECT_TRUE(own.names().contains("state.safetensors"));
    for (auto const& name : own.names()) {  // a kill in the moment of replacing leaves the new one beside, whole
      MemoryManager other;
      std::vector<Buffer> buffers;
      for (auto const* const one : names) buffers.push_back(fresh(one, saved_count, other));
      restore(other, own / name);
      auto const found = buffers[0].to_vector().front();
      EXPECT_TRUE(found == round || found == round + 1) << name << ": " << found << " after " << round;
      for (auto& buffer : buffers) EXPECT_EQ(buffer.to_vector(), std::vector<Word>(saved_count, found));
    }
  }
}

TEST_F(Saving, AKilledFlushLeavesOldAndNewWordsAlone) {
  constexpr std::size_t pairs = 8 * MiB / sizeof(Pair);
  std::mt19937 random{2026};
  for (int i = 0; i < kills(); ++i) {
    auto const path = folder.write("flushed", std::vector<Pair>(pairs, 0));
    Pair const round =
        killed_while("KilledWriter.DISABLED_FlushesForEver", path, std::chrono::microseconds(random() % 30'000));
    auto const found = folder.read_elements<Pair>("flushed");
    ASSERT_EQ(found.size(), pairs);
    for (auto const word : found) {
      ASSERT_TRUE(word == twice(round) || word == twice(round + 1)) << word << " after " << round;
    }
  }
}

}  // namespace
}  // namespace unimem::testing
