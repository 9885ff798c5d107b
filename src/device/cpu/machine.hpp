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

/// Bytes of physical memory the machine has.
[[nodiscard]] std::size_t physical_memory_bytes();

/// Bytes that could be used now without swapping, as the system estimates them.
[[nodiscard]] std::size_t available_memory_bytes();

/// Bytes of memory that this process alone has touched, and that are in memory now.
[[nodiscard]] std::size_t private_resident_bytes();

}  // namespace unimem::detail
