#include <unimem/core/error.hpp>
#include <unimem/core/log.hpp>

#include "core/system_page.hpp"
#include "device/linux_page_scan.hpp"
#include "device/page_tracker.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <iterator>
#include <memory>
#include <new>
#include <system_error>

namespace unimem::detail {
namespace {

/// Regions a call answers at most: as many as the kernel itself collects before it hands them over.
constexpr std::size_t regions_per_call = 512;

std::string words(int code) {
  return std::generic_category().message(code);
}

[[noreturn]] void fail(char const* call, int code) {
  throw DeviceError("write tracking", call, code, words(code));
}

/// Whether trying again later may help.
bool may_pass(int code) noexcept {
  return code == EMFILE || code == ENFILE || code == ENOMEM;
}

/// "no" and why, of a call that a system without write tracking refuses.
std::string refusal(char const* call, char const* lack, int code) {
  if (may_pass(code)) fail(call, code);
  return fmt::format("{} ({}: {})", lack, call, words(code));
}

using Slot = std::atomic<PageTracker*>;

/// Where the process's tracker is found: on a page that the kernel hands to every forked child emptied, however it was
/// forked. A handler of pthread_atfork would not run for `_Fork` or a bare `clone`, and a child that takes its parent's
/// memory off watch loses the parent's writes.
Slot& slot() {
  static constinit std::atomic<Slot*> known{nullptr};
  auto* const made = known.load(std::memory_order_acquire);
  if (made != nullptr) return *made;

  auto* const page = mmap(nullptr, sizeof(Slot), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) fail("mmap", errno);
  if (madvise(page, sizeof(Slot), MADV_WIPEONFORK) != 0) {
    auto const code = errno;
    munmap(page, sizeof(Slot));
    fail("madvise(MADV_WIPEONFORK)", code);
  }
  auto* const fresh = new (page) Slot{nullptr};
  Slot* other = nullptr;
  // No static that initializes itself under a lock: a child may be forked while another thread holds it. Acquire and
  // release: with the pointer what it points to is seen.
  if (known.compare_exchange_strong(other, fresh, std::memory_order_acq_rel)) return *fresh;
  munmap(page, sizeof(Slot));
  return *other;
}

/// The last tracker made, here or in the process this one was forked from. It is what leak checkers see: they do not
/// look into mapped pages.
constinit std::atomic<PageTracker*> latest{nullptr};

int protect(int fd, std::uintptr_t base, std::size_t bytes, bool armed) noexcept {
  uffdio_writeprotect request{{base, bytes}, armed ? UFFDIO_WRITEPROTECT_MODE_WP : 0};
  return ioctl(fd, UFFDIO_WRITEPROTECT, &request) == 0 ? 0 : errno;
}

int add_to_watch(int fd, std::uintptr_t base, std::size_t bytes) noexcept {
  uffdio_register request{{base, bytes}, UFFDIO_REGISTER_MODE_WP, 0};
  return ioctl(fd, UFFDIO_REGISTER, &request) == 0 ? 0 : errno;
}

void take_off_watch(int fd, std::uintptr_t base, std::size_t bytes) noexcept {
  uffdio_range request{base, bytes};
  ioctl(fd, UFFDIO_UNREGISTER, &request);  // fails where the owner has unmapped the memory already
}

}  // namespace

PageTracker::PageTracker() : reason_unavailable_(open()) {
  if (!reason_unavailable_.empty()) return;
  unbacked_separately_ = overlooks_dropped_tables();
}

std::string PageTracker::open() {
  // Without UFFD_USER_MODE_ONLY ordinary users are refused. It concerns faults that are reported, and none is.
  faults_ = UniqueFd{static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY))};
  if (!faults_) return refusal("userfaultfd", "the system or its sandbox refuses userfaultfd", errno);
  uffdio_api api{UFFD_API, asynchronous_write_protection | protection_of_untouched_pages, 0};
  if (ioctl(faults_.get(), UFFDIO_API, &api) != 0) {
    return refusal("UFFDIO_API", "the kernel has no asynchronous write protection, which Linux 6.7 brought", errno);
  }
  page_table_ = UniqueFd{::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC)};
  if (!page_table_) {
    return refusal("open",
                   "/proc/self/pagemap is closed to this process, as to one that changed its user and did not exec",
                   errno);
  }
  PageScan nothing;
  if (ioctl(page_table_.get(), page_scan_request, &nothing) < 0) {
    return refusal("PAGEMAP_SCAN", "the kernel cannot scan for written pages, which Linux 6.7 brought", errno);
  }
  return {};
}

