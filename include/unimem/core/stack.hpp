#pragma once

#include <unimem/core/export.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace unimem {

/// How many stacks are captured of what takes memory.
struct StackOptions {
  /// Every how many-th allocation's stack is captured: 1 all, 0 none. Capturing takes microseconds, each.
  std::size_t every = 0;
};

/// Whether the library was built with what captures stacks.
[[nodiscard]] UNIMEM_API bool can_capture_stacks() noexcept;

/// A call of a captured stack in words, as far as the program's symbols tell: "solve() at solver.cpp:12".
[[nodiscard]] UNIMEM_API std::string describe_address(std::uintptr_t address);

}  // namespace unimem
