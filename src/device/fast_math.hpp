#pragma once

#include <string_view>

namespace unimem::detail {

/// The first line of a source that is to be compiled with the compiler's fast mathematics. It stands in the text so
/// that the text alone says what is compiled: what is kept by the text is kept apart.
inline constexpr std::string_view fast_math_line = "#define UNIMEM_FAST_MATH 1\n";

[[nodiscard]] inline bool asks_fast_math(std::string_view source) noexcept {
  return source.starts_with(fast_math_line);
}

}  // namespace unimem::detail
