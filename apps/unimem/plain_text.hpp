#pragma once

#include <string>
#include <string_view>

namespace unimem::cli {

/// What others have named, for one line that people read: printable characters as they are, all else, what is no UTF-8
/// and the backslash among it, as \xNN, byte by byte.
[[nodiscard]] std::string plain_text(std::string_view text);

}  // namespace unimem::cli
