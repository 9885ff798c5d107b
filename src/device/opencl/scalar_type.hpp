#pragma once

#include "device/scalar_type.hpp"

#include <optional>
#include <string_view>

namespace unimem::detail::opencl {

/// The scalar type a compiler calls `name`; nothing for any other (vectors, structures, typedefs of the source).
[[nodiscard]] std::optional<ScalarType> find_scalar_type(std::string_view name) noexcept;

}  // namespace unimem::detail::opencl
