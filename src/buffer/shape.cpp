#include <unimem/buffer/shape.hpp>
#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/error.hpp>
#include <unimem/core/size.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace unimem {

std::size_t Shape::count() const {
  // A zero anywhere makes the count zero, whatever the other extents would multiply to.
  if (std::ranges::find(extents_, std::size_t{0}) != extents_.end()) return 0;
  std::size_t count = 1;
  for (auto const extent : extents_) count = checked_multiply(count, extent, "shape");
  return count;
}

namespace detail {

void throw_negative_extent(std::intmax_t value) {
  throw InvalidArgument("count", fmt::format("{}", value), "at least 0");
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

std::string describe(std::string_view element, Shape const& shape, BufferCore const& core) {
  return fmt::format("UnifiedBuffer(shape=({}), element={} bytes, state={}{}{})", fmt::join(shape.extents(), ", "),
                     element, to_string(core.state()), core.name().empty() ? "" : ", name=", core.name());
}

}  // namespace detail
}  // namespace unimem
