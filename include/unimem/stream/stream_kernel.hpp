#pragma once

#include <unimem/core/export.hpp>
#include <unimem/stream/element_type.hpp>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace unimem {

class Kernel;  // <unimem/kernel/kernel.hpp>

namespace detail {
class ChunkWork;
}

/// What `stream_file` does with each chunk: reduce it to a few numbers, or map it to an output of the same size.
///
/// One small class instead of an overload per kernel, so that the ring that moves chunks knows nothing of what is
/// computed. Immutable and cheap to copy; may be used by several streams at once. Streaming through a moved-from one
/// throws InvalidArgument.
class UNIMEM_API StreamKernel {
 public:
  /// A kernel of one's own, as `mapping(kernel)` makes it; implicit, so that `stream_file(path, kernel)` reads as it
  /// should.
  StreamKernel(Kernel const& kernel);  // NOLINT(google-explicit-constructor)

  StreamKernel(StreamKernel const&) noexcept;
  StreamKernel(StreamKernel&&) noexcept;
  StreamKernel& operator=(StreamKernel const&) noexcept;
  StreamKernel& operator=(StreamKernel&&) noexcept;
  ~StreamKernel();

  /// "histogram", "statistics", "affine", or the name of the kernel given.
  [[nodiscard]] std::string_view name() const noexcept;

  /// The element it was made for; nothing when options or the file decide.
  [[nodiscard]] std::optional<ElementType> element() const noexcept { return element_; }

  /// Whether every chunk gives an output of its own size, which may be written to a file.
  [[nodiscard]] bool maps() const noexcept;

  /// For the library: the implementation.
  [[nodiscard]] std::shared_ptr<detail::ChunkWork const> const& work() const noexcept { return work_; }
  StreamKernel(std::shared_ptr<detail::ChunkWork const> work, std::optional<ElementType> element);

 private:
  std::shared_ptr<detail::ChunkWork const> work_;
  std::optional<ElementType> element_;
};

/// How often each of the 256 byte values occurs, whatever the elements are. Gives HistogramResult.
[[nodiscard]] UNIMEM_API StreamKernel histogram();

/// Count, minimum, maximum, mean and population standard deviation. Gives StatisticsResult.
///
/// Every element is taken as a double (64-bit integers are rounded to nearest; minimum and maximum stay exact), and
/// mean and deviation are those of a computation in doubles: in two passes over each strip of a chunk, exact for
/// integers up to 16 bits, the strips merged in file order by Chan's formula (Chan, Golub, LeVeque 1979). So neither
/// timing nor the device changes a digit, and large offsets cost none. The length of the chunks may, in the last ones.
/// A NaN anywhere makes all four NaN, as in NumPy. Without an element, the options or the file decide.
[[nodiscard]] UNIMEM_API StreamKernel statistics(std::optional<ElementType> element = std::nullopt);

/// y = scale · x + offset, computed in double (product and sum rounded each) and rounded once to the element: to
/// nearest, ties to even, integers saturating at their limits; 64-bit integers enter as the nearest double. A NaN stays
/// NaN. Gives MappingResult. Throws InvalidArgument unless both numbers are finite.
[[nodiscard]] UNIMEM_API StreamKernel affine(std::optional<ElementType> element, double scale, double offset);

/// A kernel `(in, out, count)` of one's own, with one work item per element: `in` and `out` hold `count` elements (a
/// 64-bit number), and item `i.x < count` writes `out[i.x]`. It needs the form of the device it runs on
/// (docs/kernels.md), and sees each chunk by itself. Gives MappingResult. Throws InvalidArgument if the kernel has no
/// form at all.
[[nodiscard]] UNIMEM_API StreamKernel mapping(Kernel const& kernel, std::optional<ElementType> element = std::nullopt);

/// The most elements that a reducing kernel's result may have.
inline constexpr std::size_t most_reduced = std::size_t{1} << 16;

/// A kernel `(in, result, count, lanes, first)` of one's own that accumulates: `result` holds `lanes` elements, zero at
/// first, which stay on the device from chunk to chunk, and there is one work item for each. `in` holds `count`
/// elements of the input, the first of which is number `first` in all of it; all three are 64-bit numbers. Item `i.x`
/// adds what it makes of `in[i.x]`, `in[i.x + lanes]`, … to `result[i.x]`, so that no two write one element, and the
/// caller adds up the lanes. Chunks come in the input's order. Gives ReductionResult.
///
/// `result`, `count`: what the result's elements are, and how many, 1 to `most_reduced`. Throws InvalidArgument for
/// another count, and if the kernel has no form at all.
[[nodiscard]] UNIMEM_API StreamKernel reducing(Kernel const& kernel, ElementType result, std::size_t count,
                                               std::optional<ElementType> element = std::nullopt);

}  // namespace unimem
