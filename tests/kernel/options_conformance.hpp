#pragma once

#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/kernel/launch.hpp>

#include "device/temporary_folder.hpp"
#include "kernel/on_device.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace unimem {

/// What a KernelSource says besides its text, on the device of that id.
class KernelOptions : public ::testing::TestWithParam<std::string>, protected OnDevice {
 protected:
  KernelOptions() : OnDevice(GetParam()) {}

  /// What `kernel(x)` makes of ten ones.
  [[nodiscard]] std::vector<float> result_of(Kernel const& kernel) {
    UnifiedBuffer<float> x(10, here());
    x.fill(1.0F);
    launch(kernel, Range{10}, readwrite(x));
    return x.to_vector();
  }

  /// The log of a kernel that is refused before anything moved.
  [[nodiscard]] std::string log_of(KernelSource const& source) {
    UnifiedBuffer<float> x(10, here());
    x.fill(1.0F);
    try {
      launch(Kernel("apply").source(source), Range{10}, readwrite(x)).wait();
    } catch (KernelError const& error) {
      EXPECT_EQ(error.name, "apply");
      EXPECT_EQ(x.statistics().host_to_device_copies, 0U);
      return error.build_log;
    }
    ADD_FAILURE() << "it was built";
    return {};
  }

  KernelSource const source{.text = R"cl(
    #include "steps.h"
    UNIMEM_KERNEL apply(UNIMEM_BUFFER(REAL, x)) { UNIMEM_DATA(REAL, x)[UNIMEM_ITEM_X] = step(UNIMEM_ITEM_X); })cl",
                            .name = "apply.cl",
                            .defines = {{"REAL", "unimem_f32"}, {"FACTOR", "3"}},
                            .headers = {{"steps.h", R"cl(
    #ifndef STEPS
    #define STEPS
    UNIMEM_FUNCTION REAL step(unimem_u64 i) { return (REAL)(FACTOR * i); }
    #include "steps.h"
    #endif)cl"}}};
};

TEST_P(KernelOptions, MacrosAndHeadersReachTheCompiler) {
  auto const kernel = Kernel("apply").source(source);
  EXPECT_THAT(result_of(kernel), ::testing::ElementsAre(0, 3, 6, 9, 12, 15, 18, 21, 24, 27));
}

TEST_P(KernelOptions, KernelsThatDifferByAMacroAreKeptApart) {
  auto other = source;
  other.defines["FACTOR"] = "(1 + 4)";
  EXPECT_EQ(result_of(Kernel("apply").source(source))[9], 27.0F);
  EXPECT_EQ(result_of(Kernel("apply").source(other))[9], 45.0F);
  EXPECT_EQ(result_of(Kernel("apply").source(source))[9], 27.0F);
}

TEST_P(KernelOptions, ConstantsMakeAKernelOfTheirOwn) {
  auto const kernel = Kernel("apply").source(R"cl(
    #ifndef TILE
    #define TILE 4
    #endif
    #if WIDE
    typedef unimem_f32 real;
    #else
    typedef float real;
    #endif
    UNIMEM_KERNEL apply(UNIMEM_BUFFER(float, x)) {
      real part[TILE];
      for (int i = 0; i < TILE; ++i) part[i] = START - i;
      UNIMEM_DATA(float, x)[UNIMEM_ITEM_X] = part[TILE - 1];
    })cl");
  for (int const tile : {8, 16}) {
    KernelConstants const constants{{"TILE", tile}, {"START", -0.5F}, {"WIDE", tile == 8}};
    auto const special = kernel.specialize(constants);
    EXPECT_FALSE(special.is_built(on));
    special.build(on);
    EXPECT_TRUE(kernel.specialize(constants).is_built(on));
    EXPECT_THAT(result_of(special), ::testing::Each(-0.5F - static_cast<float>(tile - 1)));
  }
  EXPECT_THAT(result_of(kernel.specialize({{"START", 2147483647L}})), ::testing::Each(2147483647.0F - 3));
}

TEST_P(KernelOptions, SmallUnsignedConstantsAreComputedWithAsIntegers) {
  auto const kernel = Kernel("apply").source(
      "UNIMEM_KERNEL apply(UNIMEM_BUFFER(float, x)) { UNIMEM_DATA(float, x)[UNIMEM_ITEM_X] = (2 - N) / 2; }");
  EXPECT_THAT(result_of(kernel.specialize({{"N", std::uint8_t{4}}})), ::testing::Each(-1.0F));
  EXPECT_THAT(result_of(kernel.specialize({{"N", std::uint16_t{4}}})), ::testing::Each(-1.0F));
  EXPECT_THAT(result_of(kernel.specialize({{"N", 4U}})), ::testing::Each(2147483648.0F));
}

TEST_P(KernelOptions, AMarkOfUtf8IsNoPartOfAText) {
  std::string const text =
      "\xEF\xBB\xBFUNIMEM_KERNEL apply(UNIMEM_BUFFER(float, x)) { UNIMEM_DATA(float, x)[UNIMEM_ITEM_X] = 7; }";
  EXPECT_THAT(result_of(Kernel("apply").source(text)), ::testing::Each(7.0F));
  EXPECT_THAT(result_of(Kernel("apply").source(KernelSource{.text = text})), ::testing::Each(7.0F));
}

TEST_P(KernelOptions, FilesOfAFolderAreReadAtOnce) {
  auto on_disk = source;
  on_disk.headers.clear();
  Kernel kernel("apply");
  {
    TemporaryFolder const folder;
    std::filesystem::create_directory(folder / "deep");
    std::ofstream(folder / "deep/one.h") << "#pragma once\n#include \"two.h\"\n";
    std::ofstream(folder / "deep/two.h") << "#pragma once\n#include \"one.h\"\n"
                                         << "UNIMEM_FUNCTION REAL step(unimem_u64 i) { return 7; }\n";
    std::ofstream(folder / "steps.h") << "#include \"deep/one.h\"\n#include <deep/two.h>\n";
    on_disk.folders = {folder.path()};
    kernel.source(on_disk);
  }
  EXPECT_THAT(result_of(kernel), ::testing::Each(7.0F));
}

TEST_P(KernelOptions, LogsNameFilesAndLinesAsTheyAre) {
  if (on.info().name.find("Oclgrind") != std::string::npos) GTEST_SKIP() << "Oclgrind's logs follow no #line";
  auto wrong = source;
  wrong.headers["steps.h"] = "\n\nUNIMEM_FUNCTION REAL step(unimem_u64 i) { return undeclared_thing; }";
  EXPECT_THAT(log_of(wrong), ::testing::ContainsRegex("steps\\.h[:(\"]+,? ?(line )?3"));
  wrong = source;
  wrong.text += "\nUNIMEM_FUNCTION void more() { undeclared_thing = 1; }";
  EXPECT_THAT(log_of(wrong), ::testing::ContainsRegex("apply\\.cl[:(\"]+,? ?(line )?4"));
}

TEST_P(KernelOptions, WrongIncludesAreTheCompilersErrorWithTheChain) {
  auto wrong = source;
  wrong.headers["steps.h"] = "\n#include \"absent.h\"";
  EXPECT_THAT(log_of(wrong), ::testing::HasSubstr("\"absent.h\" is among neither headers nor folders: steps.h:2, "
                                                  "included from apply.cl:2"));
  wrong.headers["steps.h"] = "#include \"steps.h\"";
  EXPECT_THAT(log_of(wrong), ::testing::HasSubstr("\"steps.h\" includes itself: steps.h:1, included from steps.h:1"));
  wrong = source;
  wrong.text = "#ifdef NEVER\n#include \"absent.h\"\n#endif\n" + source.text;
  EXPECT_EQ(result_of(Kernel("apply").source(wrong))[9], 27.0F);
}

TEST_P(KernelOptions, AMacroThatTheCompilerRefusesIsInItsLog) {
  auto wrong = source;
  wrong.defines["FACTOR"] = "no_such_factor";
  EXPECT_THAT(log_of(wrong), ::testing::HasSubstr("no_such_factor"));
}

TEST_P(KernelOptions, FastMathematicsIsOfTheKernelThatAsksForIt) {
  KernelSource asking{.text = R"cl(UNIMEM_KERNEL apply(UNIMEM_BUFFER(float, x)) {
    #ifdef UNIMEM_FAST_MATH
      UNIMEM_DATA(float, x)[UNIMEM_ITEM_X] = 2;
    #else
      UNIMEM_DATA(float, x)[UNIMEM_ITEM_X] = 3;
    #endif
    })cl"};
  auto const exact = Kernel("apply").source(asking);
  asking.fast_math = true;
  auto const fast = Kernel("apply").source(asking);
  EXPECT_THAT(result_of(exact), ::testing::Each(3.0F));
  EXPECT_THAT(result_of(fast), ::testing::Each(2.0F));
  EXPECT_THAT(result_of(exact), ::testing::Each(3.0F));
}

}  // namespace unimem
