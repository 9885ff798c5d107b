#include "device/cuda/parameter.hpp"
#include "device/cuda/source_kernels.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace unimem::detail::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Optional;

TEST(SourceKernels, AreThoseOfBothForms) {
  auto const found = kernels_in(R"(
    UNIMEM_FUNCTION float helper(float x) { return x; }
    UNIMEM_KERNEL one(UNIMEM_BUFFER(float, x)) {}
    UNIMEM_KERNEL
    two () {}
    extern "C" __global__ void three(float* x, int n) {}
    template <class T> __global__ void __launch_bounds__(128, 2) four(T* x) {}
    __global__ static void five() {}
    __attribute__((used)) void __global__ six() {})");
  EXPECT_THAT(found.portable, ElementsAre("one", "two"));
  EXPECT_THAT(found.plain, ElementsAre("three", "four", "five", "six"));
  EXPECT_EQ(found.names(), "one, two, three, four, five, six");
}

TEST(SourceKernels, AreNotSoughtInCommentsAndLiterals) {
  auto const found = kernels_in(R"x(
    // UNIMEM_KERNEL a() {}
    /* UNIMEM_KERNEL b() {} */
    constexpr char const* text = "UNIMEM_KERNEL c() {} \" __global__ void d() {}";
    char quote = '"'; UNIMEM_KERNEL e() {}
    int UNIMEM_KERNELS, my__global__;)x");
  EXPECT_THAT(found.portable, ElementsAre("e"));
  EXPECT_THAT(found.plain, IsEmpty());
}

TEST(SourceKernels, TellTheFormOfAnEntry) {
  auto const mixed = kernels_in("UNIMEM_KERNEL a() {} namespace n { template <class T> __global__ void b(T* x) {} }");
  EXPECT_TRUE(mixed.is_portable("a"));
  EXPECT_FALSE(mixed.is_portable("n::b<float>"));
  EXPECT_TRUE(mixed.has("n::b<float>"));
  EXPECT_FALSE(mixed.has("c"));
  EXPECT_TRUE(mixed.is_portable("made_by_a_macro")) << "the word is there, so the form is";
  EXPECT_FALSE(kernels_in("__global__ void b() {}").is_portable("c"));
}

TEST(SourceKernels, UnfinishedSourcesEnd) {
  for (auto const* const source : {"", "UNIMEM_KERNEL", "UNIMEM_KERNEL a", "__global__ void __launch_bounds__(",
                                   "/* UNIMEM_KERNEL a() {}", "\"", "'\\", "UNIMEM_KERNEL ;a()", "//"}) {
    EXPECT_THAT(kernels_in(source).names(), IsEmpty()) << source;
  }
}

TEST(Parameters, AreReadFromTheSignaturesName) {
  using Kind = Parameter::Kind;
  // One byte each, from the lowest: (kind << 5) | bytes.
  auto const word = std::uint64_t{0x28} | std::uint64_t{0x44} << 8 | std::uint64_t{0x61} << 16 |
                    std::uint64_t{0x88} << 24 | std::uint64_t{0xB0} << 32;
  auto const name = "_Z16unimem_signatureIJLm5ELm" + std::to_string(word) + "ELm0ELm0ELm0ELm0ELm0ELm0ELm0EEE";
  EXPECT_THAT(parameters_in(name),
              Optional(ElementsAre(Parameter{Kind::buffer, 8}, Parameter{Kind::unsigned_integer, 4},
                                   Parameter{Kind::signed_integer, 1}, Parameter{Kind::floating, 8},
                                   Parameter{Kind::other, 16})));
}

TEST(Parameters, OfOtherNamesAreNone) {
  for (auto const* const name : {"", "scale", "_Z16unimem_signatureIJ", "_Z16unimem_signatureIJLm1E",
                                 "_Z16unimem_signatureIJLm65ELm0E", "_Z16unimem_signatureIJLm1ELm0E",
                                 "_Z16unimem_signatureIJLm1ELm99999999999999999999E", "_Z16unimem_signatureIJLm1"}) {
    EXPECT_EQ(parameters_in(name), std::nullopt) << name;
  }
  EXPECT_THAT(parameters_in("_Z16unimem_signatureIJLm0ELm0E"), Optional(IsEmpty()));
}

}  // namespace
}  // namespace unimem::detail::cuda
