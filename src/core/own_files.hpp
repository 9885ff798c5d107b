#pragma once

#include "core/unique_fd.hpp"

#include <filesystem>
#include <system_error>

namespace unimem::detail {

/// What files may hold that is believed: a checksum says that they are whole, and only their owner and mode which user
/// wrote them.
enum class Disbelief {
  anothers = 1,  ///< it belongs to another user
  writable,      ///< its group, or others, may write to it
  link,          ///< a symbolic link is in its place
};

/// With a message for each Disbelief.
[[nodiscard]] std::error_code make_error_code(Disbelief reason) noexcept;

/// Why what this descriptor is of is not believed: whether others than the effective user can have written it. No error
/// if they cannot; otherwise a Disbelief, or what the system says.
[[nodiscard]] std::error_code why_not_believed(int file) noexcept;

/// Opens a folder that is believed, and is itself no link. What is in it is then this user's, as long as it is reached
/// by the descriptor (openat). Without one, `problem` says why.
[[nodiscard]] UniqueFd open_own_folder(std::filesystem::path const& path, std::error_code& problem) noexcept;

/// Makes those folders of a path that are missing, for the user alone. Throws std::bad_alloc.
[[nodiscard]] std::error_code make_own_folders(std::filesystem::path const& path);

}  // namespace unimem::detail

template <>
struct std::is_error_code_enum<unimem::detail::Disbelief> : std::true_type {};
