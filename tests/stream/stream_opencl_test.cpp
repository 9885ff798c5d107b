#include <unimem/core/error.hpp>

#include "stream/known_answer_conformance.hpp"
#include "stream/stream_conformance.hpp"

#include "stream/known_runs.hpp"
#include "stream/statistics_loop.hpp"

#include <algorithm>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unimem {
namespace {

/// The first OpenCL device, if there is one, as it is and with the host's memory for its own, if it can.
std::vector<StreamCase> opencl_devices() {
  std::vector<StreamCase> cases;
  for (Device& found : devices()) {
    if (found.backend() != Backend::opencl) continue;
    cases.push_back({"opencl", [&found]() -> Device& { return found; }});
    try {
      auto& shared = device(std::string(found.id()) + ",zero_copy=1");
      cases.push_back({"opencl_shared", [&shared]() -> Device& { return shared; }});
    } catch (UnsupportedOperation const&) {  // NOLINT(bugprone-empty-catch): most discrete devices cannot
    }
    break;
  }
  return cases;
}

TEST(OpenClStreams, HaveADeviceToRunOn) {
  if (!opencl_devices().empty()) return;
  for (auto const& missing : unavailable_backends()) {
    if (missing.backend == Backend::opencl) GTEST_SKIP() << missing.reason;
  }
  FAIL() << "OpenCL is neither there nor missing";
}

INSTANTIATE_TEST_SUITE_P(Devices, StreamConformance, ::testing::ValuesIn(opencl_devices()), stream_case_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(StreamConformance);
INSTANTIATE_TEST_SUITE_P(Devices, KnownAnswerConformance, ::testing::ValuesIn(opencl_devices()), stream_case_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(KnownAnswerConformance);

/// What a known driver compiles wrongly, given to the check on whatever driver is here. Empty: it compiled it right.
std::string found_wrong(Kernel const& kernel, std::vector<detail::KnownRun> runs) {
  auto& device = opencl_devices().front().device();
  detail::KnownAnswers answers{{}};
  MemoryManager manager;
  try {
    answers.check({kernel, std::move(runs)}, device, manager, Location::device);
    return {};
  } catch (KernelError const& error) {
    return error.what();
  }
}

/// The compiler of the first device.
std::string compiler_here(Kernel const& kernel) {
  return std::string(kernel.program(opencl_devices().front().device())->compiler());
}

bool has_avx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") != 0;
#else
  return false;
#endif
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  auto const at = text.find(from);
  if (at == std::string::npos) throw std::logic_error("statistics have changed: " + std::string(from));
  return text.replace(at, from.size(), to);
}

// What `statistics` was until Intel's runtime was found to lose half of its squares (docs/drivers.md).
TEST(KnownFaults, TheLoopThatIntelMiscompilesIsFound) {
  if (opencl_devices().empty()) GTEST_SKIP() << "no OpenCL device";
  auto& device = opencl_devices().front().device();
  if (!device.info().doubles) GTEST_SKIP() << without_doubles;
  auto const answer =
      statistics(ElementType::f32).work()->start(device, ElementType::f32, false)->known_answer(1 << 30);
  auto source = replaced(answer->kernel.forms().source,
                         "  for (unimem_u64 i = 0; i < count; ++i) rest[i % 8] += (unimem_f64)at[i] - mean;\n", "");
  source = replaced(std::move(source), "    lane[i % 8] += distance * distance;",
                    "    rest[i % 8] += distance;\n    lane[i % 8] += distance * distance;");
  auto const kernel = Kernel(std::string(answer->kernel.name()))
                          .source(std::move(source))
                          .host([](WorkItem item, std::span<const float> elements, std::span<double> moments,
                                   std::span<float> extremes, std::uint64_t size, std::uint64_t strip) {
                            auto const begin = item.x * strip;
                            auto const own = elements.subspan(begin, std::min(strip, size - begin));
                            auto const [mean, squares] = detail::moments_of(own);
                            auto const [least, most] = detail::extremes_of(own);
                            moments[2 * item.x] = mean;
                            moments[2 * item.x + 1] = squares;
                            extremes[2 * item.x] = least;
                            extremes[2 * item.x + 1] = most;
                          });
  auto const wrong = found_wrong(kernel, answer->runs);
  if (compiler_here(kernel).find("Intel") == std::string::npos) {
    EXPECT_EQ(wrong, "");
    GTEST_SKIP() << "its loop is compiled right by " << compiler_here(kernel);
  }
  if (wrong.empty() && !has_avx512())
    GTEST_SKIP() << "it loses them in AVX-512 code, which this processor does not run";
  EXPECT_THAT(wrong, ::testing::HasSubstr("unimem_statistics_f32"));
  EXPECT_THAT(wrong, ::testing::HasSubstr("Intel"));
}

TEST(KnownFaults, ALoopThatRusticlEndsEarlyIsFound) {
  if (opencl_devices().empty()) GTEST_SKIP() << "no OpenCL device";
  auto const kernel = Kernel("summing")
                          .source(R"(
UNIMEM_KERNEL summing(UNIMEM_CONST_BUFFER(unimem_u8, bytes), UNIMEM_BUFFER(unimem_u32, sums), unimem_u64 size,
                      unimem_u64 strip) {
  const unimem_u64 begin = UNIMEM_ITEM_X * strip;
  unimem_u32 sum = 0;
  for (unimem_u64 i = begin; i < begin + strip && i < size; ++i) sum += UNIMEM_DATA(const unimem_u8, bytes)[i];
  UNIMEM_DATA(unimem_u32, sums)[UNIMEM_ITEM_X] = sum;
})")
                          .host([](WorkItem item, std::span<const std::uint8_t> bytes, std::span<std::uint32_t> sums,
                                   std::uint64_t size, std::uint64_t strip) {
                            std::uint32_t sum = 0;
                            auto const begin = item.x * strip;
                            for (auto i = begin; i < begin + strip && i < size; ++i) sum += bytes[i];
                            sums[item.x] = sum;
                          });
  auto const of_strips_of = [](std::size_t strip) {
    auto const size = 2 * strip + strip / 3;
    return std::vector{detail::KnownRun{
        3, size + 3 * sizeof(std::uint32_t), [=] {
          using Known = detail::KnownArgument;
          auto const bytes = detail::known_elements<std::uint8_t>(size, strip);
          return std::vector{Known::memory(Known::Role::input, std::span{bytes}), Known::output<std::uint32_t>(3),
                             Known::scalar(std::uint64_t{size}), Known::scalar(std::uint64_t{strip})};
        }}};
  };
  EXPECT_EQ(found_wrong(kernel, of_strips_of(60'000)), "");
  auto const wrong = found_wrong(kernel, of_strips_of(70'000));
  if (compiler_here(kernel).find("rusticl") == std::string::npos) {
    EXPECT_EQ(wrong, "");
    GTEST_SKIP() << "loops of any length are run to their end by " << compiler_here(kernel);
  }
  EXPECT_THAT(wrong, ::testing::HasSubstr("kernel 'summing'"));
  EXPECT_THAT(wrong, ::testing::HasSubstr("rusticl"));
}

}  // namespace
}  // namespace unimem
