#pragma once

#include <cstddef>

namespace unimem::testing {

/// Lets the n-th allocation from now on throw std::bad_alloc, and only that one; 0: none. A program that uses this has
/// an operator new of its own.
void fail_allocation(std::size_t n) noexcept;

/// Whether the allocation that is to fail has not come yet.
[[nodiscard]] bool allocation_is_to_fail() noexcept;

}  // namespace unimem::testing
