#pragma once

#include <cerrno>

namespace unimem::detail {

/// Whether O_TMPFILE was refused with `code` because the file system or the kernel knows no files without names, and
/// not for anything else that is wrong.
[[nodiscard]] constexpr bool knows_no_unnamed_files(int code) noexcept {
  return code == EOPNOTSUPP || code == EISDIR || code == EINVAL;
}

}  // namespace unimem::detail
