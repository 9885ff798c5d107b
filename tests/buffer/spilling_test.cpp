#include <unimem/buffer/buffer_pool.hpp>
#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"
#include "forked_child.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

// Host memory that goes to files while nobody has an address of it.

namespace unimem::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t MiB = std::size_t{1} << 20;
constexpr std::size_t words = MiB / sizeof(std::uint32_t);

std::vector<std::uint32_t> filled(std::uint32_t value) {
  return std::vector(words, value);
}

/// A directory for as long as a test lasts.
class Directory {
 public:
  Directory() {
    auto name = ::testing::TempDir() + "unimem-spill-XXXXXX";
    path_ = ::mkdtemp(name.data());
  }
  Directory(Directory const&) = delete;
  Directory& operator=(Directory const&) = delete;
  ~Directory() { std::filesystem::remove_all(path_); }
  [[nodiscard]] std::string const& path() const { return path_; }
  [[nodiscard]] bool empty() const { return std::filesystem::is_empty(path_); }

 private:
  std::string path_;
};

/// One of the process's limits, lowered for as long as this lives.
class Lowered {
 public:
  Lowered(__rlimit_resource which, rlim_t to) : which_(which) {
    ::getrlimit(which_, &before_);
    rlimit const now{to, before_.rlim_max};
    ::setrlimit(which_, &now);
  }
  Lowered(Lowered const&) = delete;
  Lowered& operator=(Lowered const&) = delete;
  ~Lowered() { ::setrlimit(which_, &before_); }

 private:
  __rlimit_resource which_;
  rlimit before_{};
};

/// How many files this process could open before number `n` is one too many: descriptors are given out from below.
rlim_t next_descriptor() {
  auto const next = ::dup(STDERR_FILENO);
  ::close(next);
  return static_cast<rlim_t>(next);
}

/// Adds one to every word of an operand, as a kernel does.
void add_one(Queue& queue, Operand const& operand) {
  auto const program =
      queue.device().compile({"add one", "",
                              [count = operand.range.size() / sizeof(std::uint32_t)](
                                  Range, std::size_t, std::size_t, std::span<const HostArgument> arguments) {
                                for (auto& word : std::span{static_cast<std::uint32_t*>(arguments[0].data), count})
                                  ++word;
                              }});
  use_on_device(queue, {&operand, 1}, [&](std::span<const DeviceMemory> memory, std::span<const Event> needs) {
    KernelArgument argument;
    argument.memory = memory[0];
    argument.writes = true;
    return queue.run(program, Range{1}, {&argument, 1}, needs);
  }).wait();
}

class Spilling : public ::testing::Test {
 protected:
  using Buffer = UnifiedBuffer<std::uint32_t>;

  void room_for(std::size_t megabytes, Location location = Location::host) {
    manager.set_limit(device("cpu"), location, megabytes * MiB);
  }
  [[nodiscard]] BufferOptions named(std::string name) {
    BufferOptions options;
    options.manager = &manager;
    options.device = &sim;
    options.name = std::move(name);
    return options;
  }
  /// Buffers of a megabyte, each full of its number, of which nobody has an address.
  void fill(std::size_t count) {
    while (buffers.size() < count) {
      auto const value = static_cast<std::uint32_t>(buffers.size());
      buffers.emplace_back(words, named("buffer " + std::to_string(value))).copy_from(filled(value));
    }
  }
  void expect_intact() {
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      ASSERT_EQ(buffers[i].to_vector(), filled(static_cast<std::uint32_t>(i))) << i;
      buffers[i].core().validate();
    }
  }
  [[nodiscard]] std::size_t reserved(Location location = Location::host) {
    return manager.pool(device("cpu"), location).statistics().peak_reserved_bytes;
  }

  Directory directory;
  Device& sim = make_sim({.memory_bytes = 64 * MiB});
  MemoryManager manager{ManagerOptions{.spill = {.directory = directory.path()}}};
  std::deque<Buffer> buffers;
};

