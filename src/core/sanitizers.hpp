#pragma once

// GCC says by a macro what it instruments for, Clang 19 by a feature.
#if defined(__SANITIZE_ADDRESS__)
#define UNIMEM_ADDRESS_SANITIZER 1
#elif defined(__SANITIZE_THREAD__)
#define UNIMEM_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define UNIMEM_ADDRESS_SANITIZER 1
#elif __has_feature(thread_sanitizer)
#define UNIMEM_THREAD_SANITIZER 1
#endif
#endif

namespace unimem::detail {

#ifdef UNIMEM_ADDRESS_SANITIZER
inline constexpr bool under_address_sanitizer = true;
#else
inline constexpr bool under_address_sanitizer = false;
#endif
#ifdef UNIMEM_THREAD_SANITIZER
inline constexpr bool under_thread_sanitizer = true;
#else
inline constexpr bool under_thread_sanitizer = false;
#endif
inline constexpr bool is_sanitized = under_address_sanitizer || under_thread_sanitizer;

}  // namespace unimem::detail
