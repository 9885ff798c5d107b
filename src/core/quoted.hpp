#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace unimem::detail {

/// What stands in a file, as messages quote it: one line of reasonable length, and UTF-8, whatever it is.
[[nodiscard]] inline std::string quoted(std::string_view field) {
  constexpr std::size_t longest = 40;
  std::string text = "'";
  for (char const c : field.substr(0, longest)) text += c < ' ' || c > '~' ? '?' : c;
  return text + (field.size() > longest ? "…'" : "'");
}

}  // namespace unimem::detail
