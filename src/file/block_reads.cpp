#include "file/block_reads.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace unimem::detail {
namespace {

std::uint64_t rounded_down(std::uint64_t value, std::size_t multiple) noexcept {
  return value & ~static_cast<std::uint64_t>(multiple - 1);
}
std::uint64_t rounded_up(std::uint64_t value, std::size_t multiple) noexcept {
  return rounded_down(value + multiple - 1, multiple);
}

}  // namespace

bool BlockReads::Block::make_detour(std::size_t size) noexcept {
  if (detour_bytes >= size) return true;
  detour.reset(static_cast<std::byte*>(::operator new[](size, alignment, std::nothrow)));
  detour_bytes = detour ? size : 0;
  return detour != nullptr;
}

BlockReads::BlockReads(std::uint64_t offset, std::span<std::byte> to, DirectAlignment alignment,
                       ReadTerms const& terms) noexcept
    : begin_(offset),
      end_(offset + to.size()),
      to_(to),
      alignment_(alignment),
      terms_(terms),
      fits_((reinterpret_cast<std::uintptr_t>(to.data()) + (rounded_up(offset, alignment.offset) - offset)) %
                alignment.memory ==
            0),
      cursor_(rounded_down(offset, alignment.offset)),
      told_(offset) {}

bool BlockReads::next(Block& block) noexcept {
  if (terms_.stop && terms_.stop()) return false;
  {
    std::scoped_lock const lock(mutex_);
    if (failure_.code != 0 || cursor_ >= std::min(end_, file_end_)) return false;
    auto end = std::min(cursor_ + step(), rounded_up(end_, alignment_.offset));
    // The blocks at both ends apart, so that all between them goes where it belongs.
    if (fits_ && cursor_ < begin_) end = cursor_ + alignment_.offset;
    if (fits_ && end > end_ && end - cursor_ > alignment_.offset) end -= alignment_.offset;
    block.offset = cursor_;
    block.bytes = static_cast<std::size_t>(end - cursor_);
    cursor_ = end;
  }
  block.done = 0;
  block.attempts = {};
  if (fits_ && block.offset >= begin_ && block.offset + block.bytes <= end_) {
    block.memory = to_.data() + (block.offset - begin_);
    return true;
  }
  if (!block.make_detour(fits_ ? alignment_.offset : step())) {
    fail({ENOMEM, block.offset, block.bytes});
    return false;
  }
  block.memory = block.detour.get();
  return true;
}

bool BlockReads::take(Block& block, long result) noexcept {
  if (result < 0) {
    auto const error = static_cast<int>(-result);
    if (block.attempts.again(error, terms_.retries)) return true;
    fail({error, block.offset, block.bytes});
    return false;
  }
  block.done += static_cast<std::size_t>(result);
  // Less than a whole block of the file comes from its end alone.
  bool const ended = result == 0 || block.done % alignment_.offset != 0;
  if (ended && block.done < block.bytes) end_at(block.offset + block.done);
  bool const more = !ended && block.done < block.bytes;
  block.attempts.came(more, terms_.retries);
  if (more) return true;
  if (block.memory == block.detour.get()) {
    auto const first = std::max(block.offset, begin_), last = std::min(block.offset + block.done, end_);
    if (first < last) std::memcpy(to_.data() + (first - begin_), block.memory + (first - block.offset), last - first);
  }
  if (terms_.arrived) keep_arrival(block);
  return false;
}

void BlockReads::keep_arrival(Block const& block) noexcept try {
  std::scoped_lock const lock(mutex_);
  arrivals_.emplace(std::max(block.offset, begin_), std::min(block.offset + block.done, end_));
} catch (...) {
  fail({ENOMEM, block.offset, block.bytes});
}

bool BlockReads::has_news() const noexcept {
  std::scoped_lock const lock(mutex_);
  return !arrivals_.empty() && arrivals_.begin()->first <= told_;
}

std::span<const std::byte> BlockReads::take_news() noexcept {
  std::scoped_lock const lock(mutex_);
  auto const first = told_;
  while (!arrivals_.empty() && arrivals_.begin()->first <= told_) {
    told_ = std::max(told_, arrivals_.begin()->second);
    arrivals_.erase(arrivals_.begin());
  }
  return to_.subspan(first - begin_, told_ - first);
}

void BlockReads::pass_on() noexcept {
  if (!terms_.arrived) return;
  std::scoped_lock const in_order(passing_on_);
  auto const news = take_news();
  try {
    if (!news.empty()) terms_.arrived(news);
  } catch (...) {
    fail({ENOMEM, begin_, to_.size()});
  }
}

void BlockReads::fail(Failure failure) noexcept {
  std::scoped_lock const lock(mutex_);
  if (failure_.code == 0 || failure.offset < failure_.offset) failure_ = failure;
}

void BlockReads::end_at(std::uint64_t offset) noexcept {
  std::scoped_lock const lock(mutex_);
  file_end_ = std::min(file_end_, offset);
}

std::size_t BlockReads::found() const noexcept {
  return static_cast<std::size_t>(std::max(std::min(end_, file_end_), begin_) - begin_);
}

}  // namespace unimem::detail
