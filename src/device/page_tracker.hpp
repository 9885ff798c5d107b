#pragma once

#include <unimem/core/byte_ranges.hpp>

#include "core/unique_fd.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace unimem::detail {

/// The process's way to ask the kernel which pages were written: one userfaultfd and one open /proc/self/pagemap.
///
/// All watches share the pair: a pair for each would use up a process's descriptors (1,024 by default) long before its
/// memory, and registrations of one userfaultfd that lie side by side stay one mapping. The price is that the kernel
/// accepts the same range twice from one userfaultfd, so claims are kept here.
///
/// Both descriptors mean the memory of the process that opened them, also when a forked child inherits them: through
/// them a child would take its parent's pages off watch. So a child gets a tracker of its own, and what it inherited
/// tells itself apart by `belongs_here`.
///
/// Thread-safe. Addresses and sizes are whole pages.
class PageTracker {
 public:
  /// Which pages a scan finds.
  enum class Wanted {
    written,  ///< written since they were armed, or dropped from their page table
    unbacked  ///< whose contents were dropped: neither in memory nor on disk, nor armed
  };
  /// What it does with them.
  enum class Then { leave, arm };

  /// Opens what is needed, unless the system lacks it: then `reason_unavailable` says why. Throws DeviceError for a
  /// lack that may pass, as of descriptors.
  PageTracker();
  PageTracker(PageTracker const&) = delete;
  PageTracker& operator=(PageTracker const&) = delete;
  ~PageTracker() = default;

  /// This process's tracker, made at first use and never destroyed: watches may live in static storage. Throws
  /// DeviceError as the constructor does.
  [[nodiscard]] static PageTracker& of_this_process();

  /// Whether this is the process that made it, and not a child that inherited it.
  [[nodiscard]] bool belongs_here() const noexcept;

  /// Empty when this system can track writes; else a sentence.
  [[nodiscard]] std::string const& reason_unavailable() const noexcept { return reason_unavailable_; }

  /// Registers and arms a range that is not claimed yet. Throws InvalidArgument or DeviceError and changes
  /// nothing.
  void claim(std::uintptr_t base, std::size_t bytes);

  /// Takes a claimed range off watch.
  void give_up(std::uintptr_t base, std::size_t bytes) noexcept;

  /// Makes pages count as not written. Throws DeviceError.
  void arm(std::uintptr_t base, std::size_t bytes) const;

  /// Makes pages count as written.
  void disarm(std::uintptr_t base, std::size_t bytes) const noexcept;

  /// The written pages of `range`, as offsets from `origin`, like `range`. Finding a page and arming it is one step, so
  /// that no write falls in between. Throws DeviceError or std::bad_alloc; what was armed by then counts as written
  /// again.
  [[nodiscard]] ByteRanges written(std::uintptr_t origin, ByteRange range, Then then) const;

  /// From now on does what a kernel before the middle of 2026 needs, also where this one does not. For tests.
  void distrust_the_kernel() noexcept { unbacked_separately_ = true; }

  /// Adds to `found` what `written` above is made of.
  void scan(std::uintptr_t origin, ByteRange range, Wanted wanted, Then then, ByteRanges& found) const;

 private:
  [[nodiscard]] std::string open();
  /// Whether a scan for written pages skips those whose whole page table is gone.
  [[nodiscard]] bool overlooks_dropped_tables() const;

  UniqueFd faults_;
  UniqueFd page_table_;
  std::string reason_unavailable_;
  bool unbacked_separately_ = false;
  PageTracker* inherited_ = nullptr;  ///< keeps what a parent made reachable, for leak checkers

  std::mutex mutex_;
  std::map<std::uintptr_t, std::size_t> claims_;  ///< address to size
};

}  // namespace unimem::detail
