#pragma once

#include <cstddef>

namespace unimem::detail {

struct GuardedRegionNode;

/// Addresses at which a file is mapped. Touching a mapped page that the file no longer has raises SIGBUS, which would
/// end the process; while a region is guarded, a page of zeros is put there instead and the region remembers it, so
/// that the stream can report an error in its own words.
///
/// The handler is installed at the first region and stays; signals that are not about a guarded region go to the
/// handler that was there before. A program that installs its own SIGBUS handler later has to pass ours what is not its
/// own. Thread-safe.
class GuardedRegion {
 public:
  GuardedRegion(void* begin, std::size_t bytes);
  GuardedRegion(GuardedRegion const&) = delete;
  GuardedRegion& operator=(GuardedRegion const&) = delete;
  ~GuardedRegion();

  /// Whether a page turned out to be missing.
  [[nodiscard]] bool broken() const noexcept;

 private:
  GuardedRegionNode* node_;
};

}  // namespace unimem::detail
