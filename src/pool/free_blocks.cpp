#include "pool/free_blocks.hpp"

#include "pool/mutants.hpp"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <utility>

namespace unimem::detail {
namespace {

// Asking whether a pending block is done may go to the driver. Thousands of blocks can wait for one long kernel; the
// oldest of a size end first, so if these many are still busy, looking further rarely pays.
constexpr int most_looks = 32;

}  // namespace

void FreeBlocks::add(BlockList& from, Block& block, std::chrono::steady_clock::time_point now) noexcept {
  block.cached_since = now;
  block.cached_as = ++releases_;
  by_age_.splice(by_age_.end(), from, block.place);
  by_capacity_.insert(std::move(block.node));
  bytes_ += block.capacity();
}

void FreeBlocks::add_released_earlier(BlockList& from, Block& block) noexcept {
  releases_ = std::max(releases_, block.cached_as);
  auto behind = by_age_.end();
  while (behind != by_age_.begin() && std::prev(behind)->cached_as > block.cached_as) --behind;
  by_age_.splice(behind, from, block.place);
  by_capacity_.insert(std::move(block.node));
  bytes_ += block.capacity();
}

void FreeBlocks::remove(Block& block, BlockList& to) noexcept {
  block.node = by_capacity_.extract(&block);
  to.splice(to.end(), by_age_, block.place);
  bytes_ -= block.capacity();
}

Block* FreeBlocks::find(std::size_t bytes, std::size_t largest, std::uint64_t queue, bool also_pending) noexcept {
  Block* pending = nullptr;
  int looks = 0;
  for (auto it = by_capacity_.lower_bound(bytes); it != by_capacity_.end() && looks < most_looks; ++it, ++looks) {
    if ((*it)->capacity() > largest) break;
    if (UNIMEM_MUTANT(tickets_ignored)) (*it)->inherited = (*it)->last_use = {};
    if ((*it)->ready_for(queue)) return *it;
    if (pending == nullptr && also_pending) pending = *it;
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
  std::size_t sum = 0;
  std::uint64_t previous = 0;
  for (auto it = by_age_.begin(); it != by_age_.end(); ++it) {
    if (it->place != it) throw std::logic_error("FreeBlocks: a block does not know its place");
    if (!it->node.empty()) throw std::logic_error("FreeBlocks: a cached block still holds its index node");
    if (it->cached_as < previous) throw std::logic_error("FreeBlocks: ages out of order");
    previous = it->cached_as;
    sum += it->capacity();
    auto const* const block = &*it;
    if (!std::ranges::binary_search(by_capacity_, block, SmallerThenOlder{})) {
      throw std::logic_error("FreeBlocks: a cached block is not in the index");
    }
  }
  if (by_capacity_.size() != by_age_.size())
    throw std::logic_error("FreeBlocks: the index holds a block that is not cached");
  if (sum != bytes_) throw std::logic_error("FreeBlocks: the bytes do not add up");
}

}  // namespace unimem::detail
