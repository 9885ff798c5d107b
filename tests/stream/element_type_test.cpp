#include <unimem/core/error.hpp>
#include <unimem/stream/element_type.hpp>

#include "stream/chunk_work.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace unimem {
namespace {

TEST(ElementType, NamesAreReadBack) {
  for (auto const element : all_element_types) {
    EXPECT_EQ(parse_element_type(to_string(element)), element);
    auto const size = detail::with_element_type(element, []<class T>(std::type_identity<T>) { return sizeof(T); });
    EXPECT_EQ(element_size(element), size) << to_string(element);
  }
}

TEST(ElementType, AnUnknownNameListsAllNames) {
  for (auto const* const name : {"", "u9", "U8", "float", "f32 ", "i128"}) {
    try {
      static_cast<void>(parse_element_type(name));
      ADD_FAILURE() << name;
    } catch (InvalidArgument const& error) {
      EXPECT_EQ(error.value, name);
      EXPECT_EQ(error.requirement, "one of u8, i8, u16, i16, u32, i32, u64, i64, f32, f64");
    }
  }
}

}  // namespace
}  // namespace unimem
