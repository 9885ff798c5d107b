#pragma once

#include <unimem/core/export.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace unimem {

/// The value of an environment variable; nothing when it is unset or empty. Read anew at each call. Safe as long as
/// no thread changes the environment at the same time, as with std::getenv. Nothing at all in a process that has rights
/// which its caller does not have (`runs_with_other_rights`): the environment is the caller's.
[[nodiscard]] UNIMEM_API std::optional<std::string> environment(std::string_view name);

/// Whether this process has rights that the one which started it does not have: its program is setuid or setgid, or its
/// file has capabilities (AT_SECURE, see getauxval(3)).
[[nodiscard]] UNIMEM_API bool runs_with_other_rights() noexcept;

/// A switch: `1`, `true`, `yes`, `on` or `0`, `false`, `no`, `off`, in lower case; `otherwise` when unset.
/// Throws InvalidArgument naming the variable for anything else, and `values` as what it takes.
[[nodiscard]] UNIMEM_API bool environment_flag(std::string_view name, bool otherwise,
                                               std::string_view values = "1 or 0");

/// A size as parse_size reads it. Throws InvalidArgument naming the variable.
[[nodiscard]] UNIMEM_API std::optional<std::uint64_t> environment_size(std::string_view name);

}  // namespace unimem
