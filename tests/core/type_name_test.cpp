#include "core/type_name.hpp"

#include <gtest/gtest.h>

#include <typeinfo>
#include <vector>

namespace unimem::detail {
namespace {

TEST(TypeName, IsAsPeopleWriteIt) {
  EXPECT_EQ(type_name(typeid(unsigned short).name()), "unsigned short");
  EXPECT_EQ(type_name(typeid(std::vector<float>*).name()), "std::vector<float, std::allocator<float> >*");
}

TEST(SameType, IsOneTypeWhateverItsQualifiers) {
  EXPECT_TRUE(same_type(typeid(std::vector<float>), typeid(std::vector<float> const&)));
  EXPECT_FALSE(same_type(typeid(long), typeid(long long)));  // NOLINT(google-runtime-int): they are of one size
  struct Local {};
  EXPECT_TRUE(same_type(typeid(Local), typeid(Local)));
}

TEST(TypeName, AForeignNameStaysAsItIs) {
  EXPECT_EQ(type_name("float32"), "float32");
  EXPECT_EQ(type_name("a type of mine"), "a type of mine");
  EXPECT_EQ(type_name(""), "");
}

}  // namespace
}  // namespace unimem::detail
