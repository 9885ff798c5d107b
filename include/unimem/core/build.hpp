#pragma once

#include <unimem/core/export.hpp>

#include <string_view>

namespace unimem {

/// The version of the library that is linked, as `MAJOR.MINOR.PATCH`.
[[nodiscard]] UNIMEM_API std::string_view version() noexcept;

/// The compiler it was built with, its version, and the kind of build ("g++ 12.2.0, Release").
[[nodiscard]] UNIMEM_API std::string_view build_description() noexcept;

}  // namespace unimem
