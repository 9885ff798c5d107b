#include "pool/free_blocks.hpp"

#include <algorithm>
#include <bit>
#include <iterator>
#include <stdexcept>
#include <utility>

namespace unimem::detail {
namespace {

// Asking whether a pending block is done may go to the driver. Thousands of blocks can wait for one long kernel; the
// oldest of a size end first, so if these many are still busy, looking further rarely pays.
constexpr int most_looks = 32;

// The same for the few of each doubling that are the first to be given back.
constexpr int most_looks_each = 4;

}  // namespace

void FreeBlocks::add(BlockList& from, Block& block, std::chrono::steady_clock::time_point now) noexcept {
  block.cached_since = now;
  block.cached_as = ++releases_;
  by_age_.splice(by_age_.end(), from, block.place);
  by_capacity_.insert(std::move(block.node));
  chain(block);
  bytes_ += block.capacity();
}

void FreeBlocks::add_released_earlier(BlockList& from, Block& block) noexcept {
  releases_ = std::max(releases_, block.cached_as);
  auto behind = by_age_.end();
  while (behind != by_age_.begin() && std::prev(behind)->cached_as > block.cached_as) --behind;
  by_age_.splice(behind, from, block.place);
  by_capacity_.insert(std::move(block.node));
  chain(block);
  bytes_ += block.capacity();
}

void FreeBlocks::remove(Block& block, BlockList& to) noexcept {
  block.node = by_capacity_.extract(&block);
  unchain(block);
  to.splice(to.end(), by_age_, block.place);
  bytes_ -= block.capacity();
}

Block* FreeBlocks::find(std::size_t bytes, std::size_t largest, std::uint64_t queue, bool also_pending) noexcept {
  Block* pending = nullptr;
  int looks = 0;
  for (auto it = by_capacity_.lower_bound(bytes); it != by_capacity_.end() && looks < most_looks; ++it, ++looks) {
    if ((*it)->capacity() > largest) break;
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

Block* FreeBlocks::bulkiest() const noexcept {
  Block* bulkiest = nullptr;
  double most = 0;
  // The oldest of a doubling stands for all of it: the others are at most twice as large, and younger.
  for (auto left = occupied_; left != 0; left &= left - 1) {
    int looks = most_looks_each;
    auto* block = chains_[static_cast<std::size_t>(std::countr_zero(left))].oldest;
    while (block != nullptr && looks-- > 0 && !block->settled()) block = block->newer;
    if (block == nullptr || looks < 0) continue;
    auto const bulk = static_cast<double>(block->capacity()) * static_cast<double>(releases_ - block->cached_as + 1);
    if (bulk <= most) continue;
    most = bulk;
    bulkiest = block;
  }
  return bulkiest;
}

FreeBlocks::Chain& FreeBlocks::chain_of(Block const& block) noexcept {
  return chains_[static_cast<std::size_t>(std::bit_width(block.capacity() | 1)) - 1];
}

void FreeBlocks::chain(Block& block) noexcept {
  auto& chain = chain_of(block);
  auto* before = chain.newest;
  while (before != nullptr && before->cached_as > block.cached_as) before = before->older;
  block.older = before;
  block.newer = before == nullptr ? chain.oldest : before->newer;
  (block.older == nullptr ? chain.oldest : block.older->newer) = &block;
  (block.newer == nullptr ? chain.newest : block.newer->older) = &block;
  occupied_ |= std::uint64_t{1} << (&chain - chains_.data());
}

void FreeBlocks::unchain(Block& block) noexcept {
  auto& chain = chain_of(block);
  (block.older == nullptr ? chain.oldest : block.older->newer) = block.newer;
  (block.newer == nullptr ? chain.newest : block.newer->older) = block.older;
  block.older = block.newer = nullptr;
  if (chain.oldest == nullptr) occupied_ &= ~(std::uint64_t{1} << (&chain - chains_.data()));
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
  std::size_t chained = 0;
  for (std::size_t i = 0; i < chains_.size(); ++i) {
    Block const* before = nullptr;
    for (auto const* block = chains_[i].oldest; block != nullptr; block = block->newer) {
      bool const in_order = block->older == before && (before == nullptr || before->cached_as <= block->cached_as);
      if (!in_order) throw std::logic_error("FreeBlocks: a chain out of order");
      before = block;
      ++chained;
    }
    bool const known = chains_[i].newest == before && (occupied_ >> i & 1) == (before == nullptr ? 0U : 1U);
    if (!known) throw std::logic_error("FreeBlocks: the end of a chain, or its bit, says something else");
  }
  if (chained != by_age_.size()) throw std::logic_error("FreeBlocks: a cached block is in no chain");
}

}  // namespace unimem::detail
