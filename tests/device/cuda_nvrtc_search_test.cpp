#include "device/cuda/nvrtc.hpp"
#include "device/temporary_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace unimem::detail::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int driver_version = 12040;

/// A toolkit whose compiler is the stand-in.
class NvrtcSearch : public ::testing::Test {
 protected:
  NvrtcSearch() {
    unsetenv("UNIMEM_NVRTC_LIBRARY");
    setenv("CUDA_HOME", toolkit_.path().c_str(), 1);
    std::filesystem::create_directory(toolkit_ / "lib64");
  }
  ~NvrtcSearch() override { unsetenv("CUDA_HOME"); }

  void install(std::string const& name) const {
    std::filesystem::create_symlink(UNIMEM_STANDIN_NVRTC, toolkit_ / ("lib64/" + name));
  }
  void install_what_cannot_be_loaded(std::string const& name) const {
    std::filesystem::create_symlink("/dev/null", toolkit_ / ("lib64/" + name));
  }
  [[nodiscard]] std::string folder() const { return toolkit_.path().string() + "/lib64/"; }

 private:
  TemporaryFolder toolkit_;
};

constexpr int standin_version = 12990;

TEST_F(NvrtcSearch, FindsTheCompilerOfTheDriversMajorVersionInAToolkitsFolder) {
  install("libnvrtc.so.12");
  install_what_cannot_be_loaded("libnvrtc.so.13");
  auto const found = load_nvrtc(driver_version);
  EXPECT_EQ(found.problem, "");
  EXPECT_EQ(found.version, standin_version);
  EXPECT_EQ(found.architectures.front(), 75);
}

TEST_F(NvrtcSearch, WhatTheVariableNamesIsTakenAndNothingElse) {
  install("libnvrtc.so.12");
  setenv("UNIMEM_NVRTC_LIBRARY", "/nowhere/libnvrtc.so", 1);
  EXPECT_THAT(load_nvrtc(driver_version).problem,
              AllOf(HasSubstr("UNIMEM_NVRTC_LIBRARY cannot be loaded"), HasSubstr("/nowhere/libnvrtc.so")));
  setenv("UNIMEM_NVRTC_LIBRARY", UNIMEM_STANDIN_NVRTC, 1);
  EXPECT_EQ(load_nvrtc(driver_version).version, standin_version);
  unsetenv("UNIMEM_NVRTC_LIBRARY");
}

/// Where a toolkit is installed, what is not found in ours is found there.
#define UNIMEM_SKIP_WITH_A_TOOLKIT \
  if (load_nvrtc(driver_version).problem.empty()) GTEST_SKIP() << "a toolkit is installed"

TEST_F(NvrtcSearch, ACompilerOfAnotherMajorVersionIsBetterThanNone) {
  UNIMEM_SKIP_WITH_A_TOOLKIT;
  install("libnvrtc.so.12");
  EXPECT_EQ(load_nvrtc(13000).version, standin_version) << "an older one";
  std::filesystem::rename(folder() + "libnvrtc.so.12", folder() + "libnvrtc.so.13");
  EXPECT_EQ(load_nvrtc(driver_version).version, standin_version) << "a newer one";
  std::filesystem::rename(folder() + "libnvrtc.so.13", folder() + "libnvrtc.so");
  EXPECT_EQ(load_nvrtc(driver_version).version, standin_version) << "one of unknown version";
}

TEST_F(NvrtcSearch, WithoutAnyTheProblemSaysWhatWasLookedForAndWhere) {
  UNIMEM_SKIP_WITH_A_TOOLKIT;
  EXPECT_THAT(load_nvrtc(driver_version).problem,
              AllOf(HasSubstr("no libnvrtc.so.12, libnvrtc.so.13, libnvrtc.so in " + folder() +
                              ", the loader's search path, /usr/local/cuda/lib64/"),
                    HasSubstr("UNIMEM_NVRTC_LIBRARY names another place")));
  EXPECT_THAT(load_nvrtc(13000).problem, HasSubstr("no libnvrtc.so.13, libnvrtc.so.12, libnvrtc.so in"));
}

}  // namespace
}  // namespace unimem::detail::cuda
