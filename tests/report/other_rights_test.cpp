#include <unimem/core/detail/environment.hpp>
#include <unimem/core/log.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "core/nvtx.hpp"
#include "core/sizes.hpp"
#include "device/cuda/nvrtc.hpp"
#include "device/temporary_folder.hpp"
#include "forked_child.hpp"

#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

// A program that is setuid has rights which its caller does not have, and the environment is the caller's. The program
// is this one, copied, given to root and started anew by an ordinary user as a disabled test of it.

namespace unimem {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr int not_setuid = 77;
constexpr uid_t ordinary_user = 65534;

/// Every variable that names a file, a folder or a library, and what else the library reads.
std::vector<std::pair<std::string, std::string>> environment_of(std::string const& folder) {
  std::string const library = INTRUDER_LIBRARY;
  return {{"UNIMEM_OPENCL_LIBRARY", library},
          {"UNIMEM_CUDA_LIBRARY", library},
          {"UNIMEM_NVRTC_LIBRARY", library},
          {"NVTX_INJECTION64_PATH", library},
          {"OCL_ICD_VENDORS", library},
          {"OPENCL_LAYERS", library},
          {"CUDA_HOME", folder},
          {"CUDA_PATH", folder},
          {"UNIMEM_LOG", folder + "/log.csv"},
          {"UNIMEM_REPORT", folder + "/report.json"},
          {"UNIMEM_SPILL", folder},
          {"UNIMEM_CACHE_DIR", folder + "/cache"},
          {"XDG_CACHE_HOME", folder + "/xdg"},
          {"HOME", folder + "/home"},
          {"POCL_CACHE_DIR", folder + "/pocl"},
          {"UNIMEM_DEVICE", "sim:memory=1MiB"},
          {"UNIMEM_LIMITS", "cpu=64MiB"},
          {"UNIMEM_STRICT", "1"},
          {"UNIMEM_CHECK", "2"},
          {"UNIMEM_LEAKS", "1"},
          {"UNIMEM_LEAK_STACKS", "1"},
          {"UNIMEM_LOG_LEVEL", "debug"},
          {"UNIMEM_OPENCL_PROBE", "0"},
          {"UNIMEM_OPENCL_PROBE_TIMEOUT_MS", "1"},
          {"TERM", "dumb"}};
}

TEST(ProgramsWithOtherRights, DISABLED_OneUsesEverything) {
  if (getauxval(AT_SECURE) == 0) std::exit(not_setuid);
  is_child_of_a_test = true;  // LeakSanitizer cannot look into a program that is setuid
  ASSERT_EQ(geteuid(), 0U);
  ASSERT_EQ(getuid(), ordinary_user);
  for (auto const& [name, value] : environment_of("/")) {
    ASSERT_NE(std::getenv(name.c_str()), nullptr) << "it is there to be read";
    EXPECT_EQ(environment(name), std::nullopt) << name;
  }
  EXPECT_FALSE(environment_flag("UNIMEM_STRICT", false));
  EXPECT_EQ(environment_size("UNIMEM_LEAK_STACKS"), std::nullopt);
  EXPECT_EQ(default_device().id(), "cpu");
  auto& cpu = device("cpu");
  EXPECT_EQ(default_manager().total_memory(cpu), cpu.info().total_bytes);
  static auto const kept = default_manager().acquire(cpu, Location::host, 2 * MiB);
  for (auto const& [backend, reason] : unavailable_backends()) {
    if (backend == Backend::metal) continue;
    EXPECT_THAT(reason, HasSubstr("setuid")) << to_string(backend);
  }
  static_cast<void>(detail::cuda::toolkit_folders());
  detail::NvtxRange const range{[] { return std::string("unheard"); }};
  EXPECT_TRUE(default_manager().links().to(make_sim())) << "measured, and kept nowhere";
  log(LogLevel::debug, "UNIMEM_LOG_LEVEL is heard");
}

/// Where a program may be setuid; empty if nowhere.
std::string why_not(fs::path const& folder) {
  if (geteuid() != 0) return "only root makes programs that are root's";
  struct ::statvfs system{};
  if (::statvfs(folder.c_str(), &system) != 0) return "nothing is known of the file system";
  return (system.f_flag & ST_NOSUID) != 0 ? folder.string() + " is mounted with nosuid" : "";
}

TEST(OtherRights, IgnoreTheCallersEnvironment) {
  TemporaryFolder const folder;
  if (auto const reason = why_not(folder.path()); !reason.empty()) GTEST_SKIP() << reason;
  ASSERT_EQ(::chmod(folder.path().c_str(), 0755), 0);
  auto const program = folder / "program", errors = folder / "errors", files = folder / "files";
  fs::copy_file("/proc/self/exe", program);
  ASSERT_EQ(::chmod(program.c_str(), 04755), 0);
  fs::create_directory(files);

  auto const ending = in_child([&] {
    auto const file = ::open(errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::dup2(file, STDERR_FILENO);
    for (auto const& [name, value] : environment_of(files.string())) ::setenv(name.c_str(), value.c_str(), 1);
    ::setenv("INTRUDER_TRACE", (files / "trace").c_str(), 1);
    if (::setgid(ordinary_user) != 0 || ::setuid(ordinary_user) != 0) return 126;
    ::execl(program.c_str(), "program", "--gtest_filter=ProgramsWithOtherRights.DISABLED_OneUsesEverything",
            "--gtest_also_run_disabled_tests", "--gtest_brief=1", "--gtest_output=", nullptr);
    return 127;
  });
  if (ending == not_setuid) GTEST_SKIP() << "this system gives no program other rights than its caller's";
  EXPECT_EQ(ending, 0);
  EXPECT_EQ(content_of(errors), "");
  std::vector<std::string> made;
  for (auto const& entry : fs::recursive_directory_iterator(files)) made.push_back(entry.path().filename());
  EXPECT_THAT(made, ::testing::IsEmpty());
}

}  // namespace
}  // namespace unimem
