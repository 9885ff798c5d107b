#include <unimem/core/error.hpp>
#include <unimem/kernel/launch.hpp>
#include <unimem/stream/stream_kernel.hpp>

#include "stream/chunk_work.hpp"
#include "stream/element_source.hpp"
#include "stream/known_runs.hpp"
#include "stream/statistics_loop.hpp"
#include "stream/strips.hpp"

#include <cmath>
#include <concepts>
#include <limits>

namespace unimem {
namespace {

using detail::Extremes;
using detail::Moments;
using detail::strip_bytes;
using detail::strip_count;

// The two bodies of statistics_loop.hpp, addition for addition. A loop adds to one array alone: Intel's vectorizer
// computes half of the squares where one loop adds to two of them by `i % 8` (docs/drivers.md).
constexpr std::string_view exact_moments = R"(
  unimem_i64 sum = 0;
  unimem_u64 squares = 0;
  for (unimem_u64 i = 0; i < count; ++i) {
    const unimem_i64 x = at[i];
    sum += x;
    squares += (unimem_u64)(x * x);
  }
  const unimem_u64 spread = count * squares - (unimem_u64)sum * (unimem_u64)sum;
  const unimem_f64 mean = (unimem_f64)sum / (unimem_f64)count;
  const unimem_f64 distances = (unimem_f64)spread / (unimem_f64)count;
)";
constexpr std::string_view rounded_moments = R"(
  unimem_f64 lane[8] = {0, 0, 0, 0, 0, 0, 0, 0};
  for (unimem_u64 i = 0; i < count; ++i) lane[i % 8] += (unimem_f64)at[i];
  unimem_f64 mean = $LANES / (unimem_f64)count;
  unimem_f64 rest[8] = {0, 0, 0, 0, 0, 0, 0, 0};
  for (int j = 0; j < 8; ++j) lane[j] = 0;
  for (unimem_u64 i = 0; i < count; ++i) rest[i % 8] += (unimem_f64)at[i] - mean;
  for (unimem_u64 i = 0; i < count; ++i) {
    const unimem_f64 distance = (unimem_f64)at[i] - mean;
    lane[i % 8] += distance * distance;
  }
  unimem_f64 distances = $LANES;
  for (int j = 0; j < 8; ++j) lane[j] = rest[j];
  const unimem_f64 missed = $LANES / (unimem_f64)count;
  if (missed - missed == 0) {
    mean = mean + missed;
    distances = distances - missed * missed * (unimem_f64)count;
  }
)";
constexpr std::string_view lanes_added =
    "(((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7])))";
constexpr std::string_view statistics_source = R"(
UNIMEM_KERNEL unimem_statistics_$E(UNIMEM_CONST_BUFFER($T, elements), UNIMEM_BUFFER(unimem_f64, moments),
                                   UNIMEM_BUFFER($T, extremes), unimem_u64 size, unimem_u64 strip) {
  const unimem_u64 item = UNIMEM_ITEM_X;
  UNIMEM_GLOBAL const $T* at = UNIMEM_DATA(const $T, elements) + item * strip;
  const unimem_u64 left = size - item * strip;
  const unimem_u64 count = left < strip ? left : strip;
  $T least = at[0];
  $T most = at[0];
  for (unimem_u64 i = 1; i < count; ++i) {
    const $T x = at[i];
    least = x < least$OR_NAN ? x : least;
    most = x > most$OR_NAN ? x : most;
  }
$MOMENTS
  UNIMEM_DATA(unimem_f64, moments)[2 * item] = mean;
  UNIMEM_DATA(unimem_f64, moments)[2 * item + 1] = distances;
  UNIMEM_DATA($T, extremes)[2 * item] = least;
  UNIMEM_DATA($T, extremes)[2 * item + 1] = most;
}
)";

/// A run over `wanted` elements, or what there is room for, in strips of `strip`.
template <class T>
detail::KnownRun known_statistics(std::size_t room, std::size_t wanted, std::size_t strip) {
  auto const items_of = [strip](std::size_t count) { return (count + strip - 1) / strip; };
  auto const bytes_of = [&](std::size_t count) {
    return count * sizeof(T) + items_of(count) * (sizeof(Moments) + sizeof(Extremes<T>));
  };
  auto const count = detail::elements_within(room, wanted, bytes_of);
  return {items_of(count), bytes_of(count), [=, items = items_of(count)] {
            using Known = detail::KnownArgument;
            auto const elements = detail::known_elements<T>(count, strip);
            return std::vector{Known::memory(Known::Role::input, std::span{elements}), Known::output<double>(2 * items),
                               Known::output<T>(2 * items), Known::scalar(std::uint64_t{count}),
                               Known::scalar(std::uint64_t{strip})};
          }};
}

/// Merges the strips of a stream in file order.
template <class T>
class StatisticsRun final : public detail::ChunkRun {
 public:
  explicit StatisticsRun(Kernel const& kernel) : kernel_(kernel) {}

