#pragma once

#include <string>
#include <string_view>

namespace unimem::detail {

/// A type's name as people write it, from what `std::type_info::name()` calls it; a name that is none of the compiler's
/// as it is.
[[nodiscard]] std::string type_name(std::string_view mangled);

}  // namespace unimem::detail