TEST_F(Spilling, MoreThanTheHostsLimitRunsAndEveryByteIsRight) {
  room_for(4);
  fill(10);
  auto counts = manager.statistics();
  EXPECT_EQ(counts.spills, 6U);
  EXPECT_EQ(counts.spilled_bytes, 6 * MiB);
  EXPECT_EQ(counts.host_reclaims, 6U);
  EXPECT_EQ(counts.host_reclaimed_bytes, 6 * MiB);
  EXPECT_EQ(counts.spill_files, 6U);
  EXPECT_EQ(counts.spill_file_bytes, 6 * MiB);
  EXPECT_EQ(counts.restores, 0U);
  EXPECT_TRUE(directory.empty()) << "files have no names";
  expect_intact();
  counts = manager.statistics();
  EXPECT_GE(counts.restores, 6U);
  EXPECT_EQ(counts.restored_bytes, counts.restores * MiB);
  EXPECT_EQ(counts.spilled_bytes, counts.spills * MiB);
  EXPECT_EQ(counts.spill_files, counts.spills - counts.restores);
  EXPECT_EQ(counts.failed_host_reclaims, 0U);
  EXPECT_EQ(counts.refusals, 0U);
  EXPECT_LE(reserved(), 4 * MiB);
  for (auto const& buffer : buffers) EXPECT_EQ(buffer.state(), BufferState::host_dirty);
  buffers.clear();
  EXPECT_EQ(manager.statistics().spill_files, 0U);
  EXPECT_EQ(manager.statistics().spill_file_bytes, 0U);
}

TEST_F(Spilling, WithoutADirectoryHostMemoryStaysWhereItIs) {
  MemoryManager plain;
  plain.set_limit(device("cpu"), Location::host, 2 * MiB);
  auto options = named("plain");
  options.manager = &plain;
  Buffer one(words, options), two(words, options), three(words, options);
  one.copy_from(filled(1U));
  two.copy_from(filled(2U));
  EXPECT_THROW(three.copy_from(filled(3U)), OutOfMemory);
  EXPECT_EQ(plain.statistics().host_reclaims, 0U);
}

TEST_F(Spilling, WhatSomebodyHasAnAddressOfStays) {
  room_for(3);
  fill(3);
  auto const exposed = buffers[0].host();
  auto const viewed = buffers[1].host_view();
  auto mapping = std::optional(buffers[2].map(MapMode::read));
  Buffer more(words, named("one more"));
  try {
    more.copy_from(filled(7U));
    FAIL() << "all memory is somebody's";
  } catch (OutOfMemory const& refused) {
    EXPECT_EQ(refused.facts().leased, 3 * MiB);
    EXPECT_EQ(refused.facts().limit, 3 * MiB);
  }
  EXPECT_EQ(manager.statistics().spills, 0U);
  mapping.reset();
  more.copy_from(filled(7U));
  EXPECT_EQ(manager.statistics().spills, 1U);
  exposed[5] = 99;
  EXPECT_EQ(buffers[0].at(5), 99U);
  EXPECT_EQ(viewed.data(), buffers[1].host_view().data());
  EXPECT_EQ(more.to_vector(), filled(7U));
}

TEST_F(Spilling, ACopyThatADeviceHasAsWellIsDroppedAndNotWritten) {
  room_for(2);
  fill(2);
  for (auto& buffer : buffers) buffer.sync_to_device();
  Buffer more(words, named("one more"));
  more.copy_from(filled(7U));
  EXPECT_EQ(manager.statistics().spills, 0U);
  EXPECT_EQ(manager.statistics().host_reclaims, 1U);
  EXPECT_EQ(buffers[0].state() == BufferState::device_only, buffers[1].state() == BufferState::synchronized);
  expect_intact();
  EXPECT_EQ(more.to_vector(), filled(7U));
}

