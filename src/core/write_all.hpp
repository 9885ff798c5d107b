#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <system_error>

namespace unimem::detail {

/// Writes all of `bytes` to a descriptor that waits for room, however many calls that takes and whatever signals come
/// between. Returns why it could not, if it could not; some of them may have been written then. One thread at a time.
[[nodiscard]] std::error_code write_all(int file, std::span<const std::byte> bytes) noexcept;
[[nodiscard]] std::error_code write_all(int file, std::string_view text) noexcept;

}  // namespace unimem::detail
