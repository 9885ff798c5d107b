#include <unimem/buffer/shape.hpp>
#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/error.hpp>
#include <unimem/core/size.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace unimem {

Shape::Shape(std::vector<std::size_t> const& extents) {
  std::ranges::copy(extents, make_room(extents.size()).begin());
}

bool operator==(Shape const& a, Shape const& b) noexcept {
  return std::ranges::equal(a.extents(), b.extents());
}

std::size_t Shape::count() const {
  // A zero anywhere makes the count zero, whatever the other extents would multiply to.
  auto const all_of_them = extents();
  if (std::ranges::find(all_of_them, std::size_t{0}) != all_of_them.end()) return 0;
  std::size_t count = 1;
  for (auto const extent : all_of_them) count = checked_multiply(count, extent, "shape", "elements");
  return count;
}

namespace detail {

void throw_negative_extent(std::intmax_t value) {
  throw InvalidArgument("count", fmt::format("{}", value), "at least 0");
}

void check_dimension(std::size_t dimension, std::size_t rank) {
  if (dimension < rank) return;
  throw InvalidArgument("dimension", fmt::format("{}", dimension),
                        rank == 0 ? "one of a shape that has some: a scalar has none" : fmt::format("below {}", rank));
}

ByteRange checked_range(std::size_t offset, std::size_t count, std::size_t size, std::size_t element_bytes) {
  if (count == all) {
    check_window(offset, 0, size);
    count = size - offset;
  }
  check_window(offset, count, size);
  return {offset * element_bytes, (offset + count) * element_bytes};
}

void throw_size_mismatch(char const* what, std::size_t expected, std::size_t actual) {
  throw SizeMismatch(what, expected, actual);
}

void check_elements(ByteRange range, std::size_t element_bytes, std::size_t alignment) {
  if (range.size() % element_bytes != 0) {
    throw SizeMismatch(fmt::format("{} bytes as elements of {} bytes", range.size(), element_bytes),
                       (range.size() + element_bytes - 1) / element_bytes * element_bytes, range.size(), "bytes");
  }
  if (range.begin % alignment != 0) {
    throw InvalidArgument("offset", fmt::format("{} bytes", range.begin),
                          fmt::format("a multiple of the element's alignment, {}", alignment));
  }
}

void check_covers(std::size_t count, std::size_t element_bytes, BufferCore const* core) {
  if (core == nullptr) throw_empty_handle("buffer");
  auto const bytes = checked_multiply(count, element_bytes, "count");
  auto const held = core->size_bytes();
  if (bytes != held) throw SizeMismatch("a shape and the buffer it is for", held, bytes, "bytes");
}

void check_element(std::size_t index, std::size_t size) {
  if (index >= size) throw InvalidArgument("index", fmt::format("{}", index), fmt::format("below {}", size));
}

void check_index(std::span<const std::size_t> index, std::span<const std::size_t> extents) {
  for (std::size_t i = 0; i < index.size(); ++i) {
    if (index[i] < extents[i]) continue;
    throw InvalidArgument(fmt::format("index {}", i), fmt::format("{}", index[i]), fmt::format("below {}", extents[i]));
  }
}

void check_block(std::span<const std::size_t> begin, std::span<const std::size_t> count,
                 std::span<const std::size_t> extents) {
  for (std::size_t i = 0; i < begin.size(); ++i) {
    if (begin[i] <= extents[i] && count[i] <= extents[i] - begin[i]) continue;
    throw InvalidArgument(fmt::format("block in dimension {}", i), fmt::format("{} from {} on", count[i], begin[i]),
                          fmt::format("within {}", extents[i]));
  }
}

void check_extents(std::span<const std::size_t> extents, std::size_t size) {
  std::size_t count = 1;
  for (auto const extent : extents) count = checked_multiply(count, extent, "extents", "elements");
  if (count != size) throw_size_mismatch("view", size, count);
}

void throw_outgrown(char const* what, ByteRange range, std::size_t bytes) {
  throw InvalidArgument(what, fmt::format("bytes [{}, {})", range.begin, range.end),
                        fmt::format("within the buffer's {} bytes, to which it was resized", bytes));
}

void note_elements(BufferOptions& options, std::string_view dtype, std::size_t element_bytes,
                   std::span<const std::size_t> shape) {
  options.elements = std::make_shared<BufferElements const>(
      BufferElements{std::string(dtype), element_bytes, {shape.begin(), shape.end()}});
}

std::string describe(std::string_view element, Shape const& shape, BufferCore const& core) {
  return fmt::format("UnifiedBuffer(shape=({}), element={} bytes, state={}{}{})", fmt::join(shape.extents(), ", "),
                     element, to_string(core.state()), core.name().empty() ? "" : ", name=", core.name());
}

}  // namespace detail
}  // namespace unimem
