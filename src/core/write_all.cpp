#include "core/write_all.hpp"

#include "core/last_error.hpp"

#include <unistd.h>

#include <cerrno>

namespace unimem::detail {

std::error_code write_all(int file, std::span<const std::byte> bytes) noexcept {
  while (!bytes.empty()) {
    auto const written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return last_error();
    if (written == 0) return {EIO, std::generic_category()};  // it would say so for ever
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

std::error_code write_all(int file, std::string_view text) noexcept {
  return write_all(file, std::as_bytes(std::span{text.data(), text.size()}));
}

}  // namespace unimem::detail
