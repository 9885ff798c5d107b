#include <unimem/core/error.hpp>
#include <unimem/share/buffer_ref.hpp>

#include <fmt/format.h>

#include <cstdint>
#include <string>

namespace unimem {
namespace {

constexpr std::array magic{std::byte{'u'}, std::byte{'B'}};
constexpr std::byte version{1};

constexpr std::size_t version_at = 2, element_at = 3, registry_at = 4, number_at = 12, offset_at = 20, count_at = 28,
                      checksum_at = 36;
static_assert(checksum_at + 4 == std::tuple_size_v<BufferRef::Wire>);
static_assert(sizeof(std::size_t) == 8, "offsets and counts travel as 64 bits");

/// Byte by byte, so that it is the same on machines of either byte order.
void put(std::span<std::byte> to, std::uint64_t value) noexcept {
  for (auto& byte : to) {
    byte = static_cast<std::byte>(value & 0xFFU);
    value >>= 8U;
  }
}

std::uint64_t get(std::span<const std::byte> from) noexcept {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < from.size(); ++i) value |= std::to_integer<std::uint64_t>(from[i]) << (8 * i);
  return value;
}

constexpr std::array<std::uint32_t, 256> crc_table = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    auto value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1U) ^ ((value & 1U) != 0 ? 0xEDB8'8320U : 0U);
    table[i] = value;
  }
  return table;
}();

std::uint32_t crc32(std::span<const std::byte> bytes) noexcept {
  std::uint32_t value = ~std::uint32_t{0};
  for (auto const byte : bytes)
    value = crc_table[(value ^ std::to_integer<std::uint32_t>(byte)) & 0xFFU] ^ (value >> 8U);
  return ~value;
}

[[noreturn]] void refuse(std::string found, char const* required) {
  throw InvalidArgument("buffer reference", std::move(found), required);
}

}  // namespace

BufferRef::Wire BufferRef::to_wire() const noexcept {
  Wire wire{};
  std::span<std::byte, std::tuple_size_v<Wire>> const bytes{wire};
  wire[0] = magic[0];
  wire[1] = magic[1];
  wire[version_at] = version;
  wire[element_at] = static_cast<std::byte>(element);
  put(bytes.subspan<registry_at, 8>(), id.registry);
  put(bytes.subspan<number_at, 8>(), id.number);
  put(bytes.subspan<offset_at, 8>(), offset);
  put(bytes.subspan<count_at, 8>(), count);
  put(bytes.subspan<checksum_at, 4>(), crc32(bytes.first<checksum_at>()));
  return wire;
}

BufferRef BufferRef::from_wire(std::span<const std::byte> bytes) {
  if (bytes.size() != std::tuple_size_v<Wire>) refuse(fmt::format("{} bytes", bytes.size()), "40 bytes");
  if (bytes[0] != magic[0] || bytes[1] != magic[1]) {
    refuse(fmt::format("beginning with {:02x} {:02x}", std::to_integer<int>(bytes[0]), std::to_integer<int>(bytes[1])),
           "a message that begins with the letters \"uB\"");
  }
  if (bytes[version_at] != version) {
    refuse(fmt::format("version {}", std::to_integer<int>(bytes[version_at])), "of version 1");
  }
  auto const told = get(bytes.subspan(checksum_at, 4));
  auto const found = crc32(bytes.first(checksum_at));
  if (told != found) {
    refuse(fmt::format("checksum {:08x}", told), "the checksum of its bytes: some were changed on the way");
  }
  BufferRef ref;
  ref.element = static_cast<ElementTag>(bytes[element_at]);
  if (to_string(ref.element) == "unknown") {
    refuse(fmt::format("element tag {}", std::to_integer<int>(bytes[element_at])),
           "of elements that this version knows");
  }
  ref.id = {get(bytes.subspan(registry_at, 8)), get(bytes.subspan(number_at, 8))};
  ref.offset = get(bytes.subspan(offset_at, 8));
  ref.count = get(bytes.subspan(count_at, 8));
  return ref;
}

}  // namespace unimem
