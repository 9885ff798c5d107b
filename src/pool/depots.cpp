#include "pool/depots.hpp"

#include "pool/near_exact.hpp"

#include <algorithm>
#include <stdexcept>

namespace unimem::detail {

std::size_t Depots::put(std::span<Block* const> blocks) noexcept {
  auto const each = blocks.front()->capacity();
  auto const number = near_exact_class(each);
  auto& depot = small_[number];
  auto const held = bytes();
  auto const worth = held >= most_bytes ? 0 : (most_bytes - held) / each;
  std::lock_guard const lock{depot.lock};
  auto const count = std::min({blocks.size(), most_each - depot.count, worth});
  if (count == 0) return 0;
  if (depot.count == 0) set_occupied(number, true);
  std::size_t sum = 0;
  for (auto* const block : blocks.first(count)) {
    depot.push(*block);
    sum += block->capacity();
  }
  bytes_.fetch_add(sum, std::memory_order_relaxed);
  return count;
}

std::size_t Depots::take(std::size_t bytes, std::span<Block*> blocks) noexcept {
  auto const number = near_exact_class(bytes);
  if (!is_occupied(number)) return 0;
  auto& depot = small_[number];
  std::lock_guard const lock{depot.lock};
  auto const count = std::min(blocks.size(), depot.count);
  if (count == 0) return 0;
  std::size_t sum = 0;
  for (auto& block : blocks.first(count)) {
    block = &depot.pop();
    sum += block->capacity();
  }
  bytes_.fetch_sub(sum, std::memory_order_relaxed);
  if (depot.count == 0) set_occupied(number, false);
  return count;
}

bool Depots::put_large(Block& block) noexcept {
  std::lock_guard const lock{large_.lock};
  if (large_.count == large_slots) return false;
  if (unclaimed_ >= patience_) {
    refused_.store(block.capacity(), std::memory_order_relaxed);
    return false;
  }
  ++unclaimed_;
  if (large_.count == 0) set_occupied(large_number, true);
  large_.capacities[large_.count] = block.capacity();
  large_.blocks[large_.count++] = &block;
  bytes_.fetch_add(block.capacity(), std::memory_order_relaxed);
  large_bytes_.store(large_bytes() + block.capacity(), std::memory_order_relaxed);
  return true;
}

Block* Depots::take_large(std::size_t bytes, std::uint64_t queue) noexcept {
  auto const most = close_fit(bytes);
  auto const refused = refused_.load(std::memory_order_relaxed);
  bool const missed = refused >= bytes && refused <= most;
  if (!missed && !is_occupied(large_number)) return nullptr;
  std::lock_guard const lock{large_.lock};
  if (missed) {
    unclaimed_ = 0;
    patience_ = std::min<std::uint32_t>(2 * patience_, large_slots);
    refused_.store(0, std::memory_order_relaxed);
  }
  auto const take_out = [this](auto& all, std::size_t at) {
    std::copy(all.begin() + static_cast<std::ptrdiff_t>(at) + 1,
              all.begin() + static_cast<std::ptrdiff_t>(large_.count), all.begin() + static_cast<std::ptrdiff_t>(at));
  };
  for (std::size_t i = large_.count; i-- > 0;) {
    if (large_.capacities[i] < bytes || large_.capacities[i] > most) continue;
    auto& block = *large_.blocks[i];
    if (block.parked_for != 0 && block.parked_for != queue) continue;
    take_out(large_.capacities, i);
    take_out(large_.blocks, i);
    if (--large_.count == 0) set_occupied(large_number, false);
    unclaimed_ = 0;
    bytes_.fetch_sub(block.capacity(), std::memory_order_relaxed);
    large_bytes_.store(large_bytes() - block.capacity(), std::memory_order_relaxed);
    return &block;
  }
  return nullptr;
}

void Depots::validate() const {
  auto const check = [this](auto const& depot, std::size_t number) {
    if (is_occupied(number) != (depot.count != 0)) throw std::logic_error("Depots: a bit contradicts its depot");
  };
  for (std::size_t number = 0; number < small_.size(); ++number) check(small_[number], number);
  check(large_, large_number);
}

}  // namespace unimem::detail
