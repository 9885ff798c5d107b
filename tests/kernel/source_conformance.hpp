#pragma once

#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/kernel/launch.hpp>

#include "kernel/on_device.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <ostream>
#include <string>
#include <vector>

namespace unimem {

/// A device that compiles the source form, and what its own language looks like.
struct SourceCase {
  std::string name;    ///< letters, digits and underscores
  std::string device;  ///< as `device()` takes it
  /// Kernel `twice(in, out, count)` over floats in the backend's language as it is.
  std::string twice;
};

inline std::ostream& operator<<(std::ostream& out, SourceCase const& device) {
  return out << device.name;
}

/// The last argument of INSTANTIATE_TEST_SUITE_P.
inline std::string source_case_name(::testing::TestParamInfo<SourceCase> const& info) {
  return info.param.name;
}

/// What the source form promises on every device that compiles it. The counts are those of a discrete device.
class SourceKernels : public ::testing::TestWithParam<SourceCase>, protected OnDevice {
 protected:
  SourceKernels() : OnDevice(GetParam().device) {}

  Kernel scale = Kernel("scale").source(R"(
    UNIMEM_KERNEL scale(UNIMEM_BUFFER(float, x), float a) { UNIMEM_DATA(float, x)[UNIMEM_ITEM_X] *= a; })");
};

TEST_P(SourceKernels, RunAndMoveOnlyWhatIsNeeded) {
  UnifiedBuffer<float> x(1000, here());
  x.fill(3.0F);
  for (int i = 0; i < 3; ++i) launch(scale, Range{1000}, readwrite(x), 2.0F);
  EXPECT_THAT(x.host_view(), ::testing::Each(24.0F));
  EXPECT_EQ(x.statistics().host_to_device_bytes, 4000U);
  EXPECT_EQ(x.statistics().host_to_device_copies, 1U);
  EXPECT_EQ(x.statistics().device_to_host_bytes, 4000U);
}

TEST_P(SourceKernels, PartsArriveAsObjectAndOffset) {
  UnifiedBuffer<float> x(100, here());
  x.fill(1.0F);
  launch(scale, Range{7}, readwrite(x, 13, 7), 5.0F);
  std::vector<float> expected(100, 1.0F);
  std::fill_n(expected.begin() + 13, 7, 5.0F);
  EXPECT_EQ(x.to_vector(), expected);
  EXPECT_EQ(x.statistics().host_to_device_bytes, 28U);
}

TEST_P(SourceKernels, APlainKernelOfTheLanguageRunsToo) {
  auto const plain = Kernel("twice").source(GetParam().twice);
  UnifiedBuffer<float> in(100, here()), out(100, here());
  std::iota(in.host().begin(), in.host().end(), 0.0F);
  launch(plain, Range{100}, read(in), write(out), std::uint64_t{100});
  for (std::size_t i = 0; i < 100; ++i) ASSERT_EQ(out.host_view()[i], 2 * static_cast<float>(i));
}

TEST_P(SourceKernels, ABuildErrorHasTheCompilersLog) {
  UnifiedBuffer<float> x(10, here());
  x.fill(1.0F);
  try {
    launch(Kernel("bad").source("UNIMEM_KERNEL bad(UNIMEM_BUFFER(float, x)) { undeclared_thing = 1; }"), Range{10},
           readwrite(x));
    FAIL() << "it built";
  } catch (KernelError const& error) {
    EXPECT_EQ(error.name, "bad");
    EXPECT_THAT(error.build_log, ::testing::HasSubstr("undeclared_thing"));
  }
  EXPECT_EQ(x.state(), BufferState::host_dirty);
  EXPECT_EQ(x.statistics().host_to_device_bytes, 0U);
}

TEST_P(SourceKernels, ABuildFailsAsTheFirstLaunchWould) {
  UnifiedBuffer<float> x(10, here());
  x.fill(1.0F);
  auto const error_of = [](auto const& call) {
    try {
      call();
    } catch (KernelError const& error) {
      return error;
    }
    return KernelError("none", "it was built");
  };
  Kernel const kernels[] = {
      Kernel("bad").source("UNIMEM_KERNEL bad(UNIMEM_BUFFER(float, x)) { undeclared_thing = 1; }"),
      Kernel("absent").source("UNIMEM_KERNEL present(UNIMEM_BUFFER(float, x)) {}"),
      Kernel("host_only").host([](WorkItem, std::span<float>) {}),
  };
  for (auto const& kernel : kernels) {
    auto const of_build = error_of([&] { kernel.build(on); });
    auto const of_launch = error_of([&] { launch(kernel, Range{10}, readwrite(x)); });
    EXPECT_EQ(of_build.name, kernel.name());
    EXPECT_EQ(of_build.name, of_launch.name);
    EXPECT_EQ(of_build.reason, of_launch.reason);
    EXPECT_FALSE(kernel.is_built(on));
    if (kernel.name() != "bad") continue;
    // Otherwise the logs may differ: drivers name files and programs of theirs there.
    for (auto const* const error : {&of_build, &of_launch}) {
      EXPECT_THAT(error->build_log, ::testing::HasSubstr("undeclared_thing"));
    }
  }
  EXPECT_EQ(x.state(), BufferState::host_dirty);
  EXPECT_EQ(x.statistics().host_to_device_bytes, 0U);
}

TEST_P(SourceKernels, AMissingEntryOrFormIsNamed) {
  UnifiedBuffer<float> x(10, here());
  x.fill(1.0F);
  try {
    launch(Kernel("absent").source("UNIMEM_KERNEL present(UNIMEM_BUFFER(float, x)) {}"), Range{10}, readwrite(x));
    FAIL() << "it ran";
  } catch (KernelError const& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("present"));
  }
  try {
    launch(Kernel("host_only").host([](WorkItem, std::span<float>) {}), Range{10}, readwrite(x));
    FAIL() << "it ran";
  } catch (KernelError const& error) {
    EXPECT_THAT(error.reason, ::testing::HasSubstr("source form"));
  }
  EXPECT_THROW(launch(scale, Range{10}, readwrite(x)), KernelError) << "an argument is missing";
  EXPECT_THAT(x.to_vector(), ::testing::Each(1.0F));
}

}  // namespace unimem
