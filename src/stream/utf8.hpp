#pragma once

#include <cstddef>
#include <string_view>

namespace unimem::detail {

/// Whether `text` is UTF-8: nothing overlong, no surrogates, nothing beyond U+10FFFF.
[[nodiscard]] inline bool is_utf8(std::string_view text) noexcept {
  auto const byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  for (std::size_t i = 0; i < text.size();) {
    auto const first = byte(i++);
    if (first < 0x80) continue;
    std::size_t const more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
    if (first < 0xC2 || first > 0xF4 || text.size() - i < more) return false;
    auto const second = byte(i);
    if (first == 0xE0 && second < 0xA0) return false;
    if (first == 0xED && second > 0x9F) return false;
    if (first == 0xF0 && second < 0x90) return false;
    if (first == 0xF4 && second > 0x8F) return false;
    for (std::size_t k = 0; k < more; ++k, ++i) {
      if ((byte(i) & 0xC0U) != 0x80) return false;
    }
  }
  return true;
}

}  // namespace unimem::detail
