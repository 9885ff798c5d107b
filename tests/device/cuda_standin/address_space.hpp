#pragma once

#include <cstddef>
#include <cstdint>

// Where the memory of the stand-in's devices lies in the process: at addresses that are nothing else, ever, so that any
// number that lies among them is a device pointer, and one into memory that is gone is known as such.

namespace unimem::standin {

using Address = std::uintptr_t;

constexpr unsigned char fresh_byte = 0xCD;         ///< what memory reads that nobody has written
constexpr std::size_t allocation_alignment = 512;  ///< of cuMemAlloc, as the real driver promises 256
constexpr std::size_t mapping_granularity = std::size_t{2} << 20;

/// Addresses without memory behind them, `alignment` a power of two. 0 if there are none left.
[[nodiscard]] Address take_addresses(std::size_t bytes, std::size_t alignment);

/// Gives addresses back: touching them crashes from now on. They are not handed out again, but for very large ranges,
/// which the system gets.
void drop_addresses(Address at, std::size_t bytes);

/// Whether a number is an address that `take_addresses` handed out, ever, or will.
[[nodiscard]] bool is_device_address(Address address);

/// Puts fresh memory behind taken addresses. False if the system has none.
[[nodiscard]] bool back_with_memory(Address at, std::size_t bytes);

/// Puts the same fresh memory behind two ranges of taken addresses.
[[nodiscard]] bool back_with_same_memory(Address one, Address other, std::size_t bytes);

/// Puts a file's bytes behind taken addresses, not yet to be touched.
[[nodiscard]] bool back_with_file(Address at, std::size_t bytes, int file);

/// Whether memory put there by `back_with_file` may be touched.
void allow_access(Address at, std::size_t bytes, bool allowed);

/// Takes the memory away from behind addresses, which stay taken.
void withdraw_memory(Address at, std::size_t bytes);

/// Fills memory as nobody has written it yet.
void poison(void* at, std::size_t bytes);

/// Whether every page of a range is mapped in this process.
[[nodiscard]] bool is_mapped(Address begin, std::size_t bytes = 1);

/// `bytes` in whole pages of the system.
[[nodiscard]] std::size_t whole_pages(std::size_t bytes);

}  // namespace unimem::standin
