#pragma once

#include <unimem/device/detail/value_type.hpp>

#include "device/scalar_type.hpp"

#include <optional>
#include <string_view>

namespace unimem::detail::opencl {

/// The scalar type a compiler calls `name`; nothing for any other (vectors, structures, typedefs of the source).
[[nodiscard]] std::optional<ScalarType> find_scalar_type(std::string_view name) noexcept;

[[nodiscard]] ValueType value_type(ScalarType const& type) noexcept;

/// The number or vector of numbers a compiler calls `name`: "float", "uint4", "atomic_int"; unknown for any other.
[[nodiscard]] ValueType find_value_type(std::string_view name) noexcept;

}  // namespace unimem::detail::opencl
