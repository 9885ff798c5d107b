#pragma once

#include <unimem/core/export.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

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

/// For programs that are not made of C++ functions: `describe` says where in them the calling thread is, a line for
/// each call, and nothing where it does not know. Reports of UNIMEM_CHECK=2 have that in place of a stack. It is called
/// with locks of the library held, and must not call the library. To be set before the first buffer is made.
UNIMEM_API void set_place_describer(std::vector<std::string> (*describe)() noexcept) noexcept;

}  // namespace unimem
