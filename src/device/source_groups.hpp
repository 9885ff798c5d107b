#pragma once

#include <string>
#include <string_view>

namespace unimem::detail {

/// Throws KernelError if in the kernel, or in what it may call, a barrier, or a function that waits at one, stands
/// under an `if` whose condition asks which item of the group it is: those that pass it by are waited for, for ever or
/// not at all, and no driver says so.
void refuse_divergent_barriers(std::string_view source, std::string const& entry);

/// The KernelError of a launch without a group, of a kernel that asks for its group by that word.
[[noreturn]] void throw_without_group(std::string const& kernel, std::string_view word);

}  // namespace unimem::detail
