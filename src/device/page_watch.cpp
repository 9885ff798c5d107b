#include <unimem/core/error.hpp>

#include "core/system_page.hpp"
#include "device/page_tracker.hpp"
#include "device/page_watch.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace unimem::detail {

std::string PageWatch::reason_unavailable() {
  try {
    return PageTracker::of_this_process().reason_unavailable();
  } catch (DeviceError const& error) {
    return error.what();
  }
}

std::size_t PageWatch::page_bytes() noexcept {
  return system_page_bytes();
}

PageWatch::PageWatch(void* base, std::size_t bytes)
    : tracker_(&PageTracker::of_this_process()), base_(reinterpret_cast<std::uintptr_t>(base)), bytes_(bytes) {
  auto const& reason = tracker_->reason_unavailable();
  if (!reason.empty()) throw UnsupportedOperation("write tracking", "this system", reason);
  auto const whole_pages_of = [] { return fmt::format("a positive multiple of the page's {} bytes", page_bytes()); };
  if (base_ == 0 || base_ % page_bytes() != 0) {
    throw InvalidArgument("base", fmt::format("{:#x}", base_), whole_pages_of());
  }
  if (bytes == 0 || bytes % page_bytes() != 0 || bytes > UINTPTR_MAX - base_) {
    throw InvalidArgument("bytes", fmt::format("{}", bytes), whole_pages_of());
  }
  tracker_->claim(base_, bytes_);
}

PageWatch::~PageWatch() {
  if (tracker_->belongs_here()) tracker_->give_up(base_, bytes_);
}

ByteRanges PageWatch::collect(ByteRange range) {
  auto const pages = whole_pages(range);
  if (!tracker_->belongs_here()) return ByteRanges{pages};
  return tracker_->written(base_, pages, PageTracker::Then::arm);
}

ByteRanges PageWatch::peek(ByteRange range) const {
  auto const pages = whole_pages(range);
  if (!tracker_->belongs_here()) return ByteRanges{pages};
  return tracker_->written(base_, pages, PageTracker::Then::leave);
}

void PageWatch::arm(ByteRange range) {
  if (range.begin % page_bytes() != 0 || (range.end % page_bytes() != 0 && range.end < bytes_)) {
    throw InvalidArgument("range", fmt::format("[{}, {})", range.begin, range.end),
                          fmt::format("whole pages of {} bytes", page_bytes()));
  }
  auto const pages = whole_pages(range);
  if (!pages.empty() && tracker_->belongs_here()) tracker_->arm(base_ + pages.begin, pages.size());
}

void PageWatch::mark_written(ByteRange range) noexcept {
  auto const pages = whole_pages(range);
  if (!pages.empty() && tracker_->belongs_here()) tracker_->disarm(base_ + pages.begin, pages.size());
}

ByteRange PageWatch::whole_pages(ByteRange range) const noexcept {
  auto const end = std::min(range.end, bytes_), begin = std::min(range.begin, end);
  if (begin == end) return {};
  auto const page = page_bytes();
  return {begin / page * page, (end + page - 1) / page * page};
}

}  // namespace unimem::detail
