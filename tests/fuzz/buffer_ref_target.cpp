#include <unimem/core/error.hpp>
#include <unimem/share/buffer_ref.hpp>

#include "fuzz/target.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>

namespace unimem::fuzz {

bool check_buffer_ref(std::string_view input) {
  auto const bytes = std::as_bytes(std::span{input});
  try {
    auto const reference = BufferRef::from_wire(bytes);
    expect(std::ranges::equal(reference.to_wire(), bytes), "other bytes than those that to_wire makes were accepted");
    return true;
  } catch (InvalidArgument const&) {
    if (bytes.size() != std::tuple_size_v<BufferRef::Wire>) return false;
  }
  // The same with the checksum that it should have had: it may be accepted then.
  BufferRef::Wire wire{};
  std::ranges::copy(bytes, wire.begin());
  std::uint32_t sum = ~std::uint32_t{0};
  for (auto const byte : std::span{wire}.first(36)) {
    sum ^= std::to_integer<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) sum = (sum >> 1U) ^ ((sum & 1U) != 0 ? 0xEDB88320U : 0U);
  }
  sum = ~sum;
  for (std::size_t i = 0; i < 4; ++i) wire[36 + i] = static_cast<std::byte>(sum >> (8 * i));
  try {
    expect(BufferRef::from_wire(wire).to_wire() == wire, "other bytes than those that to_wire makes were accepted");
    return true;
  } catch (InvalidArgument const&) {
    return false;
  }
}

}  // namespace unimem::fuzz
