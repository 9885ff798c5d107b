#include <unimem/core/error.hpp>
#include <unimem/share/buffer_ref.hpp>

#include "fuzz/target.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace unimem::fuzz {
namespace {

/// Bit by bit, without a table.
std::uint32_t checksum(std::span<std::byte const> bytes) {
  std::uint32_t value = ~std::uint32_t{0};
  for (auto const byte : bytes) {
    value ^= std::to_integer<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) value = value >> 1U ^ (value % 2 * 0xEDB88320U);
  }
  return ~value;
}

/// What is taken is what would be sent for it, byte for byte.
bool taken_as_sent(std::span<std::byte const> wire) {
  auto const ref = taken<InvalidArgument>([&] { return BufferRef::from_wire(wire); });
  if (ref) {
    require(std::ranges::equal(ref->to_wire(), wire), "what is taken would be sent in other bytes");
    require(to_string(ref->element) != "unknown", "a reference to unknown elements");
  }
  return ref.has_value();
}

bool run_buffer_ref(std::string_view input) {
  std::span<std::byte const> const bytes{reinterpret_cast<std::byte const*>(input.data()), input.size()};
  bool const whole = taken_as_sent(bytes);
  BufferRef::Wire wire{};
  std::ranges::copy(bytes.first(std::min(bytes.size(), wire.size())), wire.begin());
  auto const sum = checksum(std::span(wire).first<36>());
  auto right = wire;  // with a right checksum, so that what is behind that is reached as well
  for (std::size_t i = 0; i < 4; ++i) right[36 + i] = std::byte(sum >> (8 * i));
  require(!whole || (bytes.size() == wire.size() && wire == right), "a reference is taken whose checksum is wrong");
  bool const known = wire[0] == std::byte{'u'} && wire[1] == std::byte{'B'} && wire[2] == std::byte{1} &&
                     to_string(static_cast<ElementTag>(wire[3])) != "unknown";
  require(taken_as_sent(right) == known, known ? "a right reference is refused" : "a wrong reference is taken");
  return whole;
}

Enlisted const buffer_ref_target{{"buffer_ref", run_buffer_ref}};

}  // namespace
}  // namespace unimem::fuzz
