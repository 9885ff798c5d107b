#pragma once

#include <unimem/device/discovery.hpp>

#include "device/cuda_standin/control.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

// What every test of the CUDA backend needs. A program that includes this uses the stand-in for CUDA, whatever the
// machine has: its library is named before anybody looks for devices. With UNIMEM_TEST_CUDA=real it uses what the
// machine has, and whatever scripts the stand-in is skipped and says so (`./dev gpu`).

namespace unimem {

/// Whether this run is one on hardware. A word that nobody knows would silently test something else.
inline bool const on_hardware = [] {
  auto const* const asked = std::getenv("UNIMEM_TEST_CUDA");
  if (asked == nullptr || std::string_view{asked} == "standin") {
    setenv("UNIMEM_CUDA_LIBRARY", UNIMEM_CUDA_STANDIN, 1);
    setenv("UNIMEM_NVRTC_LIBRARY", UNIMEM_NVRTC_STANDIN, 1);
    setenv("UNIMEM_CACHE_DIR", UNIMEM_STANDIN_CACHE, 1);
    return false;
  }
  if (std::string_view{asked} == "real") return true;
  std::fprintf(stderr, "UNIMEM_TEST_CUDA is '%s', and can be standin or real\n", asked);
  std::abort();
}();

/// Why a test is left out of a run on hardware.
inline constexpr char const* scripts_standin = "it scripts the stand-in driver";

/// What the tests call the first GPU, as `device()` takes it.
inline std::string first_gpu(std::string const& options = {}) {
  return options.empty() ? "cuda:0" : "cuda:0," + options;
}

/// And the second. Hardware with one GPU alone serves under two names, as two devices with the same memory, unless
/// UNIMEM_TEST_CUDA_SECOND names another one, with an option.
inline std::string second_gpu(std::string const& options = {}) {
  if (!on_hardware) return options.empty() ? "cuda:1" : "cuda:1," + options;
  auto const* const named = std::getenv("UNIMEM_TEST_CUDA_SECOND");
  std::string const id = named != nullptr ? named : "cuda:0,shareable=0";
  return options.empty() ? id : id + "," + options;
}

/// Whether the two are different GPUs.
inline bool has_two_gpus() {
  return !second_gpu().starts_with("cuda:0");
}

/// Its master. On hardware there is none: a test that scripts it has to be skipped.
inline standin::StandInControl const& standin_control() {
  if (on_hardware) throw std::logic_error("a test that scripts the stand-in driver runs on hardware");
  static auto const* const control = standin::find_control(UNIMEM_CUDA_STANDIN);
  return *control;
}

/// Each test begins with a driver that behaves, and ends without anything that a real one would have suffered from.
class OnStandIn : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!on_hardware) standin_control().reset();
  }
  void TearDown() override {
    if (!on_hardware) {
      EXPECT_THAT(standin::violations(standin_control()), ::testing::IsEmpty());
    }
  }
};

}  // namespace unimem
