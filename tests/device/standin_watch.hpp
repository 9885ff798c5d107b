#pragma once

#include "device/cuda_fixture.hpp"

// For programs whose fixtures know nothing of the stand-in driver, such as suites that run on other devices too.

namespace unimem {

/// Looks after every test of a program: it begins with a driver that behaves, and what a real one would have suffered
/// from is a failure of the test it happened in.
class StandInWatch : public ::testing::EmptyTestEventListener {
 private:
  void OnTestStart(::testing::TestInfo const&) override { standin_control().reset(); }
  void OnTestEnd(::testing::TestInfo const&) override {
    standin_control().hold(false);
    EXPECT_THAT(standin::violations(standin_control()), ::testing::IsEmpty());
    EXPECT_EQ(standin_control().stack_depth(), 0U) << "a context was left behind on the thread";
  }
};

inline bool const watches_standin = [] {
  if (on_hardware) return false;
  ::testing::UnitTest::GetInstance()->listeners().Append(new StandInWatch);  // which owns it
  return true;
}();

}  // namespace unimem
