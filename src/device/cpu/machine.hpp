#pragma once

#include <cstddef>
#include <string>

namespace unimem::detail {

/// What the system says about the machine this process runs on. Every answer has a plain fallback: a restricted /proc
/// must not cost anyone the cpu device.

/// The processor's name as it spells itself, or "cpu".
[[nodiscard]] std::string processor_name();

/// The processor's vendor as it spells itself, or empty.
[[nodiscard]] std::string processor_vendor();

/// Name and release of the operating system's kernel.
[[nodiscard]] std::string system_release();

/// Bytes of physical memory this process may use: the machine's, or what a control group (version 1 or 2, this one's or
/// one above it) leaves of it.
[[nodiscard]] std::size_t usable_memory_bytes();

/// Bytes that could be used now without swapping, as the system estimates them.
[[nodiscard]] std::size_t available_memory_bytes();

}  // namespace unimem::detail
