#include <unimem/core/error.hpp>

#include "buffer/spilling_fixture.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <deque>
#include <filesystem>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// Files that cannot be made, written or read.

namespace unimem::testing {
namespace {

using ::testing::HasSubstr;

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

/// The n-th byte cannot be written, for many n.
TEST_F(Spilling, AFailedSpillLosesNothingAndSaysWhy) {
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

/// What the operands of a launch have on the device is to go for others of theirs, and has nowhere to go.
TEST_F(Spilling, ALaunchWhoseOperandsCannotBeSavedIsOutOfMemory) {
  std::signal(SIGXFSZ, SIG_IGN);
  constexpr std::size_t size = 600 * KiB, parts = 64 * KiB;
  room_for(2);
  manager.set_limit(sim, MiB);
  std::deque<UnifiedBuffer<std::byte>> halves;
  for (int i = 0; i < 8; ++i) halves.emplace_back(size, named("half " + std::to_string(i))).fill(std::byte{1});
  Lowered const no_larger_files(RLIMIT_FSIZE, 0);
  std::mt19937 random(1);
  auto& queue = sim.default_queue();
  std::size_t not_saved = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<Operand> operands;
    for (auto const intent : {Intent::read, Intent::read_write}) {
      auto const count = (1 + random() % 5) * parts, from = random() % (size - count);
      operands.push_back({&halves[random() % halves.size()].core(), {from, from + count}, intent});
    }
    try {
      use_on_device(queue, operands,
                    [&](std::span<const DeviceMemory>, std::span<const Event>) { return queue.record(); });
    } catch (OutOfMemory const& refused) {
      if (std::string_view(refused.what()).find("could not be saved: ") != std::string_view::npos) ++not_saved;
    }
  }
  EXPECT_GT(not_saved, 0U);
  for (auto& half : halves) {
    std::byte last{};
    half.copy_to(std::span(&last, 1), size - 1);
    EXPECT_EQ(last, std::byte{1});
  }
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
      try {
        more.copy_from(filled(7U));
        FAIL() << "there is neither memory nor a file for it";
      } catch (OutOfMemory const& refused) {
        EXPECT_EQ(refused.facts().requested, MiB);
        EXPECT_THAT(refused.what(), HasSubstr(std::strerror(EMFILE)));
      }
      EXPECT_EQ(more.state(), BufferState::uninitialized);
      // What is in files needs no further one to come back into the memory that it gets.
      EXPECT_EQ(buffers.back().to_vector(), filled(static_cast<std::uint32_t>(before)));
    }
    EXPECT_EQ(manager.statistics().spill_files, before - 1);
    EXPECT_EQ(manager.statistics().failed_host_reclaims, 2 * (files + 1));
  }
  expect_intact();
}

TEST_F(Spilling, ADirectoryWithAZeroByteIsNoDirectory) {
  using namespace std::string_literals;
  try {
    MemoryManager const other{ManagerOptions{.spill = {.directory = directory.path() + "\0more"s}}};
    ADD_FAILURE() << "it was taken for " << directory.path();
  } catch (InvalidArgument const& error) {
    EXPECT_EQ(error.argument, "spill.directory");
    EXPECT_EQ(error.value, "'" + directory.path() + "' and a zero byte");
  }
}

TEST_F(Spilling, ATruncatedSpillFileIsAnError) {
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

}  // namespace
}  // namespace unimem::testing
