#pragma once

#include <unimem/device/discovery.hpp>

#include "device/cuda_standin/control.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

// What every test on the stand-in driver needs. A program that includes this uses the stand-in for CUDA, whatever the
// machine has: its library is named before anybody looks for devices.

namespace unimem {

inline bool const uses_standin = [] {
  setenv("UNIMEM_CUDA_LIBRARY", UNIMEM_CUDA_STANDIN, 1);
  setenv("UNIMEM_NVRTC_LIBRARY", UNIMEM_NVRTC_STANDIN, 1);
  setenv("UNIMEM_CACHE_DIR", UNIMEM_STANDIN_CACHE, 1);
  return true;
}();

inline standin::StandInControl const& standin_control() {
  static auto const* const control = standin::find_control(UNIMEM_CUDA_STANDIN);
  return *control;
}

/// Each test begins with a driver that behaves, and ends without anything that a real one would have suffered from.
class OnStandIn : public ::testing::Test {
 protected:
  void SetUp() override { standin_control().reset(); }
  void TearDown() override { EXPECT_THAT(standin::violations(standin_control()), ::testing::IsEmpty()); }
};

}  // namespace unimem
