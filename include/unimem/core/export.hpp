#pragma once

/// Marks what the shared library exports; everything else has hidden visibility. Template-only and inline code needs
/// none.
#if defined(__GNUC__)
#define UNIMEM_API __attribute__((visibility("default")))
#else
#define UNIMEM_API
#endif
