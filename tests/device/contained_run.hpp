#pragma once

#include "core/sizes.hpp"
#include "device/cpu/machine.hpp"
#include "device/real_group.hpp"
#include "device/without_locking.hpp"
#include "forked_child.hpp"

#include <gtest/gtest.h>

#include <unistd.h>

#include <string>

namespace unimem {

/// Runs the disabled test cases that `filter` names, in this very program begun anew, inside of a real control group of
/// a gibibyte: the whole of a test. Skips it where there can be none.
inline void run_contained(char const* filter) {
  if (detail::physical_memory_bytes() < 2 * GiB) GTEST_SKIP() << "this machine has not enough memory";
  if (!locks_memory) GTEST_SKIP() << "a sanitizer takes its own memory from the container";
  RealGroup const group{GiB};
  if (!group.problem().empty()) GTEST_SKIP() << "no control group can be made: " << group.problem();
  auto const only = std::string("--gtest_filter=") + filter;
  auto const child = in_child([&] {
    EXPECT_HERE(group.enter());
    ::execl("/proc/self/exe", "contained", only.c_str(), "--gtest_also_run_disabled_tests", "--gtest_brief=1",
            "--gtest_output=", nullptr);
    return 127;
  });
  EXPECT_EQ(child, 0) << "below zero is the signal that killed it";
}

}  // namespace unimem
