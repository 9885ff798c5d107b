#include <unimem/core/detail/environment.hpp>
#include <unimem/core/error.hpp>

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <string>

namespace unimem {
namespace {

/// A variable of the test's own, unset before and after.
class Environment : public ::testing::Test {
 protected:
  void SetUp() override { unset(); }
  void TearDown() override { unset(); }
  static void set(std::string const& value) { setenv(name, value.c_str(), 1); }
  static void unset() { unsetenv(name); }

  static constexpr auto name = "UNIMEM_ENVIRONMENT_TEST";
};

TEST_F(Environment, UnsetAndEmptyAreTheSame) {
  EXPECT_EQ(environment(name), std::nullopt);
  set("");
  EXPECT_EQ(environment(name), std::nullopt);
  EXPECT_TRUE(environment_flag(name, true));
  EXPECT_FALSE(environment_flag(name, false));
  EXPECT_EQ(environment_size(name), std::nullopt);
}

TEST_F(Environment, IsReadAnewEachTime) {
  set("first");
  EXPECT_EQ(environment(name), "first");
  set(" second ");
  EXPECT_EQ(environment(name), " second ") << "as it is, blanks included";
}

TEST_F(Environment, FlagsHaveFourSpellingsEachWay) {
  for (auto const* const yes : {"1", "true", "yes", "on"}) {
    set(yes);
    EXPECT_TRUE(environment_flag(name, false)) << yes;
  }
  for (auto const* const no : {"0", "false", "no", "off"}) {
    set(no);
    EXPECT_FALSE(environment_flag(name, true)) << no;
  }
}

TEST_F(Environment, OtherFlagsAreRefusedNamingTheVariable) {
  for (auto const* const bad : {"2", "TRUE", "On", "y", "n", " 1", "1 ", "enabled"}) {
    set(bad);
    try {
      (void)environment_flag(name, false);
      ADD_FAILURE() << "'" << bad << "' was accepted";
    } catch (InvalidArgument const& error) {
      EXPECT_EQ(error.argument, name);
      EXPECT_EQ(error.value, bad);
      EXPECT_EQ(error.requirement, "1 or 0");
    }
  }
}

TEST_F(Environment, ASwitchWithMoreValuesNamesThemAll) {
  set("3");
  try {
    (void)environment_flag(name, false, "0, 1 or 2");
    ADD_FAILURE() << "3 was accepted";
  } catch (InvalidArgument const& error) {
    EXPECT_EQ(error.requirement, "0, 1 or 2");
  }
}

TEST_F(Environment, ARefusedSizeNamesTheVariable) {
  set("1.5GiB");
  EXPECT_EQ(environment_size(name), std::uint64_t{1'610'612'736});
  set("1.5 GiB");
  try {
    (void)environment_size(name);
    ADD_FAILURE() << "was accepted";
  } catch (InvalidArgument const& error) {
    EXPECT_EQ(error.argument, name);
    EXPECT_EQ(error.value, "1.5 GiB");
  }
}

}  // namespace
}  // namespace unimem
