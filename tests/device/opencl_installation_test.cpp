#include <unimem/device/discovery.hpp>

#include "core/sanitizers.hpp"
#include "device/backends.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <string_view>

// What a missing or broken OpenCL installation is: a backend that is unavailable with a reason. Each case looks in a
// child process of its own, because a process looks only once.

#define UNIMEM_NEEDS_PROBE() \
  if (detail::under_thread_sanitizer) GTEST_SKIP() << "there is no probe under ThreadSanitizer"

namespace unimem {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using Environment = std::map<std::string, std::string>;

/// A new directory, gone with everything in it at the end.
class Directory {
 public:
  Directory() {
    auto pattern = (std::filesystem::temp_directory_path() / "unimem_opencl_XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) ADD_FAILURE() << "no temporary directory: " << pattern;
    path_ = pattern;
    std::filesystem::permissions(path_, std::filesystem::perms{0755});  // for tests that become another user
  }
  Directory(Directory const&) = delete;
  Directory& operator=(Directory const&) = delete;
  ~Directory() { std::filesystem::remove_all(path_); }

  /// Writes a file, and returns this so that a directory can be made in one expression.
  Directory& with(std::string const& name, std::string const& contents) {
    std::ofstream{path_ / name} << contents << '\n';
    return *this;
  }

  [[nodiscard]] std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

/// "<number of devices>|<reason>".
std::string what_is_found() {
  auto const found = detail::find_opencl_devices();
  return std::to_string(found.devices.size()) + "|" + found.reason;
}

/// What a child process with these variables set, and `prepare` called, answers; or how it died.
std::string look(Environment const& variables, void (*prepare)() = [] {}, std::string (*answer_of)() = what_is_found) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  auto const child = fork();
  if (child == 0) {
    for (auto const& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    prepare();
    auto answer = answer_of();
    if (waitpid(-1, nullptr, WNOHANG) != -1) answer = "a child was left behind";
    if (write(ends[1], answer.data(), answer.size()) < 0) _exit(1);
    _exit(0);
  }
  close(ends[1]);
  std::string answer;
  char chunk[256];
  for (ssize_t count = 0; (count = read(ends[0], chunk, sizeof chunk)) > 0;)
    answer.append(chunk, static_cast<std::size_t>(count));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? answer : "the process died with status " + std::to_string(status) + " after saying: " + answer;
}

/// Variables under which the fake driver is the only one, and does what it is told.
class FakeDriver {
 public:
  explicit FakeDriver(std::string what) : what_(std::move(what)) {
    vendors_.with("fake.icd", UNIMEM_FAKE_DRIVER_LIBRARY);
  }

  [[nodiscard]] Environment environment(std::string const& milliseconds = "20000") const {
    return {{"OCL_ICD_VENDORS", vendors_.path()},
            {"UNIMEM_FAKE_DRIVER", what_},
            {"UNIMEM_OPENCL_PROBE_TIMEOUT_MS", milliseconds}};
  }

 private:
  std::string what_;
  Directory vendors_;
};

TEST(OpenClInstallation, AMissingLoaderIsTheReason) {
  EXPECT_THAT(look({{"UNIMEM_OPENCL_LIBRARY", "libOpenCL-missing.so.1"}}),
              AllOf(StartsWith("0|the OpenCL loader cannot be loaded"), HasSubstr("libOpenCL-missing.so.1")));
}

TEST(OpenClInstallation, AForeignLibraryIsTheReason) {
  EXPECT_THAT(look({{"UNIMEM_OPENCL_LIBRARY", "libm.so.6"}}), StartsWith("0|libm.so.6 has no cl"));
}

TEST(OpenClInstallation, NoPlatformIsTheReason) {
  Directory const empty;
  EXPECT_EQ(look({{"OCL_ICD_VENDORS", empty.path()}}),
            "0|no OpenCL platform is installed (clGetPlatformIDs: CL_PLATFORM_NOT_FOUND_KHR)");
}

TEST(OpenClInstallation, AnUnloadableDriverIsLikeNone) {
  Directory files, vendors;
  files.with("corrupt.so", "this is no library");
  vendors.with("corrupt.icd", files.path() + "/corrupt.so")
      .with("missing.icd", files.path() + "/missing.so")
      .with("empty.icd", "");
  EXPECT_THAT(look({{"OCL_ICD_VENDORS", vendors.path()}}), StartsWith("0|no OpenCL platform is installed"));
}

TEST(OpenClInstallation, APlatformWithoutDevicesIsTheReason) {
  EXPECT_EQ(look(FakeDriver{"nothing"}.environment()),
            "0|platform 'Fake' has no device (clGetDeviceIDs: CL_DEVICE_NOT_FOUND)");
}

TEST(OpenClInstallation, AnAbortStaysInTheProbe) {
  UNIMEM_NEEDS_PROBE();
  EXPECT_EQ(look(FakeDriver{"abort"}.environment()), "0|a driver was killed by Aborted while listing the platforms");
}

TEST(OpenClInstallation, ACrashStaysInTheProbe) {
  UNIMEM_NEEDS_PROBE();
  EXPECT_EQ(look(FakeDriver{"segfault"}.environment()),
            "0|a driver was killed by Segmentation fault while listing the platforms");
}

TEST(OpenClInstallation, AnExitStaysInTheProbe) {
  UNIMEM_NEEDS_PROBE();
  EXPECT_EQ(look(FakeDriver{"exit"}.environment()),
            "0|a driver ended the process with status 3 while listing the platforms");
}

TEST(OpenClInstallation, ADriverThatHangsIsGivenUp) {
  UNIMEM_NEEDS_PROBE();
  auto const begin = std::chrono::steady_clock::now();
  EXPECT_EQ(
      look(FakeDriver{"hang"}.environment("300")),
      "0|a driver did not answer within 300 ms while listing the platforms (UNIMEM_OPENCL_PROBE=0 trusts it unseen)");
  auto const took = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(took, 300ms);
  EXPECT_LT(took, 10s);
}

TEST(OpenClInstallation, ACrashIsNoticedWithoutAZombie) {
  UNIMEM_NEEDS_PROBE();
  EXPECT_EQ(look(FakeDriver{"abort"}.environment(), [] { std::signal(SIGCHLD, SIG_IGN); }),
            "0|a driver ended the process while listing the platforms");
}

TEST(OpenClInstallation, SettingsThatCannotBeReadAreTheReason) {
  EXPECT_THAT(look({{"UNIMEM_OPENCL_PROBE", "perhaps"}}),
              AllOf(StartsWith("0|"), HasSubstr("UNIMEM_OPENCL_PROBE 'perhaps'")));
  for (auto const* const value : {"soon", "0", "-5", "10s", "99999999999"}) {
    EXPECT_THAT(look({{"UNIMEM_OPENCL_PROBE_TIMEOUT_MS", value}}),
                AllOf(StartsWith("0|"), HasSubstr("UNIMEM_OPENCL_PROBE_TIMEOUT_MS '" + std::string(value) + "'")));
  }
}

/// PoCL as it is installed, with its cache somewhere it cannot be.
class PoclCache : public ::testing::Test {
 protected:
  void SetUp() override {
    if (access("/etc/OpenCL/vendors/pocl.icd", R_OK) != 0) GTEST_SKIP() << "PoCL is not installed";
    vendors_.with("pocl.icd", contents_of("/etc/OpenCL/vendors/pocl.icd"));
  }

  /// These variables with PoCL the only driver, and no other advice on where its cache is.
  [[nodiscard]] Environment with(Environment variables) const {
    variables.emplace("OCL_ICD_VENDORS", vendors_.path());
    return variables;
  }

  static void forget_cache_settings() {
    unsetenv("POCL_CACHE_DIR");
    unsetenv("XDG_CACHE_HOME");
  }

 private:
  static std::string contents_of(char const* path) {
    std::ifstream file{path};
    std::string line;
    std::getline(file, line);
    return line;
  }

  Directory vendors_;
};

TEST_F(PoclCache, AnImpossibleDirectoryIsTheReason) {
  EXPECT_EQ(look(with({{"POCL_CACHE_DIR", "/proc/unimem"}})),
            "0|PoCL cannot write its kernel cache '/proc/unimem': No such file or directory (POCL_CACHE_DIR names "
            "another place)");
}

TEST_F(PoclCache, AFileInItsPlaceIsTheReason) {
  EXPECT_EQ(look(with({{"POCL_CACHE_DIR", "/dev/null"}})),
            "0|PoCL cannot write its kernel cache '/dev/null': Not a directory (POCL_CACHE_DIR names another place)");
}

TEST_F(PoclCache, TheDefaultPlaceIsLookedAtToo) {
  EXPECT_THAT(look(with({{"HOME", "/proc"}}), forget_cache_settings),
              StartsWith("0|PoCL cannot write its kernel cache '/proc/.cache/pocl/kcache'"));
  EXPECT_THAT(look(with({{"HOME", "/proc"}}),
                   [] {
                     forget_cache_settings();
                     setenv("XDG_CACHE_HOME", "/dev/null", 1);
                   }),
              StartsWith("0|PoCL cannot write its kernel cache '/dev/null/pocl/kcache'"));
}

TEST_F(PoclCache, ADirectoryAnotherUserOwnsIsTheReason) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become somebody else";
  Directory const owned;
  auto const become_nobody = [] {
    if (setgid(65534) != 0 || setuid(65534) != 0) _exit(1);
  };
  EXPECT_THAT(look(with({{"POCL_CACHE_DIR", owned.path()}}), become_nobody), HasSubstr("it belongs to another user"));
}

TEST_F(PoclCache, CodeWritableByOthersIsTheReason) {
  Directory const parent;
  auto const cache = parent.path() + "/cache";
  std::filesystem::create_directory(cache);
  for (auto const mode : {0777U, 0775U}) {
    ASSERT_EQ(chmod(cache.c_str(), mode), 0);
    EXPECT_EQ(look(with({{"POCL_CACHE_DIR", cache}})),
              "0|PoCL's kernel cache '" + cache +
                  "' holds code that is not believed: others than its owner may write to it (POCL_CACHE_DIR names "
                  "another place)");
  }
  ASSERT_EQ(chmod(cache.c_str(), 0755), 0);
  EXPECT_EQ(look(with({{"POCL_CACHE_DIR", cache}})), "1|");
  std::filesystem::create_directory_symlink(cache, parent.path() + "/link");
  EXPECT_THAT(look(with({{"POCL_CACHE_DIR", parent.path() + "/link"}})), HasSubstr("a symbolic link is in its place"));
  if (geteuid() != 0) return;
  ASSERT_EQ(chown(cache.c_str(), 65534, 65534), 0);
  EXPECT_THAT(look(with({{"POCL_CACHE_DIR", cache}})), HasSubstr("it belongs to another user"));
}

TEST_F(PoclCache, AWritableOneIsMadeAndUsed) {
  Directory const parent;
  auto const cache = parent.path() + "/deep/cache";
  EXPECT_EQ(look(with({{"POCL_CACHE_DIR", cache}})), "1|");
  EXPECT_TRUE(std::filesystem::is_directory(cache));
  EXPECT_EQ(look(with({{"POCL_CACHE_DIR", cache}, {"UNIMEM_OPENCL_PROBE", "0"}})), "1|");
}

TEST_F(PoclCache, ABrokenPlatformDoesNotHideOthers) {
  if (!std::filesystem::exists(UNIMEM_OCLGRIND_LIBRARY)) GTEST_SKIP() << "Oclgrind is not installed";
  Directory vendors;
  vendors.with("oclgrind.icd", UNIMEM_OCLGRIND_LIBRARY).with("pocl.icd", "libpocl.so.2");
  EXPECT_EQ(look({{"OCL_ICD_VENDORS", vendors.path()}, {"POCL_CACHE_DIR", "/dev/null"}}), "1|");
}

TEST(OpenClInstallation, IsListedAmongTheUnavailableBackends) {
  Directory const empty;
  auto const list = [] {
    std::string text;
    for (Device const& device : devices()) text += std::string(device.id()) + " ";
    for (auto const& backend : unavailable_backends()) {
      if (backend.backend == Backend::opencl) text += "without OpenCL: " + backend.reason;
    }
    return text;
  };
  EXPECT_THAT(look(
                  {{"OCL_ICD_VENDORS", empty.path()}}, [] {}, list),
              StartsWith("cpu without OpenCL: no OpenCL platform is installed"));
}

}  // namespace
}  // namespace unimem
