#pragma once

#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/kernel/kernel.hpp>
#include <unimem/stream/stream_file.hpp>

#include "core/check_level.hpp"
#include "stream/chunk_work.hpp"
#include "stream/scratch_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <thread>

namespace unimem {

/// A device to stream through.
struct StreamCase {
  std::string name;  ///< letters, digits and underscores
  std::function<Device&()> device;
};

inline std::ostream& operator<<(std::ostream& out, StreamCase const& device) {
  return out << device.name;
}

/// The last argument of INSTANTIATE_TEST_SUITE_P.
inline std::string stream_case_name(::testing::TestParamInfo<StreamCase> const& info) {
  return info.param.name;
}

/// What stream_file promises on every device, with results computed here in other ways.
class StreamConformance : public ::testing::TestWithParam<StreamCase> {
 protected:
  /// The first stream on a device runs its kernel on what the answer is known of (KnownAnswerConformance), which the
  /// device counts; what is counted here comes after that.
  void SetUp() override {
    static std::set<Device*> tried;
    if (device.info().runs_host_form || !tried.insert(&device).second) return;
    auto const path = folder.write("tried", std::string(sizeof(double), '\1'));
    stream_file(path, histogram(), options(sizeof(double)));
    for (auto const element : all_element_types) {
      if (!device.info().doubles) break;
      stream_file(path, statistics(element), options(sizeof(double)));
      stream_file(path, affine(element, 2, 1), options(sizeof(double)));
    }
    std::filesystem::remove(path);
  }

  [[nodiscard]] StreamOptions options(std::size_t chunk_bytes) const {
    StreamOptions result;
    result.chunk_bytes = chunk_bytes;
    result.device = &device;
    return result;
  }

  /// Streams, and holds the counts of what moved against the device's own.
  StreamResult counted(std::filesystem::path const& path, StreamKernel const& kernel, StreamOptions const& with) {
    auto const before = device.transfers();
    auto const result = stream_file(path, kernel, with);
    auto const after = device.transfers();
    EXPECT_EQ(after.host_to_device_bytes - before.host_to_device_bytes, result.host_to_device_bytes);
    EXPECT_EQ(after.device_to_host_bytes - before.device_to_host_bytes, result.device_to_host_bytes);
    EXPECT_EQ(result.host_to_device_bytes, discrete ? result.bytes : 0U);
    // Under UNIMEM_CHECK=2 host memory of each buffer has pages of its own, one more than it needs.
    bool const in_pages = detail::check_level() > 1 && device.reaches_host_memory();
    EXPECT_LE(result.peak_device_bytes, in_pages ? with.memory_limit / 4 * 5 : with.memory_limit);
    EXPECT_EQ(result.peak_device_bytes, result.pool.peak_reserved_bytes);
    EXPECT_EQ(result.device, device.id());
    EXPECT_GT(result.seconds, 0.0);
    return result;
  }

