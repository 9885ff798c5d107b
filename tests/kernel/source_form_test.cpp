#include "kernel/source_form.hpp"

#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/kernel/launch.hpp>

#include "device/temporary_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// What becomes of a kernel's source before a device sees it.

namespace unimem {
namespace {

using detail::SourceForm;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string whole(KernelSource const& source) {
  return SourceForm{source}.whole();
}

void put(std::filesystem::path const& path, std::string_view text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

/// Of what is refused, with the argument's name and the value.
void expect_refused(KernelSource const& source, std::string const& argument, std::string const& value) {
  try {
    static_cast<void>(Kernel("entry").source(source));
    ADD_FAILURE() << value << " was taken";
  } catch (InvalidArgument const& error) {
    EXPECT_EQ(error.argument, argument);
    EXPECT_THAT(error.value, HasSubstr(value));
  }
}

TEST(SourceForm, ATextAloneStaysAsItIs) {
  EXPECT_EQ(SourceForm{"#include \"a.h\"\n"}.whole(), "#include \"a.h\"\n");
  EXPECT_EQ(SourceForm{}.whole(), "");
  EXPECT_EQ(whole({.text = "", .defines = {{"A", "1"}}, .fast_math = true}), "");
}

TEST(SourceForm, OptionsStandBeforeTheText) {
  EXPECT_EQ(whole({.text = "x", .defines = {{"B", ""}, {"A", "1 + 2"}}, .fast_math = true}),
            "#define UNIMEM_FAST_MATH 1\n#define A 1 + 2\n#define B \n#line 1\n#line 1 \"source\"\nx\n");
}

TEST(SourceForm, HeadersTakeThePlaceOfTheirLines) {
  EXPECT_EQ(whole({.text = "a\n # include /* b */ <b.h> // c\nd\n", .name = "a.cl", .headers = {{"b.h", "b"}}}),
            "#line 1 \"a.cl\"\na\n#line 1 \"b.h\"\nb\n#line 2 \"a.cl\"\n// c\nd\n");
}

TEST(SourceForm, WhatStandsBehindAnIncludeIsNoCode) {
  EXPECT_EQ(whole({.text = "#include \"b.h\" x #include \"b.h\"\nd\n", .headers = {{"b.h", "b"}}}),
            "#line 1 \"source\"\n#line 1 \"b.h\"\nb\n#line 1 \"source\"\n\nd\n");
  EXPECT_EQ(whole({.text = "#include <b.h> /* c */ /* d\n*/ e\n", .headers = {{"b.h", "b"}}}),
            "#line 1 \"source\"\n#line 1 \"b.h\"\nb\n#line 1 \"source\"\n/* d\n*/ e\n");
}

TEST(SourceForm, NothingOfAFileGoesOnBehindItsEnd) {
  KernelSource source{.text = "#include \"b.h\"\nd\n", .headers = {{"b.h", "b \\"}}};
  EXPECT_THAT(whole(source), HasSubstr("b \\\n\n#line 1 \"source\"\n\nd\n"));
  source.headers["b.h"] = "b /* c";
  EXPECT_THAT(whole(source), HasSubstr("b /* c\n*/\n#line 2 \"b.h\"\n#error \"b.h\" ends within a comment: b.h:2, "
                                       "included from source:1\n#line 1 \"source\"\n\nd\n"));
}

TEST(SourceForm, OnlyDirectivesInclude) {
  for (std::string const text : {"// #include \"b.h\"\n", "/*\n#include \"b.h\"\n*/\n", "x #include \"b.h\"\n",
                                 "#include NAME\n", "#define X \\\n#include \"b.h\"\n", "#includes \"b.h\"\n",
                                 "\"/*\" '\"' // \\\n#include \"b.h\"\n", "#include <absent.h>\n", "#include \"\"\n"}) {
    EXPECT_EQ(whole({.text = text, .headers = {{"b.h", "b"}}}), "#line 1 \"source\"\n" + text);
  }
  for (std::string const before : {"/*\n*/", "/* */", "1'000 // '\n", "\"//\" '/*' \n"}) {
    EXPECT_THAT(whole({.text = before + "#include \"b.h\"", .headers = {{"b.h", "found"}}}), HasSubstr("\nfound\n"));
  }
}

TEST(SourceForm, QuotedNamesAreLookedForBesideTheirFileFirst) {
  TemporaryFolder const folder;
  put(folder / "first/one.h", "#include \"two.h\"\n");
  put(folder / "first/two.h", "beside\n");
  put(folder / "second/two.h", "second\n");
  put(folder / "second/three.h", "#include <two.h>\n");
  KernelSource source{.text = "#include \"one.h\"", .folders = {folder / "second", folder / "first"}};
  EXPECT_THAT(whole(source), HasSubstr("first/two.h\"\nbeside\n"));
  source.text = "#include \"three.h\"";
  EXPECT_THAT(whole(source), HasSubstr("second/two.h\"\nsecond\n"));
  source.headers = {{"two.h", "named"}};
  EXPECT_THAT(whole(source), HasSubstr("\"two.h\"\nnamed\n"));
  source = {.text = "#include \"maths/power.h\"",
            .headers = {{"maths/power.h", "#include \"../shapes.h\"\n#include \"root.h\"\n"},
                        {"maths/root.h", "root"},
                        {"shapes.h", "shapes"}}};
  EXPECT_THAT(whole(source), HasSubstr("\nshapes\n"));
  EXPECT_THAT(whole(source), HasSubstr("\nroot\n"));
}

TEST(SourceForm, AFileThatSaysOnceIsGuarded) {
  auto const text = whole({.text = "#include \"a.h\"\n#include \"a.h\"\n",
                           .headers = {{"a.h", "#pragma once\n#include \"b.h\"\na\n"}, {"b.h", "#include \"a.h\"\n"}}});
  EXPECT_THAT(text, HasSubstr("#ifndef UNIMEM_ONCE_0\n#define UNIMEM_ONCE_0\n#line 1 \"a.h\"\n\n#line 1 \"b.h\"\n"));
  EXPECT_THAT(text, Not(HasSubstr("pragma")));
  EXPECT_THAT(text, Not(HasSubstr("#error")));
}

TEST(SourceForm, WhatIsWrongWithAnIncludeIsAnErrorWithTheChain) {
  KernelSource source{.text = "\n#include \"a.h\"", .headers = {{"a.h", "\n\n#include \"absent.h\""}}};
  EXPECT_THAT(whole(source), HasSubstr("#line 3 \"a.h\"\n#error \"absent.h\" is among neither headers nor folders: "
                                       "a.h:3, included from source:2\n"));
  source.headers = {{"a.h", "#include \"b.h\""}, {"b.h", "#include \"a.h\""}};
  EXPECT_THAT(whole(source), HasSubstr("#error \"a.h\" includes itself: b.h:1, included from a.h:1, included from "
                                       "b.h:1, included from a.h:1, included from source:2\n"));
  source.headers.clear();
  for (int i = 0; i < 70; ++i) {
    source.headers["h" + std::to_string(i)] = "#include \"h" + std::to_string(i + 1) + "\"";
  }
  source.text = "#include \"h0\"";
  EXPECT_THAT(whole(source), HasSubstr("#error \"h64\" is included more than 64 files deep: h63:1, "));
  source.text = "#include \"h7\"";
  EXPECT_THAT(whole(source), HasSubstr("\"h70\" is among neither"));
}

TEST(SourceForm, ATextBeyondItsLimitIsRefused) {
  std::string const mebibyte(1 << 20, ' ');
  std::string text;
  for (int i = 0; i < 15; ++i) text += "#include \"a.h\"\n";
  EXPECT_GT(whole({.text = text, .headers = {{"a.h", mebibyte}}}).size(), mebibyte.size() * 15);
  expect_refused({.text = text + text, .headers = {{"a.h", mebibyte}}}, "source", "MiB with ");
  TemporaryFolder const folder;
  put(folder / "large.h", "");
  std::filesystem::resize_file(folder / "large.h", std::uintmax_t{1} << 40);
  expect_refused({.text = "#include \"large.h\"", .folders = {folder.path()}}, "source", "1 TiB with ");
}

TEST(SourceForm, WhatCannotBeIsRefusedByName) {
  for (std::string const name : {"", "1A", "A(x)", "A B", "A-B", "defined", "UNIMEM_KERNEL", "unimem_f32", "Ä"}) {
    expect_refused({.text = "x", .defines = {{name, "1"}}}, "defines", name);
  }
  for (std::string const value : {"1\n2", "1\r", "1\\", "1\\ \t"}) {
    expect_refused({.text = "x", .defines = {{"A", value}}}, "defines", value + " of A");
  }
  for (std::string const name : {"", "a\nb", "a\"b", "a>b", "a\\b", "/a.h", "./a.h", "../a.h", "a//b.h"}) {
    expect_refused({.text = "x", .headers = {{name, ""}}}, "headers", name);
  }
  expect_refused({.text = "x", .name = ""}, "name", "");
  expect_refused({.text = "x", .name = "a\nb"}, "name", "a\nb");
  TemporaryFolder const folder;
  put(folder / "file", "");
  expect_refused({.text = "x", .folders = {folder / "absent"}}, "folders", "absent");
  expect_refused({.text = "x", .folders = {folder / "file"}}, "folders", "file");
}

std::string literal(KernelConstant const& constant) {
  return constant.literal();
}

TEST(KernelConstants, AreLiteralsOfTheirTypes) {
  EXPECT_EQ(literal(16), "16");
  EXPECT_EQ(literal(-16), "(-16)");
  EXPECT_EQ(literal(16U), "16U");
  EXPECT_EQ(literal(std::int8_t{-1}), "(-1)");
  EXPECT_EQ(literal(std::uint16_t{7}), "7");
  EXPECT_EQ(literal(std::int64_t{1} << 40), "1099511627776L");
  EXPECT_EQ(literal(std::numeric_limits<std::uint64_t>::max()), "18446744073709551615UL");
  EXPECT_EQ(literal(std::numeric_limits<std::int32_t>::min()), "(-2147483647 - 1)");
  EXPECT_EQ(literal(std::numeric_limits<std::int64_t>::min()), "(-9223372036854775807L - 1)");
  EXPECT_EQ(literal(true), "1");
  EXPECT_EQ(literal(false), "0");
  EXPECT_EQ(literal(0.5F), "0.5F");
  EXPECT_EQ(literal(-2.0), "(-2.0)");
  EXPECT_EQ(literal(1e30F), "1e+30F");
  EXPECT_EQ(literal(0.1), "0.1");
  for (double const value : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THROW(static_cast<void>(KernelConstant(value)), InvalidArgument);
    EXPECT_THROW(static_cast<void>(KernelConstant(static_cast<float>(value))), InvalidArgument);
  }
}

TEST(SpecializedKernels, HaveConstantsInThePlaceOfMacros) {
  auto const kernel = Kernel("f").group({8}).source(
      {.text = "A B C\n#ifndef C\n#define C 1\n#endif\n", .defines = {{"A", "1"}, {"D", "4"}}});
  auto const special = kernel.specialize({{"A", 2.5F}, {"C", true}, {"D", 3}});
  EXPECT_EQ(special.name(), "f");
  EXPECT_EQ(special.group_size(), (GroupSize{8}));
  EXPECT_THAT(special.forms().source, StartsWith("#define A 2.5F\n#define C 1\n#define D 3\n#line 1\n"));
  EXPECT_THAT(special.specialize({{"B", 5U}}).forms().source,
              StartsWith("#define A 2.5F\n#define B 5U\n#define C 1\n"));
  EXPECT_THAT(kernel.forms().source, StartsWith("#define A 1\n#define D 4\n#line 1\n"));
}

TEST(SpecializedKernels, AreOneForTheSameConstants) {
  auto const kernel = Kernel("f").source("N M");
  auto const first = kernel.specialize({{"N", 0}, {"M", 1}});
  EXPECT_TRUE(first.is_same_as(kernel.specialize({{"M", 1}, {"N", 0}})));
  EXPECT_FALSE(first.is_same_as(kernel.specialize({{"M", 1}, {"N", 0U}})));
  EXPECT_FALSE(first.is_same_as(Kernel("f").source("N M").specialize({{"N", 0}, {"M", 1}})));
  for (int i = 0; i < 63; ++i) {
    static_cast<void>(kernel.specialize({{"N", i}}));
    EXPECT_TRUE(first.is_same_as(kernel.specialize({{"N", 0}, {"M", 1}})));
  }
  for (int i = 0; i < 64; ++i) static_cast<void>(kernel.specialize({{"N", i}}));
  EXPECT_FALSE(first.is_same_as(kernel.specialize({{"N", 0}, {"M", 1}}))) << "64 are kept";
}

TEST(SpecializedKernels, ConstantsThatCannotBeAreRefusedByName) {
  auto const kernel = Kernel("f").source("#define FIXED 1\n/* COMMENT */ N");
  for (auto const* const name : {"OTHER", "COMMENT", "FIXED", "define", "f(x)", "UNIMEM_ITEM_X", ""}) {
    try {
      static_cast<void>(kernel.specialize({{name, 1}}));
      ADD_FAILURE() << name << " was taken";
    } catch (InvalidArgument const& error) {
      EXPECT_EQ(error.argument, "constants");
      EXPECT_EQ(error.value, name);
    }
  }
  auto moved = kernel;
  auto const taken = std::move(moved);
  EXPECT_THROW(static_cast<void>(moved.specialize({{"N", 1}})), InvalidArgument);  // NOLINT(bugprone-use-after-move)
}

TEST(SpecializedKernels, ASourcesOwnValueIsNoDefaultUnlessItMakesRoom) {
  auto const taken = [](std::string const& text) {
    try {
      static_cast<void>(Kernel("f")
                            .source({.text = text, .headers = {{"once.h", "#pragma once\n#define N 4\n"}}})
                            .specialize({{"N", 9}}));
      return true;
    } catch (InvalidArgument const& error) {
      EXPECT_THAT(std::string(error.what()), ::testing::HasSubstr("#ifndef N"));
      return false;
    }
  };
  for (auto const* const text : {"#ifndef N\n#define N 4\n#endif\nN", "#if !defined(N)\n#define N 4\n#endif\nN",
                                 "#if !defined N\n#  define N 4\n#endif\nN", "#ifdef N\n#else\n#define N 4\n#endif\nN",
                                 "#ifndef GUARD\n#define GUARD\n#ifndef N\n#define N 4\n#endif\nN\n#endif",
                                 "#ifndef N\n#ifdef FAST\n#define N 4\n#else\n#define N 8\n#endif\n#endif\nN"}) {
    EXPECT_TRUE(taken(text)) << text;
  }
  for (auto const* const text : {"#define N 4\nN", "#ifndef GUARD\n#define GUARD\n#define N 4\n#endif\nN",
                                 "#include \"once.h\"\nN", "#ifdef FAST\n#define N 4\n#endif\nN",
                                 "#if 1\n#define N 4\n#endif\nN", "#ifndef N\n#else\n#define N 4\n#endif\nN",
                                 "#ifdef N\n#define N 4\n#endif\nN", "#undef N\n#ifndef N\n#define N 4\n#endif\nN"}) {
    EXPECT_FALSE(taken(text)) << text;
  }
}

TEST(SourceForm, BeginsBehindTheMarkOfUtf8) {
  std::string const mark = "\xEF\xBB\xBF";
  auto const kernel =
      Kernel("f").source({.text = mark + "#include \"a.h\"\nf", .headers = {{"a.h", mark + "#pragma once\na"}}});
  EXPECT_EQ(kernel.forms().source.find(mark), std::string::npos);
  EXPECT_THAT(kernel.forms().source, ::testing::HasSubstr("UNIMEM_ONCE_0"));
}

TEST(SpecializedKernels, RunTheSameHostForm) {
  auto const kernel = Kernel("add").host([](WorkItem i, std::span<float> x) { x[i.x] += 1; });
  UnifiedBuffer<float> x(10, BufferOptions{.device = &device("sim")});
  x.fill(1.0F);
  launch(kernel.specialize({{"ANY", 1}}), Range{10}, readwrite(x));
  EXPECT_THAT(x.host_view(), Each(2.0F));
}

TEST(SourceForm, AHostFormRunsWithoutWhatIsForTheSource) {
  auto const kernel = Kernel("add")
                          .source({.text = "#include \"absent.h\"", .defines = {{"STEP", "2"}}, .fast_math = true})
                          .host([](WorkItem i, std::span<float> x) { x[i.x] += 1; });
  for (auto const* const name : {"cpu", "sim"}) {
    UnifiedBuffer<float> x(10, BufferOptions{.device = &device(name)});
    x.fill(1.0F);
    launch(kernel, Range{10}, readwrite(x));
    EXPECT_THAT(x.host_view(), Each(2.0F));
  }
}

}  // namespace
}  // namespace unimem
