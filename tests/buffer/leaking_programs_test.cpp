#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/stack.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "forked_child.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

// What is told of buffers that are still there when their manager, or their program, ends.

namespace unimem::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(ManagersThatEnd, ReportLivingHostBuffersAndLeaveThemWhole) {
  std::string told;
  std::unique_ptr<UnifiedBuffer<int>> kept;
  {
    ManagerOptions options;
    options.leaks.report_at_end = true;
    options.leaks.report = [&](LeakReport const& report) { told = report.text(); };
    MemoryManager ends(options);
    kept = std::make_unique<UnifiedBuffer<int>>(
        1000, BufferOptions{.manager = &ends, .device = &device("cpu"), .name = "outlives"});
    kept->fill(7);
  }
  EXPECT_THAT(told, HasSubstr("'outlives'"));
  EXPECT_THAT(std::as_const(*kept).host_view(), Each(7));
  kept.reset();
}

// What is said at the end is decided when a process starts: these programs are this one, started anew as disabled
// tests.

TEST(LeakingPrograms, DISABLED_OneLeaks) {
  static auto& leaked = *new UnifiedBuffer<int>(1000, BufferOptions{.name = "forgotten"});
  leaked.fill(3);
  static UnifiedBuffer<int> kept(77, BufferOptions{.name = "static"});
  kept.fill(1);
}

TEST(LeakingPrograms, DISABLED_OneDoesNot) {
  UnifiedBuffer<int> buffer(1000, BufferOptions{.name = "returned"});
  buffer.fill(3);
}

std::string last_words(char const* program, bool asked) {
  auto const path = ::testing::TempDir() + "unimem-last-words-" + std::to_string(getpid());
  auto const code = in_child([&] {
    asked ? ::setenv("UNIMEM_LEAKS", "1", 1) : ::unsetenv("UNIMEM_LEAKS");
    if (asked && can_capture_stacks()) ::setenv("UNIMEM_LEAK_STACKS", "1", 1);
    ::setenv("ASAN_OPTIONS", "detect_leaks=0", 1);  // which would speak as well
    auto const errors = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::dup2(errors, STDERR_FILENO);
    auto const filter = std::string("--gtest_filter=LeakingPrograms.DISABLED_") + program;
    ::execl("/proc/self/exe", "leaking", filter.c_str(), "--gtest_also_run_disabled_tests", "--gtest_brief=1",
            "--gtest_output=", nullptr);
    return 127;
  });
  EXPECT_EQ(code, 0);
  std::ifstream file(path);
  std::string text(std::istreambuf_iterator<char>(file), {});
  std::filesystem::remove(path);
  return text;
}

TEST(LeaksOfPrograms, AreReportedAtExitOnlyIfAskedFor) {
  auto const told = last_words("OneLeaks", true);
  EXPECT_THAT(told, HasSubstr("in 1 piece has not been given back"));
  EXPECT_THAT(told, HasSubstr("'forgotten'"));
  EXPECT_THAT(told, Not(HasSubstr("'static'"))) << "statics are destroyed before";
  if (can_capture_stacks()) {
    EXPECT_THAT(told, HasSubstr("TestBody")) << "which leaked";
  }
  EXPECT_EQ(last_words("OneLeaks", false), "");
  EXPECT_EQ(last_words("OneDoesNot", true), "");
}

}  // namespace
}  // namespace unimem::testing
