#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace unimem::detail {

/// Host memory as cpu and sim hand it out: small blocks from the allocator, large ones as mappings of their own, so
/// that they return to the system when released and cost nothing until touched.

/// From this size on, memory is a mapping: aligned to pages, zero-filled by the system at first touch.
inline constexpr std::size_t mapped_from_bytes = std::size_t{64} << 10;

/// What the system gives in one piece where memory is advised to be of huge pages, on x86-64 and most of arm64.
inline constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;

/// Blocks below `mapped_from_bytes` are aligned to this: what the widest vector units and sim's promise need.
inline constexpr std::size_t small_alignment = 256;

/// `bytes` (at least 1) of host memory, or null when the system refuses. Contents are undefined. With `own_pages` it
/// shares no page with anything else, whatever its size.
[[nodiscard]] void* take_host_memory(std::size_t bytes, bool own_pages = false) noexcept;

/// Leaves whole pages of host memory out of core dumps, until they are unmapped. Whether the system does.
bool leave_out_of_dumps(void* address, std::size_t bytes) noexcept;

/// Gives back what `take_host_memory(bytes, own_pages)` returned.
void give_back_host_memory(void* address, std::size_t bytes, bool own_pages = false) noexcept;

/// Has the system take back what lies behind whole pages of it: they read as zeros, and cost nothing until touched.
void give_back_pages(void* address, std::size_t bytes) noexcept;

/// Of blocks of the host's that stand for memory which is elsewhere, as a shared file's: what is there is counted
/// there, and nothing of theirs is ever touched.
void count_elsewhere(std::size_t bytes) noexcept;
void count_elsewhere_no_more(std::size_t bytes) noexcept;
[[nodiscard]] std::size_t bytes_elsewhere() noexcept;

/// `bytes` of addresses aligned to `alignment` (a power of two, at least a page), displaced by `skew` from it, with the
/// protection of mmap; null when the system refuses. Costs no memory until touched.
[[nodiscard]] std::byte* map_addresses(std::size_t bytes, std::size_t alignment, std::size_t skew,
                                       int protection) noexcept;

/// Repeats `pattern` over `bytes` at `to`; the pattern's size divides `bytes`.
void repeat_pattern(void* to, std::size_t bytes, std::span<const std::byte> pattern) noexcept;

}  // namespace unimem::detail
