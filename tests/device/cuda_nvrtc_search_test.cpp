#include "device/cuda/nvrtc.hpp"
#include "device/temporary_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

namespace unimem::detail::cuda {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A folder with compilers that are all the stand-in, and none that this machine may have.
class NvrtcSearch : public ::testing::Test {
 protected:
  NvrtcSearch() { unsetenv("UNIMEM_NVRTC_LIBRARY"); }

  void install(std::string const& name) const {
    std::filesystem::create_symlink(UNIMEM_STANDIN_NVRTC, toolkit_ / name);
  }
  /// One that knows no architecture older than that.
  void install_copy(std::string const& name, int oldest) const {
    std::filesystem::copy_file(UNIMEM_STANDIN_NVRTC, toolkit_ / name);
    std::ofstream(toolkit_ / (name + ".oldest")) << oldest;
  }
  void remove(std::string const& name) const { std::filesystem::remove(toolkit_ / name); }
  void install_what_cannot_be_loaded(std::string const& name) const {
    std::filesystem::create_symlink("/dev/null", toolkit_ / name);
  }

  [[nodiscard]] LoadedNvrtc load(int driver_version = 12040, int architecture = std::numeric_limits<int>::max()) const {
    return load_nvrtc(driver_version, {"/nowhere/", folder()}, architecture);
  }
  [[nodiscard]] std::string folder() const { return toolkit_.path().string() + '/'; }

 private:
  TemporaryFolder toolkit_;
};

/// The stand-in's version is like no real one's.
constexpr int standin_version = 13000;

TEST_F(NvrtcSearch, FindsTheCompilerOfTheDriversMajorVersion) {
  install("libnvrtc.so.12");
  install_what_cannot_be_loaded("libnvrtc.so.13");
  auto const found = load();
  EXPECT_EQ(found.problem, "");
  EXPECT_GE(found.version, standin_version);
  EXPECT_EQ(found.architectures.front(), 75);
}

TEST_F(NvrtcSearch, AnotherMajorVersionIsUsed) {
  install("libnvrtc.so.12");
  EXPECT_GE(load(13000).version, standin_version) << "an older one";
  EXPECT_GE(load(14000).version, standin_version) << "for a driver that nobody knows yet";
  remove("libnvrtc.so.12");
  install("libnvrtc.so.13");
  EXPECT_GE(load().version, standin_version) << "a newer one";
  remove("libnvrtc.so.13");
  install("libnvrtc.so");
  EXPECT_GE(load().version, standin_version) << "one of unknown version";
}

TEST_F(NvrtcSearch, AnOldGpuGetsACompilerThatKnowsIt) {
  install_copy("libnvrtc.so.13", 90);
  install_copy("libnvrtc.so.12", 80);
  EXPECT_EQ(load(13000).architectures.front(), 90);
  EXPECT_EQ(load(13000, 100).architectures.front(), 90);
  EXPECT_EQ(load(13000, 90).architectures.front(), 90);
  EXPECT_EQ(load(13000, 89).architectures.front(), 80);
  EXPECT_EQ(load(13000, 70).architectures.front(), 90) << "the first, to be named where none serves";
}

TEST_F(NvrtcSearch, WithoutAnyNamesTheSearch) {
  EXPECT_EQ(load().problem,
            "CUDA's run-time compiler is not installed: no libnvrtc.so.12, libnvrtc.so.13, libnvrtc.so in "
            "/nowhere/, " +
                folder() + " (UNIMEM_NVRTC_LIBRARY names another place)");
  EXPECT_THAT(load(13000).problem, HasSubstr("no libnvrtc.so.13, libnvrtc.so.12, libnvrtc.so in"));
}

TEST_F(NvrtcSearch, TakesOnlyWhatTheVariableNames) {
  install("libnvrtc.so.12");
  setenv("UNIMEM_NVRTC_LIBRARY", "/nowhere/libnvrtc.so", 1);
  EXPECT_THAT(load().problem,
              AllOf(HasSubstr("UNIMEM_NVRTC_LIBRARY cannot be loaded"), HasSubstr("/nowhere/libnvrtc.so")));
  remove("libnvrtc.so.12");
  setenv("UNIMEM_NVRTC_LIBRARY", UNIMEM_STANDIN_NVRTC, 1);
  EXPECT_GE(load().version, standin_version);
  unsetenv("UNIMEM_NVRTC_LIBRARY");
}

TEST_F(NvrtcSearch, TheEnvironmentsToolkitComesFirst) {
  setenv("CUDA_HOME", "/home", 1);
  setenv("CUDA_PATH", "/path", 1);
  EXPECT_THAT(toolkit_folders(),
              ElementsAre("/home/lib64/", "/home/lib/", "/path/lib64/", "/path/lib/", "", "/usr/local/cuda/lib64/",
                          "/usr/local/cuda/lib/", "/opt/cuda/lib64/", "/opt/cuda/lib/"));
  unsetenv("CUDA_HOME");
  unsetenv("CUDA_PATH");
  EXPECT_EQ(toolkit_folders().front(), "") << "the loader's own search";
}

}  // namespace
}  // namespace unimem::detail::cuda
