#include <unimem/kernel/launch.hpp>
#include <unimem/stream/stream_kernel.hpp>

#include "stream/chunk_work.hpp"
#include "stream/histogram_loop.hpp"
#include "stream/known_runs.hpp"

#include <algorithm>
#include <cmath>

namespace unimem {
namespace {

constexpr std::size_t values = 256;

/// Sums do not depend on where strips end, so each form has the length it likes: the host's loop pays for a large table
/// at every strip, a device wants many items.
constexpr std::size_t host_strip_bytes = std::size_t{512} << 10;
constexpr std::size_t source_strip_bytes = std::size_t{128} << 10;

Kernel const& histogram_kernel() {
  // Private tables for each item: items never meet, so no atomic is needed and the result is exact in any order.
  static Kernel const kernel =
      Kernel("unimem_histogram")
          .source(R"(
UNIMEM_KERNEL unimem_histogram(UNIMEM_CONST_BUFFER(unimem_u8, bytes), UNIMEM_BUFFER(unimem_u32, counts),
                               unimem_u64 size, unimem_u64 strip) {
  const unimem_u64 item = UNIMEM_ITEM_X;
  UNIMEM_GLOBAL const unimem_u8* at = UNIMEM_DATA(const unimem_u8, bytes) + item * strip;
  const unimem_u64 left = size - item * strip;
  const unimem_u64 count = left < strip ? left : strip;
  unimem_u32 table[8][256];
  for (int j = 0; j < 8; ++j) {
    for (int value = 0; value < 256; ++value) table[j][value] = 0;
  }
  unimem_u64 i = 0;
  for (; i + 8 <= count; i += 8) {
    const unimem_u64 word = *(UNIMEM_GLOBAL const unimem_u64*)(at + i);
    ++table[0][word & 0xFF];
    ++table[1][word >> 8 & 0xFF];
    ++table[2][word >> 16 & 0xFF];
    ++table[3][word >> 24 & 0xFF];
    ++table[4][word >> 32 & 0xFF];
    ++table[5][word >> 40 & 0xFF];
    ++table[6][word >> 48 & 0xFF];
    ++table[7][word >> 56];
  }
  for (; i < count; ++i) ++table[0][at[i]];
  UNIMEM_GLOBAL unimem_u32* to = UNIMEM_DATA(unimem_u32, counts) + item * 256;
  for (int value = 0; value < 256; ++value) {
    to[value] = table[0][value] + table[1][value] + table[2][value] + table[3][value] +
                table[4][value] + table[5][value] + table[6][value] + table[7][value];
  }
}
)")
          .host([](WorkItem item, std::span<const std::uint8_t> bytes, std::span<std::uint32_t> counts,
                   std::uint64_t size, std::uint64_t strip) {
            auto const begin = item.x * strip;
            auto const count = std::min(strip, size - begin);
            detail::count_bytes(bytes.subspan(begin, count), counts.subspan(item.x * values, values));
          });
  return kernel;
}

/// A run over `wanted` bytes, or what there is room for, in strips of `strip`, a multiple of eight.
detail::KnownRun known_histogram(std::size_t room, std::size_t wanted, std::size_t strip) {
  auto const items_of = [strip](std::size_t size) { return (size + strip - 1) / strip; };
  auto const bytes_of = [&](std::size_t size) { return size + items_of(size) * values * sizeof(std::uint32_t); };
  auto const size = detail::elements_within(room, wanted, bytes_of);
  return {items_of(size), bytes_of(size), [=, items = items_of(size)] {
            using Known = detail::KnownArgument;
            auto const bytes = detail::known_elements<std::uint8_t>(size, strip);
            return std::vector{Known::memory(Known::Role::input, std::span{bytes}),
                               Known::output<std::uint32_t>(items * values), Known::scalar(std::uint64_t{size}),
                               Known::scalar(std::uint64_t{strip})};
          }};
}

class HistogramRun final : public detail::ChunkRun {
 public:
  explicit HistogramRun(std::size_t strip_bytes) : strip_bytes_(strip_bytes) {}

  [[nodiscard]] std::size_t result_bytes(std::size_t bytes) const noexcept override {
    return strips_of(bytes) * values * sizeof(std::uint32_t);
  }

  Event launch(Queue& queue, UnifiedBuffer<std::byte>& chunk, UnifiedBuffer<std::byte>& results,
               std::size_t bytes) override {
    return unimem::launch(queue, histogram_kernel(), Range{strips_of(bytes)}, read(chunk, 0, bytes),
                          write(results, 0, result_bytes(bytes)), std::uint64_t{bytes}, std::uint64_t{strip_bytes_});
  }

  void combine(std::span<const std::byte> results, std::size_t /*bytes*/) override {
    auto const* counts = reinterpret_cast<std::uint32_t const*>(results.data());
    for (std::size_t i = 0; i < results.size() / sizeof(std::uint32_t); ++i) total_.counts[i % values] += counts[i];
  }

  /// Strips as long as they ever are, two and a bit; and many items with strips that end within a word.
  [[nodiscard]] std::optional<detail::KnownAnswer> known_answer(std::size_t room) const override {
    return detail::KnownAnswer{histogram_kernel(),
                               {known_histogram(room, 2 * strip_bytes_ + strip_bytes_ / 3, strip_bytes_),
                                known_histogram(room, (detail::known_items - 1) * 200 + 77, 200)}};
  }

  [[nodiscard]] decltype(StreamResult::result) finish(std::uint64_t /*elements*/) const override {
    auto result = total_;
    double bytes = 0;
    for (auto const count : result.counts) bytes += static_cast<double>(count);
    for (auto const count : result.counts) {
      if (count == 0) continue;
      auto const share = static_cast<double>(count) / bytes;
      result.entropy_bits_per_byte -= share * std::log2(share);
    }
    return result;
  }

 private:
  [[nodiscard]] std::size_t strips_of(std::size_t bytes) const noexcept {
    return (bytes + strip_bytes_ - 1) / strip_bytes_;
  }

  std::size_t strip_bytes_;
  HistogramResult total_;
};

class HistogramWork final : public detail::ChunkWork {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "histogram"; }
  [[nodiscard]] bool maps() const noexcept override { return false; }
  [[nodiscard]] std::unique_ptr<detail::ChunkRun> start(Device& device, ElementType /*element*/,
                                                        bool /*keep_input*/) const override {
    static_cast<void>(histogram_kernel().program(device));
    return std::make_unique<HistogramRun>(device.info().runs_host_form ? host_strip_bytes : source_strip_bytes);
  }
};

}  // namespace

StreamKernel histogram() {
  static auto const work = std::make_shared<HistogramWork const>();
  return {work, std::nullopt};
}

}  // namespace unimem
