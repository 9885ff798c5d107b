#include "plain_text.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>

namespace unimem::cli {
namespace {

/// The bytes of the printable character that `text` begins with; 0: it does not begin with one.
std::size_t printable_bytes(std::string_view text) {
  auto const byte = [&](std::size_t at) { return static_cast<unsigned char>(text[at]); };
  auto const first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f && first != '\\' ? 1 : 0;
  std::size_t const count = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < count) return 0;
  auto code = static_cast<std::uint32_t>(first & (0xffU >> (count + 1)));
  for (std::size_t i = 1; i < count; ++i) {
    if ((byte(i) & 0xc0U) != 0x80U) return 0;
    code = (code << 6U) | (byte(i) & 0x3fU);
  }
  // Longer than it need be; halves of pairs; control characters; those that turn the direction of what follows.
  bool const is_none = (count == 3 && code < 0x800) || (count == 4 && (code < 0x10000 || code > 0x10ffff)) ||
                       (code >= 0xd800 && code < 0xe000);
  bool const acts = code < 0xa0 || (code >= 0x200b && code <= 0x200f) || (code >= 0x2028 && code <= 0x202e) ||
                    (code >= 0x2060 && code <= 0x206f) || code == 0xfeff;
  return is_none || acts ? 0 : count;
}

}  // namespace

std::string plain_text(std::string_view text) {
  std::string plain;
  while (!text.empty()) {
    auto count = printable_bytes(text);
    if (count != 0) {
      plain += text.substr(0, count);
    } else {
      count = 1;
      plain += fmt::format("\\x{:02x}", static_cast<unsigned char>(text.front()));
    }
    text.remove_prefix(count);
  }
  return plain;
}

}  // namespace unimem::cli