TEST_F(Spilling, WhatADeviceSavesToAFullHostGoesOnToFiles) {
  constexpr std::uint32_t passes = 3;
  manager.set_limit(sim, 2 * MiB);
  room_for(3);
  fill(8);
  auto& queue = sim.default_queue();
  for (std::uint32_t pass = 0; pass < passes; ++pass) {
    for (auto& buffer : buffers) {
      Operand const operand{&buffer.core(), {0, MiB}, Intent::read_write};
      add_one(queue, operand);
    }
  }
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    ASSERT_EQ(buffers[i].to_vector(), filled(static_cast<std::uint32_t>(i) + passes)) << i;
  }
  EXPECT_GT(manager.statistics().reclaims, 0U);
  EXPECT_GT(manager.statistics().spills, 0U);
  EXPECT_LE(reserved(), 3 * MiB);
  EXPECT_LE(manager.pool(sim, Location::device).statistics().peak_reserved_bytes, 2 * MiB);
}

TEST_F(Spilling, TheCpuDevicesKernelsFindTheirBytes) {
  room_for(3);
  auto& cpu = device("cpu");
  fill(6);
  for (auto& buffer : buffers) {
    Operand const operand{&buffer.core(), {0, MiB}, Intent::read_write};
    add_one(cpu.default_queue(), operand);
  }
  for (std::uint32_t i = 0; i < buffers.size(); ++i) {
    auto const lease = buffers[i].core().lease(cpu, nullptr, {0, MiB}, Intent::read);
    EXPECT_EQ(static_cast<std::uint32_t const*>(lease.address())[words - 1], i + 1) << "by a lease";
  }
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    ASSERT_EQ(buffers[i].to_vector(), filled(static_cast<std::uint32_t>(i) + 1)) << i;
  }
  EXPECT_GT(manager.statistics().restores, 0U);
}

TEST_F(Spilling, PinnedMemoryGoesAndIsPinnedAgain) {
  room_for(2, Location::pinned);
  for (std::uint32_t i = 0; i < 4; ++i) {
    auto options = named("pinned");
    options.location = Location::pinned;
    buffers.emplace_back(words, options).copy_from(filled(i));
    if (!buffers.back().is_pinned()) GTEST_SKIP() << "the system locks no memory for this process";
  }
  EXPECT_EQ(manager.statistics().spills, 2U);
  expect_intact();
  for (auto const& buffer : buffers) EXPECT_TRUE(buffer.is_pinned());
  EXPECT_LE(reserved(Location::pinned), 2 * MiB);
  EXPECT_EQ(manager.statistics().refused_pinnings, 0U);
}

TEST_F(Spilling, SmallBuffersStay) {
  room_for(1);
  constexpr std::size_t small = std::size_t{32} << 10;
  std::deque<UnifiedBuffer<std::byte>> many;
  EXPECT_THROW(
      while (many.size() < 64) many.emplace_back(small, named("small")).copy_from(std::vector(small, std::byte{1})),
      OutOfMemory);
  EXPECT_EQ(manager.statistics().host_reclaims, 0U);
}

TEST_F(Spilling, LowPrioritiesGoFirst) {
  room_for(3);
  fill(3);
  buffers[0].set_priority(2);
  buffers[1].set_priority(1);
  buffers[2].set_priority(2);
  Buffer more(words, named("one more"));
  more.copy_from(filled(7U));
  auto const restores = [&] { return manager.statistics().restores; };
  std::uint32_t first = 0;
  buffers[0].copy_to(std::span(&first, 1), 0);
  buffers[2].copy_to(std::span(&first, 1), 0);
  EXPECT_EQ(restores(), 0U);
  buffers[1].copy_to(std::span(&first, 1), 0);
  EXPECT_EQ(first, 1U);
  EXPECT_EQ(restores(), 1U);
}

TEST_F(Spilling, WhatIsOverwrittenAsAWholeIsNotReadAgain) {
  room_for(1);
  fill(2);
  EXPECT_EQ(manager.statistics().spills, 1U);
  buffers[0].copy_from(filled(0U));
  EXPECT_EQ(manager.statistics().spills, 2U) << "the other went for it";
  EXPECT_EQ(manager.statistics().restores, 0U);
  expect_intact();
}

