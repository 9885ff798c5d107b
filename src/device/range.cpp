#include <unimem/core/error.hpp>
#include <unimem/core/size.hpp>
#include <unimem/device/program.hpp>

#include <fmt/format.h>

namespace unimem {

std::size_t Range::items() const {
  if (y == 1 && z == 1) return x;
  return checked_multiply(checked_multiply(x, y, "range", "items"), z, "range", "items");
}

std::size_t GroupSize::items() const {
  return checked_multiply(checked_multiply(x, y, "group", "items"), z, "group", "items");
}

Range Range::group(GroupSize size) const {
  auto const given = [&] { return fmt::format("{} × {} × {}", size.x, size.y, size.z); };
  if (size.x == 0 || size.y == 0 || size.z == 0)
    throw InvalidArgument("group", given(), "at least 1 in each dimension");
  if (x % size.x != 0 || y % size.y != 0 || z % size.z != 0) {
    throw InvalidArgument("range", fmt::format("{} × {} × {}", x, y, z), fmt::format("whole groups of {}", given()));
  }
  return {x, y, z, size};
}

}  // namespace unimem
