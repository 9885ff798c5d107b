#pragma once

#include <unimem/core/export.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace unimem {

/// How many stacks are captured of what takes memory.
struct StackOptions {
  /// Every how many-th allocation's stack is captured: 1 all, 0 none. Capturing takes microseconds, each.
  std::size_t every = 0;
};

/// Whether the library was built with what captures stacks.
[[nodiscard]] UNIMEM_API bool can_capture_stacks() noexcept;

/// A number that stands for a call of another language in what is captured: `describe_address` gives `text` back. The
/// same text has the same number, for the life of the process. O(length); takes a lock. Thread-safe.
[[nodiscard]] UNIMEM_API std::uintptr_t name_call(std::string_view text);

/// A call of a captured stack in words, as far as the program's symbols tell: "solve() at solver.cpp:12".
[[nodiscard]] UNIMEM_API std::string describe_address(std::uintptr_t address);

}  // namespace unimem
