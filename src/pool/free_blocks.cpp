#include "pool/free_blocks.hpp"

#include <algorithm>
#include <bit>
#include <iterator>
#include <stdexcept>
#include <string>

namespace unimem::detail {
namespace {

// Asking whether a pending block is done may go to the driver. Thousands of blocks can wait for one long kernel; the
// oldest of a size end first, so if these many are still busy, looking further rarely pays.
constexpr int most_looks = 32;

// The same for the few of each doubling that are the first to be given back.
constexpr int most_looks_each = 4;

[[nodiscard]] std::size_t doubling_of(Block const& block) noexcept {
  return static_cast<std::size_t>(std::bit_width(block.capacity() | 1)) - 1;
}

/// Puts a block behind those that were released before it: at the end, as a rule.
template <class List>
void insert_by_age(List& list, Block& block) noexcept {
  auto behind = list.end();
  while (behind != list.begin() && std::prev(behind)->cached_as > block.cached_as) --behind;
  list.insert(behind, block);
}

}  // namespace

void FreeBlocks::add(Block& block, std::chrono::steady_clock::time_point now) noexcept {
  block.cached_since = now;
  block.cached_as = releases_ + 1;
  add_released_earlier(block);
}

void FreeBlocks::add_released_earlier(Block& block) noexcept {
  releases_ = std::max(releases_, block.cached_as);
  block.place.unlink();
  insert_by_age(by_age_, block);
  by_capacity_.insert(block);
  auto const doubling = doubling_of(block);
  insert_by_age(doublings_[doubling], block);
  occupied_ |= std::uint64_t{1} << doubling;
  bytes_ += block.capacity();
}

void FreeBlocks::remove(Block& block, BlockList& to) noexcept {
  by_capacity_.erase(by_capacity_.iterator_to(block));
  block.in_doubling.unlink();
  auto const doubling = doubling_of(block);
  if (doublings_[doubling].empty()) occupied_ &= ~(std::uint64_t{1} << doubling);
  move_to(to, block);
  bytes_ -= block.capacity();
}

Block* FreeBlocks::find(std::size_t bytes, std::size_t largest, std::uint64_t queue, bool also_pending) noexcept {
  Block* pending = nullptr;
  int looks = 0;
  auto it = by_capacity_.lower_bound(bytes, SmallerThenOlder{});
  for (; it != by_capacity_.end() && looks < most_looks; ++it, ++looks) {
    if (it->capacity() > largest) break;
    if (it->ready_for(queue)) return &*it;
    if (pending == nullptr && also_pending) pending = &*it;
  }
  return pending;
}

BlockList FreeBlocks::take_oldest(std::size_t bytes, bool also_pending) noexcept {
  BlockList taken;
  std::size_t sum = 0;
  for (auto it = by_age_.begin(); it != by_age_.end() && sum < bytes;) {
    auto& block = *it++;
    if (!also_pending && !block.settled()) continue;
    sum += block.capacity();
    remove(block, taken);
  }
  return taken;
}

BlockList FreeBlocks::take_bulkiest(std::size_t bytes) noexcept {
  BlockList taken;
  for (std::size_t sum = 0; sum < bytes;) {
    auto* const block = bulkiest();
    if (block == nullptr) break;
    sum += block->capacity();
    remove(*block, taken);
  }
  return taken;
}

Block* FreeBlocks::bulkiest() noexcept {
  Block* bulkiest = nullptr;
  double most = 0;
  // The oldest of a doubling stands for all of it: the others are at most twice as large, and younger.
  for (auto left = occupied_; left != 0; left &= left - 1) {
    auto& peers = doublings_[static_cast<std::size_t>(std::countr_zero(left))];
    int looks = most_looks_each;
    auto block = peers.begin();
    while (block != peers.end() && looks-- > 0 && !block->settled()) ++block;
    if (block == peers.end() || looks < 0) continue;
    auto const bulk = static_cast<double>(block->capacity()) * static_cast<double>(releases_ - block->cached_as + 1);
    if (bulk <= most) continue;
    most = bulk;
    bulkiest = &*block;
  }
  return bulkiest;
}

BlockList FreeBlocks::take_released_until(std::uint64_t number) noexcept {
  BlockList taken;
  for (auto it = by_age_.begin(); it != by_age_.end() && it->cached_as <= number;) {
    auto& block = *it++;
    if (block.settled()) remove(block, taken);
  }
  return taken;
}

BlockList FreeBlocks::take_settled() noexcept {
  BlockList taken;
  int looks = 0;
  for (auto it = by_age_.begin(); it != by_age_.end() && looks < most_looks;) {
    auto& block = *it++;
    if (block.settled()) {
      remove(block, taken);
    } else {
      ++looks;
    }
  }
  return taken;
}

BlockList FreeBlocks::take_cached_before(std::chrono::steady_clock::time_point time) noexcept {
  BlockList taken;
  for (auto it = by_age_.begin(); it != by_age_.end() && it->cached_since < time;) {
    auto& block = *it++;
    if (block.settled()) remove(block, taken);
  }
  return taken;
}

void FreeBlocks::validate() const {
  auto const require = [](bool holds, char const* broken) {
    if (!holds) throw std::logic_error(std::string("FreeBlocks: ") + broken);
  };
  std::size_t sum = 0, cached = 0, indexed = 0, doubled = 0;
  for (auto const& block : by_age_) {
    sum += block.capacity();
    ++cached;
    require(block.by_capacity.is_linked() && block.in_doubling.is_linked(), "a cached block is not in all orders");
  }
  for (auto const& block : by_capacity_) indexed += block.place.is_linked() ? 1 : 0;
  for (std::size_t i = 0; i < doublings_.size(); ++i) {
    auto const& peers = doublings_[i];
    doubled += peers.size();
    require(std::ranges::is_sorted(peers, {}, &Block::cached_as), "a doubling out of order");
    require(std::ranges::all_of(peers, [i](auto const& block) { return doubling_of(block) == i; }),
            "a block in another's doubling");
    require((occupied_ >> i & 1) == (peers.empty() ? 0U : 1U), "a doubling's bit says something else");
  }
  require(std::ranges::is_sorted(by_age_, {}, &Block::cached_as), "ages out of order");
  require(std::ranges::is_sorted(by_capacity_, SmallerThenOlder{}), "the index is out of order");
  require(indexed == cached && doubled == cached, "an order holds a block that is not cached");
  require(sum == bytes_, "the bytes do not add up");
}

}  // namespace unimem::detail
