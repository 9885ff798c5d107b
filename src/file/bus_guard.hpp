#pragma once

#include <unimem/core/byte_ranges.hpp>

#include <cstddef>
#include <cstdint>

namespace unimem::detail {

struct GuardedRegionNode;

/// Addresses at which a file is mapped. Touching a mapped page that the file no longer has, or that its disk does not
/// give, raises SIGBUS, which would end the process; while a region is guarded, bytes of 0xCD are put there instead, as
/// in fresh memory of sim, and the region remembers it, so that its owner can report an error in its own words.
///
/// The handler is installed at the first region and stays; signals that are not about a guarded region go to the
/// handler that was there before. A program that installs its own SIGBUS handler later has to pass ours what is not its
/// own. Thread-safe.
class GuardedRegion {
 public:
  /// The file that all of a region is a mapping of, from `offset` on, a multiple of the page size: where it has become
  /// shorter, many pages are filled at once. Stays open as long as the region.
  struct Source {
    int descriptor = -1;
    std::uint64_t offset = 0;
  };

  /// `begin` and `bytes` are whole pages wherever a file is mapped.
  GuardedRegion(void* begin, std::size_t bytes) : GuardedRegion(begin, bytes, Source{}) {}
  GuardedRegion(void* begin, std::size_t bytes, Source source);
  GuardedRegion(GuardedRegion const&) = delete;
  GuardedRegion& operator=(GuardedRegion const&) = delete;
  ~GuardedRegion();

  /// Whether a page turned out to be missing.
  [[nodiscard]] bool broken() const noexcept;
  /// From the first to the last byte of what was missing, counted from the region's beginning; empty if nothing was.
  [[nodiscard]] ByteRange missing() const noexcept;

 private:
  GuardedRegionNode* node_;
};

}  // namespace unimem::detail