// Linux says so since the middle of 2026 ("fix PAGEMAP_SCAN written state for PMD holes"), in its stable series too, so
// that a version number tells nothing.
bool PageTracker::overlooks_dropped_tables() const {
  auto const page = system_page_bytes();
  auto const table = page * (page / sizeof(std::uint64_t));  // the addresses that one page of entries describes
  auto* const addresses = mmap(nullptr, 2 * table, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (addresses == MAP_FAILED) fail("mmap", errno);
  auto const unmap = [=](void* mapped) { munmap(mapped, 2 * table); };
  std::unique_ptr<void, decltype(unmap)> const owner{addresses, unmap};
  auto const base = (reinterpret_cast<std::uintptr_t>(addresses) + table - 1) / table * table;
  if (auto const code = add_to_watch(faults_.get(), base, table)) fail("UFFDIO_REGISTER", code);
  ByteRanges found;
  scan(base, {0, table}, Wanted::written, Then::leave, found);
  return found.empty();
}

PageTracker& PageTracker::of_this_process() {
  auto& current = slot();
  auto* const known = current.load(std::memory_order_acquire);
  if (known != nullptr) return *known;
  auto fresh = std::make_unique<PageTracker>();
  PageTracker* other = nullptr;
  fresh->inherited_ = latest.load(std::memory_order_relaxed);  // a parent's: this process was forked behind it
  if (!current.compare_exchange_strong(other, fresh.get(), std::memory_order_acq_rel)) return *other;
  latest.store(fresh.get(), std::memory_order_relaxed);
  return *fresh.release();
}

bool PageTracker::belongs_here() const noexcept {
  return slot().load(std::memory_order_acquire) == this;
}

void PageTracker::claim(std::uintptr_t base, std::size_t bytes) {
  {
    std::lock_guard const lock{mutex_};
    auto const after = claims_.lower_bound(base + bytes);
    if (after != claims_.begin() && std::prev(after)->first + std::prev(after)->second > base) {
      throw InvalidArgument("base", fmt::format("{:#x} of {} bytes", base, bytes),
                            "memory that is not watched already");
    }
    claims_.emplace_hint(after, base, bytes);
  }
  auto const unclaim = [&] {
    std::lock_guard const lock{mutex_};
    claims_.erase(base);
  };
  // Registering passes over gaps in the mapping; this does nothing but complain of them.
  if (msync(reinterpret_cast<void*>(base), bytes, MS_ASYNC) != 0) {
    auto const code = errno;
    unclaim();
    fail("msync", code);
  }
  if (auto const code = add_to_watch(faults_.get(), base, bytes)) {
    unclaim();
    fail("UFFDIO_REGISTER", code);
  }
  try {
    arm(base, bytes);
  } catch (...) {
    give_up(base, bytes);
    throw;
  }
}

void PageTracker::give_up(std::uintptr_t base, std::size_t bytes) noexcept {
  // The claim goes last: the next one must find the range off watch.
  take_off_watch(faults_.get(), base, bytes);
  std::lock_guard const lock{mutex_};
  claims_.erase(base);
}

void PageTracker::arm(std::uintptr_t base, std::size_t bytes) const {
  if (unbacked_separately_) {
    if (auto const code = protect(faults_.get(), base, bytes, true)) fail("UFFDIO_WRITEPROTECT", code);
    return;
  }
  // A scan that answers nothing: two to five times as fast, and it passes by what is armed already.
  PageScan request;
  request.flags = page_scan_flag::refuse_untracked | page_scan_flag::protect_what_matches;
  request.begin = base;
  request.end = base + bytes;
  request.all_of = request.answered = page_category::written;
  if (ioctl(page_table_.get(), page_scan_request, &request) < 0) fail("PAGEMAP_SCAN", errno);
}

void PageTracker::disarm(std::uintptr_t base, std::size_t bytes) const noexcept {
  auto const code = protect(faults_.get(), base, bytes, false);
  if (code != 0) log(LogLevel::error, fmt::format("write tracking: UFFDIO_WRITEPROTECT failed: {}", words(code)));
}

ByteRanges PageTracker::written(std::uintptr_t origin, ByteRange range, Then then) const {
  ByteRanges found;
  try {
    // First: an unbacked page that is written between the two is found by the second.
    if (unbacked_separately_) scan(origin, range, Wanted::unbacked, then, found);
    scan(origin, range, Wanted::written, then, found);
  } catch (...) {
    // They are armed by now, and they are never told.
    if (then == Then::arm) {
      for (auto const pages : found.ranges()) disarm(origin + pages.begin, pages.size());
    }
    throw;
  }
  return found;
}

void PageTracker::scan(std::uintptr_t origin, ByteRange range, Wanted wanted, Then then, ByteRanges& found) const {
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-member-init): clearing it would cost more than most scans
  std::array<ScannedRegion, regions_per_call> regions;
  PageScan request;
  request.flags = page_scan_flag::refuse_untracked | (then == Then::arm ? page_scan_flag::protect_what_matches : 0);
  request.end = origin + range.end;
  request.regions = reinterpret_cast<std::uintptr_t>(regions.data());
  request.region_count = regions.size();
  if (wanted == Wanted::written) {
    // Exactly these masks: kernels before the middle of 2026 answer them right and others wrong for pages whose entry
    // was dropped.
    request.all_of = request.answered = page_category::written;
  } else {
    request.all_of = request.inverted = request.answered = page_category::present | page_category::swapped;
  }
  for (auto at = origin + range.begin; at < request.end; at = request.walked_to) {
    found.reserve(regions.size());  // what is armed below must find room
    request.begin = at;
    auto const count = ioctl(page_table_.get(), page_scan_request, &request);
    if (count < 0) {
      auto const code = errno;
      // It may have come some way, and does not say what it found there.
      if (then == Then::arm) disarm(at, request.end - at);
      fail("PAGEMAP_SCAN", code);
    }
    for (int i = 0; i < count; ++i) {
      auto const& region = regions[static_cast<std::size_t>(i)];
      found.add({region.begin - origin, region.end - origin});
    }
  }
}

}  // namespace unimem::detail
