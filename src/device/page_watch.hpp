#pragma once

#include <unimem/core/byte_ranges.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace unimem::detail {

class PageTracker;

/// Knows which pages of some host memory have been written, by any writer: any thread, through any pointer, or the
/// kernel on a thread's behalf, as in `read` or `recv`.
///
/// The kernel keeps count, by userfaultfd's asynchronous write protection: the first write to an armed page costs a
/// fault (about 1 µs) that the kernel answers by itself, later ones cost nothing, and a scan of the page table tells
/// written pages from others. Soft-dirty bits are absent from common kernels and then read as "nothing written"; a
/// handler of SIGSEGV over mprotect costs several times as much, makes system calls fail with EFAULT and splits the
/// mapping until the kernel refuses.
///
/// A page is `page_bytes()`, also where memory lies in huge pages: arming keeps a huge page whole, the first write into
/// it splits it (about 10 µs) and then only that small page counts as written. Memory that is armed before it is first
/// touched comes as small pages. The kernel joins small pages into a huge one again only when all of them were written.
///
/// It cannot see
///  - what a device writes by itself (O_DIRECT, io_uring's registered buffers, RDMA, a GPU's DMA into pinned memory):
///    the pages are marked when they are pinned for the transfer, and whatever still arrives after they are collected
///    goes unseen;
///  - writes through another mapping of the same memory, here or in another process, if the memory is shared;
///  - memory that its owner moved or mapped anew (`mremap`, `mmap` over it): it is off watch, and collecting fails or
///    finds nothing. Whole watches are to be taken down first.
/// It counts as written, since the contents changed to zeros, what `madvise(MADV_DONTNEED)` dropped. A page is also
/// reported when what was written equals what was there.
///
/// In a forked child nothing is watched, and every question is answered "all of it was written", which is never wrong;
/// arming does nothing. The parent's watch goes on undisturbed, and the child may watch its copy anew.
///
/// Thread-safe: all functions may be called by any thread at any time, while others write into the memory. A write that
/// happens before `collect` is reported by it or was by an earlier one; a write at the same time by it or by the next.
class PageWatch {
 public:
  /// Empty when this system can track writes (Linux 6.7 and a kernel, sandbox and user that may); else a sentence that
  /// says why not. Found out once; only a lack of descriptors or memory, which may pass, is asked again.
  [[nodiscard]] static std::string reason_unavailable();

  /// The granularity of all answers: the system's page, 4 KiB on most.
  [[nodiscard]] static std::size_t page_bytes() noexcept;

  /// Watches `bytes` at `base`: whole pages of private anonymous memory, which stay the caller's and stay mapped where
  /// they are while watched. From here on nothing counts as written. Costs about 2 ms a GiB, 1 ms where untouched.
  ///
  /// Throws UnsupportedOperation where there is no write tracking; InvalidArgument unless the range is whole pages that
  /// no other watch of this process has any of; DeviceError when the kernel refuses, as for memory that another
  /// library's userfaultfd has or that is not mapped.
  PageWatch(void* base, std::size_t bytes);
  PageWatch(PageWatch const&) = delete;
  PageWatch& operator=(PageWatch const&) = delete;

  /// Takes the memory off watch; its contents stay. About 7 ms a GiB.
  ~PageWatch();

  [[nodiscard]] void* base() const noexcept { return reinterpret_cast<void*>(base_); }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return bytes_; }

  /// The pages written since they were last armed, and arms them, in one step for each page: no write is lost in
  /// between. All ranges are offsets from `base()`; `range` is widened to whole pages and cut to the watched memory,
  /// and so may be a little less than what is returned. Of several threads that collect, one gets a page.
  ///
  /// To copy what was written: collect, then copy. A byte that changes during the copy makes its page be collected
  /// again.
  ///
  /// Throws DeviceError or std::bad_alloc, and then no page is forgotten. Costs about 0.4 µs, 0.2 ms a GiB,
  /// and 10 ns (side by side) to 50 ns (scattered) a page found.
  [[nodiscard]] ByteRanges collect(ByteRange range);

  /// What `collect` would return, changing nothing.
  [[nodiscard]] ByteRanges peek(ByteRange range) const;

  /// Declares pages clean, after the library itself has written them. Whatever others have written to them since they
  /// were collected is forgotten as well. Throws InvalidArgument unless `range` begins and ends with whole pages: a
  /// part of a page cannot be declared clean; DeviceError as `collect`.
  void arm(ByteRange range);

  /// Declares pages written: the next `collect` returns them. For a caller that collected them and could not do what it
  /// wanted to. `range` is widened to whole pages.
  void mark_written(ByteRange range) noexcept;

 private:
  [[nodiscard]] ByteRange whole_pages(ByteRange range) const noexcept;

  PageTracker* tracker_;
  std::uintptr_t base_;
  std::size_t bytes_;
};

}  // namespace unimem::detail
