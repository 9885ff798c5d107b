#pragma once

#include <string>
#include <string_view>
#include <typeinfo>

namespace unimem::detail {

/// A type's name as people write it, from what `std::type_info::name()` calls it; a name that is none of the compiler's
/// as it is.
[[nodiscard]] std::string type_name(std::string_view mangled);

/// Whether both are one type. Types of anonymous namespaces are told apart though their names are the same, by any
/// compiler: Clang leaves it to the names, which `std::type_info` then compares.
[[nodiscard]] bool same_type(std::type_info const& one, std::type_info const& other) noexcept;

}  // namespace unimem::detail
