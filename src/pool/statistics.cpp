#include <unimem/pool/statistics.hpp>

#include <algorithm>
#include <bit>
#include <limits>

namespace unimem {
namespace {

constexpr std::size_t first_limit = 4096;
constexpr std::size_t first_limit_bits = 12;

}  // namespace

std::size_t size_class(std::size_t bytes) noexcept {
  if (bytes <= first_limit) return 0;
  auto const bits = static_cast<std::size_t>(std::bit_width(bytes - 1));  // the smallest power of two that holds it
  return std::min(bits - first_limit_bits, size_class_count - 1);
}

std::size_t size_class_limit(std::size_t index) noexcept {
  return index >= size_class_count - 1 ? std::numeric_limits<std::size_t>::max() : first_limit << index;
}

}  // namespace unimem
