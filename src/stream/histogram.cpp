#include <unimem/kernel/launch.hpp>
#include <unimem/stream/stream_kernel.hpp>

#include "stream/chunk_work.hpp"
#include "stream/histogram_loop.hpp"
#include "stream/strips.hpp"

#include <cmath>

namespace unimem {
namespace {

using detail::strip_bytes;
using detail::strip_count;

constexpr std::size_t values = 256;

Kernel const& histogram_kernel() {
  // One private table per item: items never meet, so no atomic is needed and the result is exact in any order.
  static Kernel const kernel =
      Kernel("unimem_histogram")
          .source(R"(
UNIMEM_KERNEL unimem_histogram(UNIMEM_CONST_BUFFER(unimem_u8, bytes), UNIMEM_BUFFER(unimem_u32, counts),
                               unimem_u64 size, unimem_u64 strip) {
  const unimem_u64 item = UNIMEM_ITEM_X;
  UNIMEM_GLOBAL const unimem_u8* at = UNIMEM_DATA(const unimem_u8, bytes) + item * strip;
  const unimem_u64 left = size - item * strip;
  const unimem_u64 count = left < strip ? left : strip;
  unimem_u32 even[256];
  unimem_u32 odd[256];
  for (int value = 0; value < 256; ++value) even[value] = odd[value] = 0;
  unimem_u64 i = 0;
  for (; i + 4 <= count; i += 4) {
    const unimem_u8 a = at[i], b = at[i + 1], c = at[i + 2], d = at[i + 3];
    ++even[a];
    ++odd[b];
    ++even[c];
    ++odd[d];
  }
  for (; i < count; ++i) ++even[at[i]];
  UNIMEM_GLOBAL unimem_u32* to = UNIMEM_DATA(unimem_u32, counts) + item * 256;
  for (int value = 0; value < 256; ++value) to[value] = even[value] + odd[value];
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

class HistogramRun final : public detail::ChunkRun {
 public:
  [[nodiscard]] std::size_t result_bytes(std::size_t bytes) const noexcept override {
    return strip_count(bytes) * values * sizeof(std::uint32_t);
  }

  Event launch(Queue& queue, UnifiedBuffer<std::byte>& chunk, UnifiedBuffer<std::byte>& results,
               std::size_t bytes) override {
    return unimem::launch(queue, histogram_kernel(), Range{strip_count(bytes)}, read(chunk, 0, bytes),
                          write(results, 0, result_bytes(bytes)), std::uint64_t{bytes}, std::uint64_t{strip_bytes});
  }

  void combine(std::span<const std::byte> results, std::size_t /*bytes*/) override {
    auto const* counts = reinterpret_cast<std::uint32_t const*>(results.data());
    for (std::size_t i = 0; i < results.size() / sizeof(std::uint32_t); ++i) total_.counts[i % values] += counts[i];
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
  HistogramResult total_;
};

class HistogramWork final : public detail::ChunkWork {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "histogram"; }
  [[nodiscard]] bool maps() const noexcept override { return false; }
  [[nodiscard]] std::unique_ptr<detail::ChunkRun> start(Device& device, ElementType /*element*/,
                                                        bool /*keep_input*/) const override {
    static_cast<void>(histogram_kernel().program(device));
    return std::make_unique<HistogramRun>();
  }
};

}  // namespace

StreamKernel histogram() {
  static auto const work = std::make_shared<HistogramWork const>();
  return {work, std::nullopt};
}

}  // namespace unimem
