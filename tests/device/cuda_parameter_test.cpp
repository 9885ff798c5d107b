#include "device/cuda/parameter.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace unimem::detail::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Optional;

using Kind = Parameter::Kind;
using Number = ValueType::Number;

TEST(Parameters, AreReadFromTheSignaturesName) {
  Parameter const buffer{Kind::buffer, 8, false, {Number::floating, 4}};
  Parameter const vectors{Kind::buffer, 8, true, {Number::unsigned_integer, 1, 4}};
  Parameter const structures{Kind::buffer, 8, true, {Number::none, 24}};
  Parameter const large{Kind::buffer, 8, true, {Number::none, 0xFFFF'FFFE}};
  Parameter const integer{Kind::unsigned_integer, 4}, byte{Kind::signed_integer, 1}, real{Kind::floating, 8};
  Parameter const structure{Kind::other, 16};
  std::string name = "_Z16unimem_signatureIJ";
  for (auto const& one : {buffer, vectors, structures, large, integer, byte, real, structure}) {
    EXPECT_THAT(parameter_from(code_of(one)), Optional(one));
    name += "Lm" + std::to_string(code_of(one)) + "E";
  }
  EXPECT_THAT(parameters_in(name + "EE"),
              Optional(ElementsAre(buffer, vectors, structures, large, integer, byte, real, structure)));
}

TEST(Parameters, OfOtherNamesAreNone) {
  for (auto const* const name : {"", "scale", "_Z16unimem_signatureIJ", "_Z16unimem_signatureIJLm1E",
                                 "_Z16unimem_signatureIJLm0EEE", "_Z16unimem_signatureIJLm7EEE",
                                 "_Z16unimem_signatureIJLm99999999999999999999EEE", "_Z16unimem_signatureIJLm34"}) {
    EXPECT_EQ(parameters_in(name), std::nullopt) << name;
  }
  std::string many = "_Z16unimem_signatureIJ";
  for (int i = 0; i < 65; ++i) many += "Lm34E";
  EXPECT_EQ(parameters_in(many + "EE"), std::nullopt);
  EXPECT_THAT(parameters_in("_Z16unimem_signatureIJEE"), Optional(IsEmpty()));
}

}  // namespace
}  // namespace unimem::detail::cuda
