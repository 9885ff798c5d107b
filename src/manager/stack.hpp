#pragma once

#include <cstdint>
#include <vector>

namespace unimem::detail {

/// The addresses that the calls on this thread's stack will return to, the innermost first, this library's own
/// included, at most 64. Empty where the library was built without what captures them. Throws std::bad_alloc.
[[nodiscard]] std::vector<std::uintptr_t> capture_stack();

}  // namespace unimem::detail