TEST_F(Spilling, OnlyMemoryIsOnTheBooks) {
  room_for(4);
  fill(10);
  EXPECT_EQ(manager.usage().total.live_bytes, 4 * MiB);
  EXPECT_EQ(manager.live().size(), 4U);
  EXPECT_EQ(manager.pool(device("cpu"), Location::host).statistics().active_bytes, 4 * MiB);
  EXPECT_TRUE(buffers[0].is_allocated());
  EXPECT_TRUE(buffers[0].valid_on_host());
  buffers[0].free();
  EXPECT_FALSE(buffers[0].is_allocated());
  EXPECT_EQ(manager.statistics().spill_files, 5U) << "the first one went first";
}

TEST_F(Spilling, ResizedReleasedClonedAndRecycledBuffersKeepTheirBytes) {
  room_for(4);
  fill(6);
  buffers[0].resize(2 * words);
  EXPECT_THAT(buffers[0].to_vector()[words - 1], 0U);
  buffers[0].resize(words);
  buffers[1].release_host();
  EXPECT_EQ(buffers[1].state(), BufferState::device_only);
  auto const clone = buffers[2].clone();
  EXPECT_EQ(clone.to_vector(), filled(2U));
  expect_intact();
  EXPECT_GT(manager.statistics().spills, 2U);
}

TEST_F(Spilling, ALentBufferThatWasSpilledIsAsGoodAsNewForTheNext) {
  room_for(1);
  fill(1);
  BufferPool pool(BufferPoolOptions{.manager = &manager});
  auto lent = pool.acquire<std::uint32_t>(words);
  lent.copy_from(filled(5U));
  expect_intact();  // so the other is spilled
  pool.release(lent);
  auto next = pool.acquire<std::uint32_t>(words);
  EXPECT_EQ(next.state(), BufferState::uninitialized);
  next.fill(8);
  EXPECT_EQ(next.to_vector(), filled(8U));
  expect_intact();
}

/// The n-th byte cannot be written, for many n.
TEST_F(Spilling, AWriteThatFailsLosesNothingAndTheRefusalSaysWhy) {
  std::signal(SIGXFSZ, SIG_IGN);  // then the call fails instead
  room_for(4);
  fill(4);
  Buffer more(words, named("one more"));
  std::uint64_t failures = 0;
  for (std::size_t most = 0; most < MiB; most += MiB / 16 + 1) {
    {
      Lowered const no_larger_files(RLIMIT_FSIZE, most);
      try {
        more.copy_from(filled(7U));
        ADD_FAILURE() << "no file can be as large as a buffer";
      } catch (OutOfMemory const& refused) {
        EXPECT_THAT(refused.what(), HasSubstr("could not be spilled"));
        EXPECT_THAT(refused.what(), HasSubstr(directory.path()));
      }
    }
    failures += 4;
    ASSERT_EQ(manager.statistics().failed_host_reclaims, failures) << "each was asked once";
    ASSERT_EQ(manager.statistics().spill_files, 0U);
    ASSERT_EQ(more.state(), BufferState::uninitialized);
    expect_intact();
  }
  EXPECT_EQ(manager.statistics().spills, 0U);
  more.copy_from(filled(7U));
  EXPECT_EQ(manager.statistics().spills, 1U);
  expect_intact();
  EXPECT_EQ(more.to_vector(), filled(7U));
  std::signal(SIGXFSZ, SIG_DFL);
}

/// The n-th file cannot be made, for many n.
TEST_F(Spilling, TooManyOpenFilesLoseNothingEither) {
  room_for(2);
  fill(2);
  for (std::size_t files = 0; files < 6; ++files) {
    SCOPED_TRACE(files);
    auto const before = buffers.size();
    {
      Lowered const no_more_files(RLIMIT_NOFILE, next_descriptor() + 1);
      fill(before + 1);  // one more is open
      Buffer more(words, named("one more"));
      EXPECT_THROW(more.copy_from(filled(7U)), OutOfMemory);
    }
    EXPECT_EQ(manager.statistics().spill_files, before - 1);
    EXPECT_EQ(manager.statistics().failed_host_reclaims, 2 * (files + 1));
  }
  expect_intact();
}

