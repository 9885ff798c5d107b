#include "device/source_kernels.hpp"

#include <unimem/core/error.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <string_view>
#include <tuple>

namespace unimem::detail {
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

TEST(SourceKernels, ContinueLinesAfterABackslash) {
  std::string const source =
      "UNIMEM_KER\\\nNEL one(UNIMEM_BUFFER(flo\\  \r\nat, x), int\\\n a) {}\n"
      "// a comment \\\nUNIMEM_KERNEL two() {}\nUNIMEM_KERNEL three() { get_local\\\n_id(0); }\\";
  EXPECT_THAT(kernels_in(source).portable, ElementsAre("one", "three"));
  auto const parameters = portable_parameters(source, "one");
  ASSERT_TRUE(parameters && parameters->size() == 2);
  EXPECT_EQ(parameters->at(0).type, "float");
  EXPECT_EQ(parameters->at(1).type, "int");
  constexpr std::array<std::string_view, 1> wanted{"get_local_id"};
  EXPECT_EQ(find_word(source, "three", wanted), "get_local_id");
  EXPECT_EQ(find_word(source, "one", wanted), "");
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

TEST(SourceKernels, AnotherFormsWordDoesNotCount) {
  for (auto const* const before : {"#define KERNEL __global__ void\n", "#define KERNEL __kernel\n",
                                   "#define ENTRY UNIMEM_KERNEL\n", "#define BOUNDS __global__ __launch_bounds__(\n"}) {
    auto const found = kernels_in(std::string(before) + "UNIMEM_KERNEL entry(UNIMEM_BUFFER(float, x)) {}");
    EXPECT_THAT(found.portable, ElementsAre("entry")) << before;
    EXPECT_THAT(found.plain, IsEmpty()) << before;
    EXPECT_TRUE(found.names_portable_form && found.is_portable("entry")) << before;
  }
}

TEST(SourceKernels, UnfinishedSourcesEnd) {
  for (auto const* const source : {"", "UNIMEM_KERNEL", "UNIMEM_KERNEL a", "__global__ void __launch_bounds__(",
                                   "/* UNIMEM_KERNEL a() {}", "\"", "'\\", "UNIMEM_KERNEL ;a()", "//"}) {
    EXPECT_THAT(kernels_in(source).names(), IsEmpty()) << source;
  }
}

TEST(SourceKernels, AWordCountsInTheEntrysCalls) {
  constexpr std::string_view source = R"(
    // barrier
    float helper(float x) { return x; }
    UNIMEM_KERNEL alone(UNIMEM_BUFFER(float, x)) { helper(1); }
    __kernel __attribute__((reqd_work_group_size(16, 1, 1))) void grouped(__global float* x) { { barrier(1); } }
    UNIMEM_KERNEL uses(UNIMEM_BUFFER(float, x)) { if (x) { barrier(1); } })";
  constexpr std::array<std::string_view, 2> words{"__local", "barrier"};
  EXPECT_EQ(find_word(source, "alone", words), "");
  EXPECT_EQ(find_word(source, "uses", words), "barrier");
  EXPECT_EQ(find_word(source, "grouped", words), "barrier");
  EXPECT_EQ(find_word("void helper() { __local int x; } UNIMEM_KERNEL a() { helper(); }", "a", words), "__local");
  EXPECT_EQ(find_word("UNIMEM_KERNEL a() {} float kernel = 1; void f() { kernel(barrier); }", "a", words), "barrier");
  for (auto const* const unfinished : {"", "UNIMEM_KERNEL b(", "UNIMEM_KERNEL b() {", "__kernel"}) {
    EXPECT_EQ(find_word(unfinished, "a", words), "") << unfinished;
  }
}

TEST(SourceKernels, WordsAreFoundInKernelsThatMacrosMake) {
  constexpr std::array<std::string_view, 1> words{"barrier"};
  constexpr std::string_view made = R"(
    #define MAKE(T, name) UNIMEM_KERNEL name(UNIMEM_BUFFER(T, x)) { barrier(1); }
    MAKE(float, of_floats)
    UNIMEM_KERNEL written(UNIMEM_BUFFER(float, x)) {})";
  EXPECT_EQ(find_word(made, "of_floats", words), "barrier");
  EXPECT_EQ(find_word(made, "written", words), "");
  EXPECT_EQ(find_word("#define MAKE(T) UNIMEM_KERNEL of_##T() { barrier(1); }\nMAKE(int)", "of_int", words), "barrier");
  EXPECT_EQ(find_word("template <class T> UNIMEM_KERNEL fill(T* x) { barrier(1); }", "fill<float>", words), "barrier");
}