  [[nodiscard]] static Kernel const& kernel_for(ElementType element) {
    static Kernel const kernel = [element] {
      auto source = detail::with_replaced(std::string(statistics_source), "MOMENTS",
                                          detail::sums_exactly<T> ? exact_moments : rounded_moments);
      source = detail::with_replaced(std::move(source), "LANES", lanes_added);
      source = detail::with_replaced(std::move(source), "OR_NAN", std::floating_point<T> ? " || x != x" : "");
      source = detail::with_replaced(std::move(source), "E", to_string(element));
      source = detail::with_replaced(std::move(source), "T", detail::source_type(element));
      return Kernel("unimem_statistics_" + std::string(to_string(element)))
          .source(std::move(source))
          .host([](WorkItem item, std::span<const T> elements, std::span<double> moments, std::span<T> extremes,
                   std::uint64_t size, std::uint64_t strip) {
            auto const begin = item.x * strip;
            auto const own = elements.subspan(begin, std::min(strip, size - begin));
            auto const [mean, squares] = detail::moments_of(own);
            auto const [least, most] = detail::extremes_of(own);
            moments[2 * item.x] = mean;
            moments[2 * item.x + 1] = squares;
            extremes[2 * item.x] = least;
            extremes[2 * item.x + 1] = most;
          });
    }();
    return kernel;
  }

  [[nodiscard]] std::size_t result_bytes(std::size_t bytes) const noexcept override {
    return strip_count(bytes) * (sizeof(Moments) + sizeof(Extremes<T>));
  }

  Event launch(Queue& queue, UnifiedBuffer<std::byte>& chunk, UnifiedBuffer<std::byte>& results,
               std::size_t bytes) override {
    auto const strips = strip_count(bytes);
    // All moments, then all extremes: both aligned, and one range to bring back.
    return unimem::launch(queue, kernel_, Range{strips}, read(chunk, 0, bytes),
                          write(results, 0, strips * sizeof(Moments)),
                          write(results, strips * sizeof(Moments), strips * sizeof(Extremes<T>)),
                          std::uint64_t{bytes / sizeof(T)}, std::uint64_t{strip_bytes / sizeof(T)});
  }

  void combine(std::span<const std::byte> results, std::size_t bytes) override {
    auto const strips = strip_count(bytes);
    auto const* const moments = reinterpret_cast<Moments const*>(results.data());
    auto const* const extremes = reinterpret_cast<Extremes<T> const*>(results.data() + strips * sizeof(Moments));
    for (std::size_t i = 0; i < strips; ++i) {
      merge(detail::bytes_of_strip(bytes, i) / sizeof(T), moments[i], extremes[i]);
    }
  }

  /// Strips as long as they ever are, eight and a bit, one of each kind of elements; and many items with short ones.
  [[nodiscard]] std::optional<detail::KnownAnswer> known_answer(std::size_t room) const override {
    constexpr auto strip = strip_bytes / sizeof(T);
    return detail::KnownAnswer{kernel_,
                               {known_statistics<T>(room, 8 * strip + strip / 3, strip),
                                known_statistics<T>(room, (detail::known_items - 1) * 67 + 5, 67)}};
  }

  [[nodiscard]] decltype(StreamResult::result) finish(std::uint64_t elements) const override {
    constexpr auto nothing = std::numeric_limits<double>::quiet_NaN();
    if (elements == 0) return StatisticsResult{0, nothing, nothing, nothing, nothing};
    // In NumPy a NaN anywhere shows in all four; our extremes have it, and the mean too.
    return StatisticsResult{count_, detail::widest(extremes_.min), detail::widest(extremes_.max), moments_.mean,
                            std::sqrt(moments_.squares / static_cast<double>(count_))};
  }

 private:
  void merge(std::uint64_t count, Moments const& moments, Extremes<T> const& extremes) {
    if (count_ == 0) {
      count_ = count;
      moments_ = moments;
      extremes_ = extremes;
      return;
    }
    auto const here = static_cast<double>(count_);
    auto const there = static_cast<double>(count);
    auto const all = static_cast<double>(count_ + count);
    // Equal means are no distance apart even if both are infinite.
    auto const distance = moments.mean == moments_.mean ? 0.0 : moments.mean - moments_.mean;
    moments_.mean += distance * (there / all);
    moments_.squares += moments.squares + distance * distance * (here * there / all);
    count_ += count;
    auto const least = extremes.min;
    auto const most = extremes.max;
    if (least < extremes_.min || least != least) extremes_.min = least;
    if (most > extremes_.max || most != most) extremes_.max = most;
  }

  Kernel const& kernel_;
  std::uint64_t count_ = 0;
  Moments moments_;
  Extremes<T> extremes_;
};

class StatisticsWork final : public detail::ChunkWork {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "statistics"; }
  [[nodiscard]] bool maps() const noexcept override { return false; }
  [[nodiscard]] std::unique_ptr<detail::ChunkRun> start(Device& device, ElementType element,
                                                        bool /*keep_input*/) const override {
    if (!device.info().doubles) {
      throw UnsupportedOperation("statistics", std::string(device.id()), "its kernels have no 64-bit floating point");
    }
    return detail::with_element_type(element, [&]<class T>(std::type_identity<T>) -> std::unique_ptr<detail::ChunkRun> {
      auto const& kernel = StatisticsRun<T>::kernel_for(element);
      static_cast<void>(kernel.program(device));
      return std::make_unique<StatisticsRun<T>>(kernel);
    });
  }
};

}  // namespace

StreamKernel statistics(std::optional<ElementType> element) {
  static auto const work = std::make_shared<StatisticsWork const>();
  return {work, element};
}

}  // namespace unimem