TEST_F(Spilling, AFileThatHasLostItsBytesIsAnErrorAndNotGarbage) {
  room_for(1);
  fill(2);
  std::size_t cut = 0;
  for (auto const& one : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code code;
    auto const target = std::filesystem::read_symlink(one.path(), code).string();
    if (code || !target.starts_with(directory.path())) continue;
    cut += ::truncate(one.path().c_str(), MiB / 2) == 0;
  }
  ASSERT_EQ(cut, 1U);
  for (int times = 0; times < 2; ++times) {
    try {
      static_cast<void>(buffers[0].to_vector());
      FAIL() << "half of it is gone";
    } catch (IoError const& error) {
      EXPECT_EQ(error.path, directory.path());
      EXPECT_EQ(error.code, EIO);
    }
  }
  EXPECT_EQ(buffers[1].to_vector(), filled(1U));
  buffers[0].copy_from(filled(0U));
  expect_intact();
}

TEST_F(Spilling, ADirectoryWhereNoFileCanBeMadeIsAnErrorAtOnce) {
  auto const made_in = [](std::string path) { MemoryManager{ManagerOptions{.spill = {.directory = std::move(path)}}}; };
  try {
    made_in(directory.path() + "/nowhere");
    FAIL() << "there is no such directory";
  } catch (IoError const& error) {
    EXPECT_EQ(error.path, directory.path() + "/nowhere");
    EXPECT_EQ(error.code, ENOENT);
  }
  auto const file = directory.path() + "/file";
  ::close(::open(file.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  try {
    made_in(file);
    FAIL() << "it is a file";
  } catch (IoError const& error) {
    EXPECT_EQ(error.code, ENOTDIR);
  }
  auto const refused = in_child([&] {
    std::filesystem::permissions(directory.path(), std::filesystem::perms::owner_read);
    constexpr uid_t nobody = 65534;
    if (getuid() == 0) EXPECT_HERE(::setuid(nobody) == 0);
    try {
      made_in(directory.path());
    } catch (IoError const& error) {
      EXPECT_HERE(error.code == EACCES);
      return 0;
    }
    return 1;
  });
  EXPECT_EQ(refused, 0);
  std::filesystem::permissions(directory.path(), std::filesystem::perms::owner_all);
}

TEST_F(Spilling, ARelativeDirectoryIsTheOneThatWasMeantThen) {
  auto const from = std::filesystem::current_path();
  std::filesystem::current_path(directory.path());
  std::filesystem::create_directory("here");
  MemoryManager other{ManagerOptions{.spill = {.directory = "here"}}};
  std::filesystem::current_path(from);
  other.set_limit(device("cpu"), Location::host, MiB);
  auto options = named("elsewhere");
  options.manager = &other;
  Buffer one(words, options), two(words, options);
  one.copy_from(filled(1U));
  two.copy_from(filled(2U));
  EXPECT_EQ(other.statistics().spills, 1U);
  EXPECT_EQ(one.to_vector(), filled(1U));
  EXPECT_EQ(two.to_vector(), filled(2U));
}

TEST_F(Spilling, AForkedChildAndItsParentReadAndSpillWithoutEachOther) {
  room_for(2);
  fill(6);
  int ready[2], go[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(go), 0);
  auto const child = fork_while_others_sleep();
  if (child == 0) {
    alarm(30);
    auto const works = [&] {
      char c = 0;
      for (std::uint32_t i = 0; i < 6; ++i) {
        EXPECT_HERE(buffers[i].to_vector() == filled(i));
        buffers[i].copy_from(filled(100 + i));
      }
      EXPECT_HERE(::write(ready[1], &c, 1) == 1);
      EXPECT_HERE(::read(go[0], &c, 1) == 1);
      for (std::uint32_t i = 0; i < 6; ++i) EXPECT_HERE(buffers[i].to_vector() == filled(100 + i));
      return 0;
    };
    _exit(works());
  }
  char c = 0;
  ASSERT_EQ(::read(ready[0], &c, 1), 1);
  expect_intact();
  for (auto& buffer : buffers) buffer.copy_from(filled(7U));
  ASSERT_EQ(::write(go[1], &c, 1), 1);
  EXPECT_EQ(ending_of(child), 0);
  for (auto& buffer : buffers) ASSERT_EQ(buffer.to_vector(), filled(7U));
  for (auto const end : {ready[0], ready[1], go[0], go[1]}) ::close(end);
}

TEST_F(Spilling, ThreadsThatTakeEachOthersHostMemoryEndWithEveryByteRight) {
  constexpr std::uint32_t threads = 4, each = 3, rounds = 30;
  room_for(threads + 2);
  fill(threads * each);
  std::atomic<int> wrong{0};
  std::vector<std::jthread> workers;
  for (std::uint32_t thread = 0; thread < threads; ++thread) {
    workers.emplace_back([&, thread] {
      for (std::uint32_t round = 0; round < rounds; ++round) {
        auto const which = thread * each + round % each;
        auto& buffer = buffers[which];
        std::uint32_t seen = 0;
        buffer.copy_to(std::span(&seen, 1), round);
        wrong += seen != which;
        if (buffer.to_vector() != filled(which)) ++wrong;
        buffer.copy_from(filled(which));
      }
    });
  }
  workers.clear();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(manager.statistics().spills, 0U);
  EXPECT_LE(reserved(), (threads + 2) * MiB);
  expect_intact();
}

TEST_F(Spilling, WhatIsDoneAtRandomIsRight) {
  auto const seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  constexpr std::size_t count = 8, steps = 600;
  Device& second = make_sim({.memory_bytes = 64 * MiB});
  manager.set_limit(sim, 2 * MiB);
  manager.set_limit(second, 2 * MiB);
  room_for(3);
  fill(count);
  std::vector<std::vector<std::uint32_t>> shadow;
  for (std::uint32_t i = 0; i < count; ++i) shadow.emplace_back(words, i);
  for (std::size_t step = 0; step < steps; ++step) {
    auto const which = random() % count, from = random() % words, size = random() % (words - from);
    auto const value = static_cast<std::uint32_t>(random());
    auto& buffer = buffers[which];
    auto& truth = shadow[which];
    auto& on = random() % 2 == 0 ? sim : second;
    switch (random() % 8) {
      case 0:
        buffer.copy_from(std::vector(size, value), from);
        std::fill_n(truth.begin() + static_cast<std::ptrdiff_t>(from), size, value);
        break;
      case 1:
        buffer.fill(value);
        truth.assign(words, value);
        break;
      case 2:
      case 3: {
        Operand const operand{&buffer.core(), {0, MiB}, Intent::read_write};
        add_one(on.default_queue(), operand);
        for (auto& word : truth) ++word;
        break;
      }
      case 4:
        buffer.sync_to_device(on);
        break;
      case 5:
        buffer.prefetch(on);
        break;
      case 6: {
        auto const other = random() % count;
        copy(buffers[other], buffer);
        truth = shadow[other];
        break;
      }
      default: {
        std::vector<std::uint32_t> seen(size);
        buffer.copy_to(std::span(seen), from);
        auto const begin = truth.begin() + static_cast<std::ptrdiff_t>(from);
        ASSERT_TRUE(std::equal(seen.begin(), seen.end(), begin)) << "step " << step;
      }
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_EQ(buffers[i].to_vector(), shadow[i]) << i;
    buffers[i].core().validate();
  }
  EXPECT_GT(manager.statistics().spills, 0U);
  EXPECT_GT(manager.statistics().restores, 0U);
  EXPECT_LE(reserved(), 3 * MiB);
}

}  // namespace
}  // namespace unimem::testing
