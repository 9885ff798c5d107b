#include "buffer/buffer_counters.hpp"

#include <algorithm>
#include <utility>

namespace unimem::detail {
namespace {

constexpr auto relaxed = std::memory_order_relaxed;  // counts alone: nothing else is published through them

}  // namespace

void BufferCounters::count(Direction direction, std::size_t bytes, CopyPath path, std::size_t copies) noexcept {
  if (path == CopyPath::staged) copies_->staged.fetch_add(copies, relaxed);
  if (path == CopyPath::unstaged) copies_->unstaged.fetch_add(copies, relaxed);
  auto& sum = copies_->of(direction);
  sum.bytes.fetch_add(bytes, relaxed);
  sum.copies.fetch_add(copies, relaxed);
}

void BufferCounters::count_on_link(std::string from, std::string to, std::size_t bytes, std::size_t copies) {
  make_ready();
  auto& links = copies_->links;
  auto link = std::ranges::find_if(links, [&](auto const& one) { return one.from == from && one.to == to; });
  if (link == links.end()) link = links.insert(links.end(), {std::move(from), std::move(to), 0, 0});
  link->copies += copies;
  link->bytes += bytes;
}

void BufferCounters::make_ready() {
  if (copies_) return;
  auto made = std::make_shared<Copies>();
  SpinGuard const held{copies_lock_};
  copies_ = std::move(made);
}

SharedMeter BufferCounters::meter(Direction direction) {
  make_ready();
  return {copies_, &copies_->of(direction).meter};
}

BufferStatistics BufferCounters::statistics() const noexcept {
  static Copies const none;
  std::shared_ptr<Copies const> seen;
  if (SpinGuard const held{copies_lock_}) seen = copies_;  // a reset may take them away
  auto const& [uploads, downloads, between, staged, unstaged, links] = seen == nullptr ? none : *seen;
  return {uploads.bytes.load(relaxed),
          uploads.copies.load(relaxed),
          downloads.bytes.load(relaxed),
          downloads.copies.load(relaxed),
          between.bytes.load(relaxed),
          between.copies.load(relaxed),
          conflicting_marks_.load(relaxed),
          unmarked_writes_.load(relaxed),
          staged.load(relaxed),
          unstaged.load(relaxed),
          uploads.meter.nanoseconds(),
          downloads.meter.nanoseconds(),
          between.meter.nanoseconds(),
          uploads.meter.untimed() + downloads.meter.untimed() + between.meter.untimed()};
}

void BufferCounters::reset() noexcept {
  conflicting_marks_.store(0, relaxed);
  unmarked_writes_.store(0, relaxed);
  std::shared_ptr<Copies> gone;
  SpinGuard const held{copies_lock_};
  gone.swap(copies_);
}

}  // namespace unimem::detail