TEST(SourceKernels, WordsAreFoundInKernelsThatAreCalled) {
  constexpr std::array<std::string_view, 1> words{"barrier"};
  constexpr std::string_view source = R"(
    #ifdef A
    UNIMEM_KERNEL apart() { barrier(1); }
    #else
    UNIMEM_KERNEL apart() { barrier(2); }
    #endif
    UNIMEM_KERNEL waits() { barrier(3); }
    UNIMEM_KERNEL calls() { waits(); })";
  EXPECT_EQ(find_word(source, "calls", words), "barrier");
  constexpr std::string_view uncalled = "UNIMEM_KERNEL a() { barrier(1); }\n#if 0\nUNIMEM_KERNEL a() {}\n#endif\n";
  EXPECT_EQ(find_word(std::string(uncalled) + "UNIMEM_KERNEL b() { int a; }", "b", words), "");
}

TEST(SourceKernels, AVariableNamedKernelHidesNoWord) {
  constexpr std::array<std::string_view, 1> words{"barrier"};
  EXPECT_EQ(find_word("UNIMEM_KERNEL a() { x = kernel[barrier] * f(y); }", "a", words), "barrier");
  EXPECT_EQ(find_word("UNIMEM_KERNEL a() { x = kernel[0] * f(barrier); }", "a", words), "barrier");
  EXPECT_EQ(find_word("UNIMEM_KERNEL a() { if (kernel[0] + f(y)) { barrier; } }", "a", words), "barrier");
}

TEST(SourceKernels, BranchesOfThePreprocessorHaveTheirOwnBraces) {
  constexpr std::array<std::string_view, 1> words{"barrier"};
  constexpr std::string_view source = R"(
    UNIMEM_KERNEL first() {
    #ifdef LARGE
      for (;;) {
    #elif defined SMALL
      while (0) {
    #else
      if (1) {
    #endif
        barrier(0);
      }
    }
    void helper() {}
    UNIMEM_KERNEL second() { barrier(1); }
    UNIMEM_KERNEL third() {})";
  EXPECT_EQ(find_word(source, "second", words), "barrier");
  EXPECT_EQ(find_word(source, "third", words), "");
  EXPECT_EQ(find_word("#define BEGIN {\n#define END }\nUNIMEM_KERNEL a() { if (1) { END } void f() { barrier(1); } "
                      "UNIMEM_KERNEL b() { f(); }",
                      "b", words),
            "barrier")
      << "where a body ends is not known";
}

TEST(SourceKernels, DigitsThatAreApartBeginNoLiteral) {
  constexpr std::array<std::string_view, 1> words{"barrier"};
  EXPECT_EQ(find_word("UNIMEM_KERNEL a() { x = 1'000 + barrier + 0xF'F; }", "a", words), "barrier");
  EXPECT_EQ(find_word("UNIMEM_KERNEL a() { x = '1' + 'barrier'; }", "a", words), "");
}

TEST(SourceKernels, ThePortableFormsTextTellsItsParameters) {
  auto const found = portable_parameters(R"(
    UNIMEM_KERNEL other(UNIMEM_BUFFER(float, z)) {}
    UNIMEM_KERNEL entry(UNIMEM_CONST_BUFFER(const unimem_f32, x), UNIMEM_BUFFER(struct P, y) /* , no */,
                        const unimem_u64 count, unsigned int n) {})",
                                         "entry");
  ASSERT_TRUE(found);
  auto const told = [&](std::size_t i) {
    auto const& [is_buffer, is_const, type, name] = found->at(i);
    return std::tuple{is_buffer, is_const, type, name};
  };
  ASSERT_EQ(found->size(), 4U);
  EXPECT_EQ(told(0), std::tuple(true, true, std::string("unimem_f32"), std::string("x")));
  EXPECT_EQ(told(1), std::tuple(true, false, std::string("struct P"), std::string("y")));
  EXPECT_EQ(told(2), std::tuple(false, false, std::string("unimem_u64"), std::string("count")));
  EXPECT_EQ(told(3), std::tuple(false, false, std::string("unsigned int"), std::string("n")));
  EXPECT_THAT(portable_parameters("UNIMEM_KERNEL none() {}", "none"), Optional(IsEmpty()));
  for (auto const* const without :
       {"", "UNIMEM_KERNEL entry(", "UNIMEM_KERNEL entry(UNIMEM_BUFFER(", "__kernel void entry(int x) {}",
        "UNIMEM_KERNEL entry(const) {}", "UNIMEM_KERNEL entry(int n, const const) {}"}) {
    EXPECT_FALSE(portable_parameters(without, "entry")) << without;
  }
}

}  // namespace
}  // namespace unimem::detail
