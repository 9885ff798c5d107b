#pragma once

#include <cstddef>

namespace unimem::testing {

/// Lets the n-th allocation from now on throw std::bad_alloc, and only that one; 0: none. A program that uses this has
/// an operator new of its own.
void fail_allocation(std::size_t n) noexcept;

}  // namespace unimem::testing
