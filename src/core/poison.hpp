#pragma once

#include "core/sanitizers.hpp"

#include <cstddef>

#ifdef UNIMEM_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

namespace unimem::detail {

// A cached block is dead to the user, though the driver knows nothing of it. Under AddressSanitizer a use after release
// is reported as one; in every other build these are nothing.

#ifdef UNIMEM_ADDRESS_SANITIZER
inline void poison(void const* address, std::size_t bytes) noexcept {
  ASAN_POISON_MEMORY_REGION(address, bytes);
}
inline void unpoison(void const* address, std::size_t bytes) noexcept {
  // What the sanitizer notes becomes resident when it is written, an eighth of the memory.
  if (__asan_region_is_poisoned(const_cast<void*>(address), bytes) != nullptr)
    ASAN_UNPOISON_MEMORY_REGION(address, bytes);
}
inline bool is_poisoned(void const* address) noexcept {
  return __asan_address_is_poisoned(address) != 0;
}
#else
inline void poison(void const*, std::size_t) noexcept {}
inline void unpoison(void const*, std::size_t) noexcept {}
inline bool is_poisoned(void const*) noexcept {
  return false;
}
#endif

}  // namespace unimem::detail