  Device& device = GetParam().device();
  bool discrete = !device.shares_storage_with_host();
  ScratchFolder folder;
};

/// Why tests of `statistics` and `affine` are skipped: both compute in doubles.
inline constexpr auto without_doubles = "the kernels of this device have no 64-bit floating point";

/// Random elements of any bit pattern, some of them where arithmetic is hard.
template <class T>
std::vector<T> hard_elements(std::size_t count, unsigned seed) {
  using Limits = std::numeric_limits<T>;
  std::mt19937_64 random{seed};
  std::vector<T> edges{Limits::min(), Limits::max(), Limits::lowest(), T{0}, T{1}, static_cast<T>(Limits::max() - 1)};
  if constexpr (std::floating_point<T>) {
    edges.insert(edges.end(),
                 {Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN(), Limits::denorm_min(), T{-0.0}});
  }
  std::vector<T> elements(count);
  for (auto& element : elements) {
    auto const bits = random();
    std::memcpy(&element, &bits, sizeof element);
    if (bits % 7 == 0) element = edges[(bits >> 8) % edges.size()];
    if (bits % 7 == 1) element = static_cast<T>(static_cast<int>((bits >> 8) % 100));
  }
  return elements;
}

/// Random elements whose statistics are finite numbers.
template <class T>
std::vector<T> tame_elements(std::size_t count, unsigned seed) {
  std::mt19937_64 random{seed};
  std::vector<T> elements(count);
  for (auto& element : elements) {
    if constexpr (std::floating_point<T>) {
      element = static_cast<T>(1e6 + std::uniform_real_distribution<double>(-3.0, 5.0)(random));
    } else {
      element = static_cast<T>(random());
    }
  }
  return elements;
}

/// y = scale · x + offset as the documentation says it, step by step.
template <class T>
T affine_by_the_book(T x, double scale, double offset) {
  volatile double const product = scale * static_cast<double>(x);
  volatile double const sum = product + offset;
  if constexpr (std::floating_point<T>) {
    return static_cast<T>(sum);
  } else {
    auto const rounded = std::nearbyint(static_cast<long double>(sum));
    if (rounded > static_cast<long double>(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
    if (rounded < static_cast<long double>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
    return static_cast<T>(rounded);
  }
}

template <class T>
bool same_element(T a, T b) {
  if constexpr (std::floating_point<T>) {
    if (std::isnan(a) && std::isnan(b)) return true;
  }
  return std::memcmp(&a, &b, sizeof a) == 0;
}

template <class T>
std::size_t differing_elements(std::vector<T> const& a, std::vector<T> const& b) {
  if (a.size() != b.size()) return std::max(a.size(), b.size());
  std::size_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) count += same_element(a[i], b[i]) ? 0U : 1U;
  return count;
}

TEST_P(StreamConformance, TheHistogramCountsEveryByteWhateverTheChunks) {
  for (std::size_t const size : {1U, 4'095U, 65'536U, 65'537U, 3U * 65'536U, 700'001U}) {
    auto const bytes = mixed_bytes(size, static_cast<unsigned>(size));
    std::array<std::uint64_t, 256> expected{};
    for (auto const byte : bytes) ++expected[byte];
    auto const path = folder.write("input", bytes);
    for (std::size_t const buffers : {1U, 2U, 3U, 8U}) {
      SCOPED_TRACE(::testing::Message() << size << " bytes, " << buffers << " buffers");
      auto with = options(65'536);
      with.buffers = buffers;
      auto const result = counted(path, histogram(), with);
      auto const chunks = (size + 65'535) / 65'536;
      EXPECT_EQ(std::get<HistogramResult>(result.result).counts, expected);
      EXPECT_EQ(result.bytes, size);
      EXPECT_EQ(result.chunks, chunks);
      EXPECT_EQ(result.chunk_bytes, std::min<std::size_t>(size, 65'536));
      EXPECT_EQ(result.buffers, std::min(buffers, chunks));
      EXPECT_EQ(result.kernel, "histogram");
    }
  }
}

TEST_P(StreamConformance, TheEntropyIsShannons) {
  auto const entropy = [&](std::string_view contents) {
    auto const result = counted(folder.write("input", contents), histogram(), options(4'096));
    return std::get<HistogramResult>(result.result).entropy_bits_per_byte;
  };
  EXPECT_EQ(entropy(std::string(10'000, 'x')), 0.0);
  EXPECT_NEAR(entropy("abababab"), 1.0, 1e-15);
  EXPECT_NEAR(entropy("aaab"), 0.25 * 2 + 0.75 * std::log2(4.0 / 3.0), 1e-15);
  std::string every_byte;
  for (int i = 0; i < 25'600; ++i) every_byte += static_cast<char>(i);
  EXPECT_NEAR(entropy(every_byte), 8.0, 1e-12);
}

TEST_P(StreamConformance, StatisticsEqualAStraightComputation) {
  if (!device.info().doubles) GTEST_SKIP() << without_doubles;
  for (auto const element : all_element_types) {
    SCOPED_TRACE(to_string(element));
    detail::with_element_type(element, [&]<class T>(std::type_identity<T>) {
      auto const elements = tame_elements<T>(200'003, 7);
      auto const result = counted(folder.write("input", elements), statistics(element), options(256 * 1'024));
      auto const& found = std::get<StatisticsResult>(result.result);

      long double sum = 0;
      for (auto const x : elements) sum += static_cast<long double>(x);
      auto const mean = sum / static_cast<long double>(elements.size());
      long double squares = 0;
      for (auto const x : elements) {
        squares += (static_cast<long double>(x) - mean) * (static_cast<long double>(x) - mean);
      }
      auto const deviation = std::sqrt(squares / static_cast<long double>(elements.size()));
      auto const [least, most] = std::ranges::minmax(elements);

      EXPECT_EQ(found.count, elements.size());
      std::visit([&, low = least](auto min) { EXPECT_TRUE(min == static_cast<decltype(min)>(low)); }, found.min);
      std::visit([&, high = most](auto max) { EXPECT_TRUE(max == static_cast<decltype(max)>(high)); }, found.max);
      auto const scale = std::abs(static_cast<double>(mean)) + static_cast<double>(deviation);
      EXPECT_NEAR(found.mean, static_cast<double>(mean), 1e-13 * scale);
      EXPECT_NEAR(found.standard_deviation, static_cast<double>(deviation), 1e-10 * static_cast<double>(deviation));

      // Every addition is made in the same order on every device, so the digits are the same too.
      auto on_cpu = options(256 * 1'024);
      on_cpu.device = &unimem::device("cpu");
      auto const other = stream_file(folder / "input", statistics(element), on_cpu);
      auto const& reference = std::get<StatisticsResult>(other.result);
      EXPECT_EQ(found.mean, reference.mean);
      EXPECT_EQ(found.standard_deviation, reference.standard_deviation);
      EXPECT_EQ(found.min, reference.min);
      EXPECT_EQ(found.max, reference.max);
    });
  }
}

TEST_P(StreamConformance, ANanAnywhereShowsInAllStatistics) {
  if (!device.info().doubles) GTEST_SKIP() << without_doubles;
  for (std::size_t const at : {0U, 17U, 40'000U, 99'999U}) {
    auto elements = tame_elements<float>(100'000, 3);
    elements[at] = std::numeric_limits<float>::quiet_NaN();
    auto const result = counted(folder.write("input", elements), statistics(ElementType::f32), options(64 * 1'024));
    auto const& found = std::get<StatisticsResult>(result.result);
    EXPECT_TRUE(std::isnan(std::get<double>(found.min)));
    EXPECT_TRUE(std::isnan(std::get<double>(found.max)));
    EXPECT_TRUE(std::isnan(found.mean));
    EXPECT_TRUE(std::isnan(found.standard_deviation));
  }
}

TEST_P(StreamConformance, AffineRoundsOnceAndSaturatesForEveryElement) {
  if (!device.info().doubles) GTEST_SKIP() << without_doubles;
  struct {
    double scale, offset;
  } const cases[] = {{1, 0}, {-1.5, 0.5}, {0.5, 0.25}, {1e300, -1e300}, {0, -7.5}, {3.0000001, 1e-3}, {1e-3, 2.5}};
  for (auto const element : all_element_types) {
    detail::with_element_type(element, [&]<class T>(std::type_identity<T>) {
      auto const elements = hard_elements<T>(20'001, 11);
      auto const path = folder.write("input", elements);
      for (auto const [scale, offset] : cases) {
        SCOPED_TRACE(::testing::Message() << to_string(element) << " * " << scale << " + " << offset);
        auto with = options(24 * 1'024);
        with.output = folder / "output";
        auto const result = counted(path, affine(element, scale, offset), with);
        std::vector<T> expected;
        for (auto const x : elements) expected.push_back(affine_by_the_book(x, scale, offset));
        EXPECT_EQ(differing_elements(folder.read_elements<T>("output"), expected), 0U);
        EXPECT_EQ(std::get<MappingResult>(result.result).elements, elements.size());
        EXPECT_EQ(result.device_to_host_bytes, discrete ? result.bytes : 0U);
      }
    });
  }
  EXPECT_EQ(folder.names(), (std::set<std::string>{"input", "output"}));
}

/// A kernel of one's own, that shows whether `in`, `out` and `count` are what they should be.
inline Kernel reversing_kernel() {
  return Kernel("reversing")
      .source(R"(
UNIMEM_KERNEL reversing(UNIMEM_CONST_BUFFER(unimem_u32, in), UNIMEM_BUFFER(unimem_u32, out), unimem_u64 count) {
  const unimem_u64 i = UNIMEM_ITEM_X;
  UNIMEM_DATA(unimem_u32, out)[i] = UNIMEM_DATA(const unimem_u32, in)[count - 1 - i] + 1;
})")
      .host([](WorkItem i, std::span<const std::uint32_t> in, std::span<std::uint32_t> out, std::uint64_t count) {
        out[i.x] = in[count - 1 - i.x] + 1;
      });
}

TEST_P(StreamConformance, AKernelOfOnesOwnMapsEachChunk) {
  constexpr std::size_t chunk_elements = 10'000;
  auto const elements = hard_elements<std::uint32_t>(3 * chunk_elements + 1'234, 5);
  std::vector<std::uint32_t> expected(elements.size());
  for (std::size_t i = 0; i < elements.size(); ++i) {
    auto const begin = i / chunk_elements * chunk_elements;
    auto const end = std::min(begin + chunk_elements, elements.size());
    expected[i] = elements[begin + (end - 1 - i)] + 1;
  }
  auto const path = folder.write("input", elements);
  for (std::size_t const buffers : {1U, 2U, 3U, 4U}) {
    auto with = options(chunk_elements * sizeof(std::uint32_t));
    with.buffers = buffers;
    with.element = ElementType::u32;
    with.output = folder / "output";
    auto const result = counted(path, reversing_kernel(), with);
    EXPECT_EQ(folder.read_elements<std::uint32_t>("output"), expected);
    EXPECT_EQ(result.kernel, "reversing");
    EXPECT_EQ(std::get<MappingResult>(result.result).elements, elements.size());
    EXPECT_EQ(result.device_to_host_bytes, discrete ? result.bytes : 0U);
  }
}

TEST_P(StreamConformance, WithoutAnOutputNothingIsBroughtBack) {
  if (!device.info().doubles) GTEST_SKIP() << without_doubles;
  auto const path = folder.write("input", hard_elements<std::uint32_t>(25'000, 5));
  auto with = options(40'000);
  with.element = ElementType::u32;
  for (auto const& kernel : {StreamKernel(reversing_kernel()), affine(ElementType::u32, 2, 1)}) {
    auto const result = counted(path, kernel, with);
    EXPECT_EQ(std::get<MappingResult>(result.result).elements, 25'000U);
    EXPECT_EQ(result.device_to_host_bytes, 0U);
  }
  EXPECT_EQ(folder.names(), (std::set<std::string>{"input"}));
}

TEST_P(StreamConformance, EveryElementGoesThroughEveryKernel) {
  if (!device.info().doubles) GTEST_SKIP() << without_doubles;
  for (auto const element : all_element_types) {
    SCOPED_TRACE(to_string(element));
    detail::with_element_type(element, [&]<class T>(std::type_identity<T>) {
      std::vector<T> const elements{T{3}, T{7}, T{5}, T{9}, T{1}, T{0}, T{2}, T{11}, T{4}, T{8}, T{6}};
      auto const path = folder.write("input", elements);
      auto with = options(5 * sizeof(T));
      auto const numbers = counted(path, statistics(element), with);
      auto const& found = std::get<StatisticsResult>(numbers.result);
      std::visit([](auto min) { EXPECT_EQ(min, 0); }, found.min);
      std::visit([](auto max) { EXPECT_EQ(max, 11); }, found.max);
      EXPECT_DOUBLE_EQ(found.mean, 56.0 / 11);
      EXPECT_DOUBLE_EQ(found.standard_deviation, std::sqrt(406.0 / 11 - 56.0 * 56.0 / 121));

      auto const counts = counted(path, histogram(), with);
      EXPECT_EQ(std::accumulate(std::get<HistogramResult>(counts.result).counts.begin(),
                                std::get<HistogramResult>(counts.result).counts.end(), std::uint64_t{0}),
                11 * sizeof(T));

      with.output = folder / "output";
      counted(path, affine(element, 2, 1), with);
      EXPECT_EQ(folder.read_elements<T>("output"),
                (std::vector<T>{T{7}, T{15}, T{11}, T{19}, T{3}, T{1}, T{5}, T{23}, T{9}, T{17}, T{13}}));
    });
  }
}

TEST_P(StreamConformance, AnEmptyFileHasResultsToo) {
  if (!device.info().doubles) GTEST_SKIP() << without_doubles;
  auto const path = folder.write("input", std::string_view());
  auto with = options(4'096);
  auto const counts = counted(path, histogram(), with);
  EXPECT_THAT(std::get<HistogramResult>(counts.result).counts, ::testing::Each(0U));
  EXPECT_EQ(std::get<HistogramResult>(counts.result).entropy_bits_per_byte, 0.0);
  EXPECT_EQ(counts.chunks, 0U);
  EXPECT_EQ(counts.bytes, 0U);
  EXPECT_EQ(counts.peak_device_bytes, 0U);

  auto const numbers = counted(path, statistics(ElementType::i64), with);
  auto const& found = std::get<StatisticsResult>(numbers.result);
  EXPECT_EQ(found.count, 0U);
  EXPECT_TRUE(std::isnan(std::get<double>(found.min)));
  EXPECT_TRUE(std::isnan(std::get<double>(found.max)));
  EXPECT_TRUE(std::isnan(found.mean));
  EXPECT_TRUE(std::isnan(found.standard_deviation));

  with.output = folder / "output";
  auto const mapped = counted(path, affine(ElementType::f64, 2, 1), with);
  EXPECT_EQ(std::get<MappingResult>(mapped.result).elements, 0U);
  EXPECT_EQ(folder.read("output"), "");
}

TEST_P(StreamConformance, MoreThanTheLimitStreamsThroughIt) {
  auto const bytes = mixed_bytes(5'000'001, 4);
  std::array<std::uint64_t, 256> expected{};
  for (auto const byte : bytes) ++expected[byte];
  auto const path = folder.write("input", bytes);
  constexpr std::size_t chunk = std::size_t{1} << 20;
  for (std::size_t const fit : {1U, 2U, 3U}) {
    auto with = options(chunk);
    with.buffers = 3;
    with.memory_limit = fit * (chunk + 64 * 1'024);
    auto const result = counted(path, histogram(), with);
    EXPECT_EQ(std::get<HistogramResult>(result.result).counts, expected);
    EXPECT_EQ(result.buffers, fit);
    EXPECT_EQ(result.chunk_bytes, chunk);
  }
}

TEST_P(StreamConformance, AManagerKeepsMemoryForTheNextFile) {
  auto const path = folder.write("input", mixed_bytes(400'000, 4));
  MemoryManager manager;
  auto with = options(100'000);
  with.manager = &manager;
  auto const first = counted(path, histogram(), with);
  auto const second = counted(path, histogram(), with);
  EXPECT_EQ(second.pool.reserved_bytes, first.pool.reserved_bytes);
  EXPECT_EQ(second.pool.pool_misses, first.pool.pool_misses);
  EXPECT_GT(second.pool.pool_hits, first.pool.pool_hits);
  EXPECT_EQ(second.pool.active_bytes, 0U);
}

TEST_P(StreamConformance, AffineNeedsOneChunk) {
  if (!device.info().doubles) GTEST_SKIP() << without_doubles;
  auto const elements = hard_elements<std::int16_t>(300'000, 4);
  auto with = options(256 * 1'024);
  with.memory_limit = with.chunk_bytes;
  with.output = folder / "output";
  auto const result = counted(folder.write("input", elements), affine(ElementType::i16, 1, 1), with);
  EXPECT_EQ(result.buffers, 1U);
  std::vector<std::int16_t> expected;
  for (auto const x : elements) expected.push_back(affine_by_the_book(x, 1, 1));
  EXPECT_EQ(folder.read_elements<std::int16_t>("output"), expected);
}

TEST_P(StreamConformance, ALimitBelowOneChunkIsRefused) {
  if (!device.info().doubles) GTEST_SKIP() << without_doubles;
  auto const path = folder.write("input", mixed_bytes(3'000'000, 4));
  auto const before = device.transfers();
  auto with = options(std::size_t{1} << 20);
  with.memory_limit = with.chunk_bytes - 1;
  with.output = folder / "output";
  bool told = false;
  with.progress = [&](std::uint64_t, std::uint64_t) { told = true; };
  try {
    stream_file(path, affine(ElementType::u8, 1, 0), with);
    ADD_FAILURE() << "it went through";
  } catch (OutOfMemory const& error) {
    EXPECT_EQ(error.limit(), with.memory_limit);
    EXPECT_GE(error.requested(), with.chunk_bytes);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("below one chunk"));
  }
  EXPECT_FALSE(told);
  EXPECT_EQ(device.transfers().host_to_device_bytes, before.host_to_device_bytes);
  EXPECT_EQ(folder.names(), (std::set<std::string>{"input"}));
}

TEST_P(StreamConformance, NpyKeepsItsShape) {
  if (!device.info().doubles) GTEST_SKIP() << without_doubles;
  auto const elements = hard_elements<float>(6'000, 8);
  std::string npy("\x93NUMPY\x01\0\x76\0", 10);
  npy += "{'descr': '<f4', 'fortran_order': False, 'shape': (20, 300), }";
  npy.resize(127, ' ');
  npy += '\n';
  npy.append(reinterpret_cast<char const*>(elements.data()), elements.size() * sizeof(float));
  auto const path = folder.write("input.npy", npy);

  auto with = options(4'096);
  with.output = folder / "output.npy";
  auto const result = counted(path, affine({}, 2, 1), with);
  EXPECT_EQ(result.element, ElementType::f32);
  EXPECT_EQ(result.bytes, 24'000U);
  auto const written = folder.read("output.npy");
  EXPECT_EQ(written.substr(0, 128), npy.substr(0, 128));
  std::vector<float> mapped(6'000);
  ASSERT_EQ(written.size(), npy.size());
  std::memcpy(mapped.data(), written.data() + 128, 24'000);
  std::vector<float> expected;
  for (auto const x : elements) expected.push_back(affine_by_the_book(x, 2, 1));
  EXPECT_EQ(differing_elements(mapped, expected), 0U);

  // Raw out: the elements alone.
  with.output = folder / "output";
  counted(path, affine({}, 2, 1), with);
  EXPECT_EQ(folder.read("output"), written.substr(128));
}

TEST_P(StreamConformance, UnalignedElementsAreStreamed) {
  if (!device.info().doubles) GTEST_SKIP() << without_doubles;
  auto const elements = tame_elements<double>(5'000, 8);
  std::string npy("\x93NUMPY\x01\0\x45\0", 10);
  npy += "{'descr': '<f8', 'fortran_order': False, 'shape': (5000,), }";
  npy.resize(78, ' ');
  npy += '\n';  // 79 bytes: the data begins at an odd address
  npy.append(reinterpret_cast<char const*>(elements.data()), elements.size() * sizeof(double));
  auto const result = counted(folder.write("input.npy", npy), statistics(), options(8'000));
  EXPECT_EQ(std::get<double>(std::get<StatisticsResult>(result.result).max), *std::ranges::max_element(elements));
  EXPECT_EQ(result.chunks, 5U);
}

TEST_P(StreamConformance, ProgressIsToldOnTheCallingThread) {
  if (!device.info().doubles) GTEST_SKIP() << without_doubles;
  auto const path = folder.write("input", mixed_bytes(350'000, 6));
  auto with = options(100'000);
  with.output = folder / "output";
  for (bool const writes : {false, true}) {
    std::vector<std::uint64_t> seen;
    with.progress = [&, caller = std::this_thread::get_id()](std::uint64_t done, std::uint64_t total) {
      EXPECT_EQ(std::this_thread::get_id(), caller);
      EXPECT_EQ(total, 350'000U);
      seen.push_back(done);
    };
    if (!writes) with.output.clear();
    stream_file(path, affine(ElementType::u8, 1, 1), with);
    ASSERT_GE(seen.size(), 2U);
    EXPECT_EQ(seen.front(), 0U);
    EXPECT_EQ(seen.back(), 350'000U);
    EXPECT_TRUE(std::ranges::is_sorted(seen, std::less_equal{}) || std::ranges::adjacent_find(seen) == seen.end());
    with.output = folder / "output";
  }
}

TEST_P(StreamConformance, SeveralStreamsMayRunAtOnce) {
  std::vector<std::array<std::uint64_t, 256>> expected(4);
  for (unsigned i = 0; i < 4; ++i) {
    auto const bytes = mixed_bytes(300'000 + i, i);
    for (auto const byte : bytes) ++expected[i][byte];
    folder.write(std::to_string(i), bytes);
  }
  std::vector<HistogramResult> found(4);
  {
    std::vector<std::jthread> threads;
    for (unsigned i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        auto const result = stream_file(folder / std::to_string(i), histogram(), options(50'000));
        found[i] = std::get<HistogramResult>(result.result);
      });
    }
  }
  for (unsigned i = 0; i < 4; ++i) EXPECT_EQ(found[i].counts, expected[i]) << i;
}

TEST_P(StreamConformance, AKernelWithoutTheNeededFormIsRefused) {
  auto const path = folder.write("input", mixed_bytes(1'000, 6));
  auto const kernel =
      device.info().runs_host_form
          ? Kernel("formless").source("UNIMEM_KERNEL formless() {}")
          : Kernel("formless").host([](WorkItem, std::span<const std::byte>, std::span<std::byte>, std::uint64_t) {});
  auto with = options(1'000);
  with.output = folder / "output";
  EXPECT_THROW(stream_file(path, kernel, with), KernelError);
  EXPECT_EQ(folder.names(), (std::set<std::string>{"input"}));
}

}  // namespace unimem
