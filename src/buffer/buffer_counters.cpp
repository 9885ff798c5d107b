#include "buffer/buffer_counters.hpp"

#include <algorithm>
#include <utility>

namespace unimem::detail {
namespace {

constexpr auto relaxed = std::memory_order_relaxed;  // counts alone: nothing else is published through them

}  // namespace

void BufferCounters::count(Direction direction, std::size_t bytes, CopyPath path, std::size_t copies) noexcept {
  if (path == CopyPath::staged) staged_.fetch_add(copies, relaxed);
  if (path == CopyPath::unstaged) unstaged_.fetch_add(copies, relaxed);
  auto& sum = direction == Direction::upload ? uploads_ : direction == Direction::download ? downloads_ : between_;
  sum.bytes.fetch_add(bytes, relaxed);
  sum.copies.fetch_add(copies, relaxed);
}

void BufferCounters::count_on_link(std::string from, std::string to, std::size_t bytes, std::size_t copies) {
  auto link = std::ranges::find_if(links_, [&](auto const& one) { return one.from == from && one.to == to; });
  if (link == links_.end()) link = links_.insert(links_.end(), {std::move(from), std::move(to), 0, 0});
  link->copies += copies;
  link->bytes += bytes;
}

SharedMeter BufferCounters::meter(Direction direction) {
  if (!meters_) {
    auto made = std::make_shared<Meters>();
    SpinGuard const held{meters_lock_};
    meters_ = std::move(made);
  }
  auto& one = direction == Direction::upload     ? meters_->uploads
              : direction == Direction::download ? meters_->downloads
                                                 : meters_->between;
  return {meters_, &one};
}

BufferStatistics BufferCounters::statistics() const noexcept {
  static Meters const none;
  std::shared_ptr<Meters const> seen;
  if (SpinGuard const held{meters_lock_}) seen = meters_;  // a reset may take them away
  auto const& meters = seen == nullptr ? none : *seen;
  return {uploads_.bytes.load(relaxed),
          uploads_.copies.load(relaxed),
          downloads_.bytes.load(relaxed),
          downloads_.copies.load(relaxed),
          between_.bytes.load(relaxed),
          between_.copies.load(relaxed),
          conflicting_marks_.load(relaxed),
          unmarked_writes_.load(relaxed),
          staged_.load(relaxed),
          unstaged_.load(relaxed),
          meters.uploads.nanoseconds(),
          meters.downloads.nanoseconds(),
          meters.between.nanoseconds(),
          meters.uploads.untimed() + meters.downloads.untimed() + meters.between.untimed()};
}

void BufferCounters::reset() noexcept {
  for (auto* const counter : {&uploads_.bytes, &uploads_.copies, &downloads_.bytes, &downloads_.copies, &between_.bytes,
                              &between_.copies, &conflicting_marks_, &unmarked_writes_, &staged_, &unstaged_}) {
    counter->store(0, relaxed);
  }
  links_.clear();
  SpinGuard const held{meters_lock_};
  meters_.reset();
}

}  // namespace unimem::detail
