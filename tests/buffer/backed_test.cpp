#include "buffer/backed.hpp"

#include <gtest/gtest.h>

namespace unimem::testing {
namespace {

TEST(Backed, BuffersOverFilesKeepTheirBytes) {
  EXPECT_EQ(broken_in_files().value_or("nothing"), "nothing");
}

}  // namespace
}  // namespace unimem::testing
