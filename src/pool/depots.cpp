#include "pool/depots.hpp"

#include "pool/near_exact.hpp"

#include <algorithm>
#include <thread>

namespace unimem::detail {

void BriefLock::lock() noexcept {
  constexpr int looks = 64;  // its holder is through in a fraction of that, unless he was put to sleep inside
  for (int look = 0; held_.exchange(true, std::memory_order_acquire); ++look) {
    while (held_.load(std::memory_order_relaxed) && look < looks) ++look;
    if (look >= looks) std::this_thread::yield();
  }
}

std::size_t Depots::put(std::span<Block* const> blocks) noexcept {
  auto const each = blocks.front()->capacity();
  auto& depot = small_[near_exact_class(each)];
  auto const held = bytes();
  auto const worth = held >= most_bytes ? 0 : (most_bytes - held) / each;
  std::lock_guard const lock{depot.lock};
  auto const count = std::min({blocks.size(), depot.blocks.size() - depot.count, worth});
  for (std::size_t i = 0; i < count; ++i) add(depot, *blocks[i]);
  return count;
}

std::size_t Depots::take(std::size_t bytes, std::span<Block*> blocks) noexcept {
  auto& depot = small_[near_exact_class(bytes)];
  std::lock_guard const lock{depot.lock};
  auto const count = std::min(blocks.size(), depot.count);
  for (std::size_t i = 0; i < count; ++i) {
    blocks[i] = depot.blocks[--depot.count];
    bytes_.fetch_sub(blocks[i]->capacity(), std::memory_order_relaxed);
  }
  return count;
}

bool Depots::put_large(Block& block) noexcept {
  std::lock_guard const lock{large_.lock};
  if (large_.count == large_.blocks.size()) return false;
  if (large_.count != 0 && bytes() + block.capacity() > most_bytes) return false;
  add(large_, block);
  return true;
}

Block* Depots::take_large(std::size_t bytes, std::uint64_t queue) noexcept {
  std::lock_guard const lock{large_.lock};
  for (std::size_t i = large_.count; i-- > 0;) {
    auto& block = *large_.blocks[i];
    if (block.capacity() < bytes || block.capacity() > close_fit(bytes)) continue;
    if (block.parked_for != 0 && block.parked_for != queue) continue;
    std::copy(large_.blocks.begin() + static_cast<std::ptrdiff_t>(i) + 1,
              large_.blocks.begin() + static_cast<std::ptrdiff_t>(large_.count),
              large_.blocks.begin() + static_cast<std::ptrdiff_t>(i));
    --large_.count;
    bytes_.fetch_sub(block.capacity(), std::memory_order_relaxed);
    return &block;
  }
  return nullptr;
}

}  // namespace unimem::detail
