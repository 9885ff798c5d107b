#pragma once

#include <unimem/core/export.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace unimem {

/// Reads a number of bytes: `4096`, `64KiB`, `1.5GiB`, `12GB`. Binary units are powers of 1,024 (`KiB` … `PiB`),
/// decimal ones powers of 1,000 (`kB` or `KB` … `PB`); a trailing `B` alone means bytes. Case matters only where it
/// must: `k`/`K`.
///
/// A fraction of a unit is computed exactly and cut to whole bytes (`0.1KiB` is 102). Throws InvalidArgument naming
/// `what` unless the whole text is a size that fits 64 bits; a sign, a blank or a fraction of a single byte is refused.
[[nodiscard]] UNIMEM_API std::uint64_t parse_size(std::string_view text, std::string_view what = "size");

/// The shortest exact-enough spelling for people: `0 B`, `4 KiB`, `1.50 GiB`. Two decimals unless whole.
[[nodiscard]] UNIMEM_API std::string format_size(std::uint64_t bytes);

/// `a * b` in std::size_t; throws InvalidArgument naming `what` if it does not fit. `unit`: of the product, as the
/// message says it.
[[nodiscard]] UNIMEM_API std::size_t checked_multiply(std::size_t a, std::size_t b, std::string_view what,
                                                      std::string_view unit = "bytes");

/// `a + b` in std::size_t; throws InvalidArgument naming `what` if it does not fit.
[[nodiscard]] UNIMEM_API std::size_t checked_add(std::size_t a, std::size_t b, std::string_view what);

/// Throws InvalidArgument naming the offending one unless `[offset, offset + count)` lies within `size`. Units are the
/// caller's (elements or bytes); the sum is never formed, so nothing wraps.
UNIMEM_API void check_window(std::size_t offset, std::size_t count, std::size_t size);

/// `value` rounded up to a multiple of `alignment` (a power of two); throws InvalidArgument if that does not fit.
[[nodiscard]] UNIMEM_API std::size_t round_up(std::size_t value, std::size_t alignment);

/// Throws InvalidArgument unless `alignment` is a power of two (1 included) and at most `most`.
UNIMEM_API void check_alignment(std::size_t alignment, std::size_t most);

}  // namespace unimem
