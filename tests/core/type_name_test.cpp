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

TEST(TypeName, ANameThatIsNoneOfTheCompilersStaysAsItIs) {
  EXPECT_EQ(type_name("float32"), "float32");
  EXPECT_EQ(type_name("a type of mine"), "a type of mine");
  EXPECT_EQ(type_name(""), "");
}

}  // namespace
}  // namespace unimem::detail
