#pragma once

#include <linux/ioctl.h>

#include <cstdint>

/// What Linux 6.7 says about `UFFD_FEATURE_WP_ASYNC` and `PAGEMAP_SCAN`, which the headers of older systems leave out
/// though the library built there runs on newer kernels.
///
/// Sources: https://docs.kernel.org/admin-guide/mm/pagemap.html (the scan),
/// https://docs.kernel.org/admin-guide/mm/userfaultfd.html (write protection). The numbers are kernel interface and
/// never change; where a system's headers have them too, a test compares.
namespace unimem::detail {

/// Features of userfaultfd to ask for: writes to protected pages are let through and remembered, not reported one by
/// one, …
inline constexpr std::uint64_t asynchronous_write_protection = std::uint64_t{1} << 15;
/// … and pages that were not touched yet can be protected as well.
inline constexpr std::uint64_t protection_of_untouched_pages = std::uint64_t{1} << 13;

/// What a page is, as the scan answers and asks.
namespace page_category {
inline constexpr std::uint64_t written = std::uint64_t{1} << 1;  ///< since it was last protected
inline constexpr std::uint64_t present = std::uint64_t{1} << 3;
inline constexpr std::uint64_t swapped = std::uint64_t{1} << 4;  ///< on disk, or never touched and protected
}  // namespace page_category

/// What else a scan does.
namespace page_scan_flag {
inline constexpr std::uint64_t protect_what_matches = std::uint64_t{1} << 0;  ///< in the same step as finding it
inline constexpr std::uint64_t refuse_untracked = std::uint64_t{1} << 1;      ///< fails where no watch is registered
}  // namespace page_scan_flag

/// Pages side by side that are the same in all asked for. Addresses.
struct ScannedRegion {
  std::uint64_t begin;
  std::uint64_t end;
  std::uint64_t categories;
};

/// Finds the pages of `[begin, end)` for which `(categories ^ inverted) & all_of == all_of`. The call returns how many
/// regions it wrote, and in `walked_to` how far it came: short of `end` when there was no more room.
struct PageScan {
  std::uint64_t size = sizeof(PageScan);
  std::uint64_t flags = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t walked_to = 0;
  std::uint64_t regions = 0;  ///< address of room for …
  std::uint64_t region_count = 0;
  std::uint64_t page_limit = 0;
  std::uint64_t inverted = 0;
  std::uint64_t all_of = 0;
  std::uint64_t any_of = 0;
  std::uint64_t answered = 0;  ///< the categories that regions tell
};

/// The request of the ioctl on /proc/self/pagemap.
inline constexpr unsigned long page_scan_request = _IOWR('f', 16, PageScan);

}  // namespace unimem::detail
