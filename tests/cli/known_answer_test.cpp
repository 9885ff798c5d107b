#include "cli/cli_process.hpp"
#include "cli/sandbox.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <vector>

namespace unimem {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// The built-in kernels on a driver that compiles them, from the first process that uses one.
class KnownAnswersOfRuns : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_device("opencl:0")) GTEST_SKIP() << "no OpenCL device";
    folder_.write("data.bin", std::string(100'003, '\x77'));
  }

  [[nodiscard]] Outcome run(std::vector<std::pair<std::string, std::string>> environment = {}) const {
    environment.emplace_back("UNIMEM_CACHE_DIR", (folder_ / "cache").native());
    return run_cli(words_of("run data.bin --kernel histogram --json --device opencl:0"),
                   {.directory = folder_.path(), .environment = std::move(environment)});
  }

  [[nodiscard]] std::vector<std::filesystem::path> entries() const {
    std::vector<std::filesystem::path> found;
    if (!std::filesystem::exists(folder_ / "cache" / "answers-v1")) return found;
    for (auto const& entry : std::filesystem::directory_iterator(folder_ / "cache" / "answers-v1")) {
      found.push_back(entry.path());
    }
    return found;
  }

  Sandbox folder_;
};

ino_t inode_of(std::filesystem::path const& file) {
  struct ::stat status{};
  EXPECT_EQ(::stat(file.c_str(), &status), 0) << file;
  return status.st_ino;
}

TEST_F(KnownAnswersOfRuns, AreFoundAgainWhereDamaged) {
  auto const first = run();
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.err, IsEmpty());
  ASSERT_EQ(entries().size(), 1U);
  auto const entry = entries().front();
  auto const kept = inode_of(entry);  // an entry that is written again is another file
  auto const second = run();
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_EQ(inode_of(entry), kept);

  std::filesystem::resize_file(entry, std::filesystem::file_size(entry) - 1);
  auto const third = run();
  EXPECT_EQ(third.exit_code, 0) << third.err;
  EXPECT_THAT(third.err, HasSubstr("holds no answer of a kernel; it is run again"));
  EXPECT_NE(inode_of(entry), kept);
  EXPECT_EQ(entries().size(), 1U);
}

#ifdef UNIMEM_LYING_OPENCL
TEST_F(KnownAnswersOfRuns, ThatAreWrongNameTheDriver) {
  for (int process = 0; process < 2; ++process) {
    auto const outcome = run({{"UNIMEM_OPENCL_LIBRARY", UNIMEM_LYING_OPENCL}});
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_THAT(outcome.out, IsEmpty());
    EXPECT_THAT(outcome.err, ::testing::MatchesRegex("unimem: kernel 'unimem_histogram': is computed wrong on opencl:0 "
                                                     "\\(.*, driver .*\\): in a run of 3 items with a known answer, in "
                                                     "argument 2, .* elements are wrong.*; no data went through it\n"));
    EXPECT_EQ(outcome.err.find('\n'), outcome.err.size() - 1) << outcome.err;
    EXPECT_THAT(entries(), IsEmpty());
  }
  // The same driver compiles the right source right, which has an answer of its own.
  EXPECT_EQ(run().exit_code, 0);
}
#endif

}  // namespace
}  // namespace unimem
