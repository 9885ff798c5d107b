#include "pool/magazines.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <thread>

namespace unimem::detail {
namespace {

/// Whether work on the queue with this id may start on the block at once. Asks its events if need be.
bool may_start(Block& block, std::uint64_t queue) noexcept {
  return block.parked_for == 0 || block.parked_for == queue || block.settled();
}

/// Takes the block at `at` out of the first `count`, which stay in order.
template <class Blocks, class Count>
void take_out(Blocks& blocks, Count& count, std::size_t at) noexcept {
  auto const from = blocks.begin() + static_cast<std::ptrdiff_t>(at);
  std::copy(from + 1, blocks.begin() + static_cast<std::ptrdiff_t>(count), from);
  --count;
}

}  // namespace

Magazines::Magazines() noexcept {
  for (std::size_t i = 0; i < small_classes; ++i) {
    auto const fit = Magazine::bytes_each / near_exact_limit(i);
    magazines_[i].most = std::clamp<std::size_t>(fit, 1, Magazine::slots);
  }
}

Block* Magazines::take(std::size_t bytes, std::uint64_t queue, Name name) noexcept {
  if (bytes > largest_small_block) return hand_out(large_.take(bytes, queue), name);
  auto const index = near_exact_class(bytes);
  auto& magazine = magazines_[index];
  for (std::size_t i = counts_[index]; i-- > 0;) {
    auto& block = *magazine.blocks[i];
    if (block.capacity() < bytes || !may_start(block, queue)) continue;
    take_out(magazine.blocks, counts_[index], i);
    ++magazine.hits;
    return hand_out(&block, name);
  }
  return nullptr;
}

Block* LargeMagazine::take(std::size_t bytes, std::uint64_t queue) noexcept {
  if (sent_on_ >= bytes && sent_on_ <= close_fit(bytes)) unclaimed_ = 0;
  Block* best = nullptr;
  std::size_t where = 0;
  for (std::size_t i = count_; i-- > 0;) {
    auto& block = *blocks_[i];
    if (block.capacity() < bytes || block.capacity() > close_fit(bytes)) continue;
    if (best != nullptr && block.capacity() >= best->capacity()) continue;
    if (!may_start(block, queue)) continue;
    best = &block;
    where = i;
  }
  if (best == nullptr) return nullptr;
  take_out(blocks_, count_, where);
  claimed(bytes);
  bytes_.store(this->bytes() - best->capacity(), std::memory_order_relaxed);
  return best;
}

void Magazines::pass_on(Block& block, std::size_t bytes, Name name) noexcept {
  large_.claimed(bytes);
  auto const had = fewest_bytes_ + static_cast<std::ptrdiff_t>(block.capacity());
  fewest_bytes_ = std::min(had, static_cast<std::ptrdiff_t>(this->bytes()));
  block.unpark(name);
}

Block& LargeMagazine::take_oldest() noexcept {
  auto& oldest = *blocks_.front();
  take_out(blocks_, count_, 0);
  bytes_.store(bytes() - oldest.capacity(), std::memory_order_relaxed);
  return oldest;
}

Block& Magazines::take_oldest_large() noexcept {
  auto& oldest = large_.take_oldest();
  auto const nothing_else = [](Block&) {};
  forget(oldest, nothing_else);
  return oldest;
}

std::size_t Magazines::take_half(std::size_t bytes, std::span<Block*, Magazine::slots> taken) noexcept {
  auto const index = near_exact_class(bytes);
  auto& blocks = magazines_[index].blocks;
  std::size_t const count = counts_[index];
  auto const half = (count + 1) / 2;
  std::size_t gone = 0;
  auto const note = [&](Block& one) { taken[gone++] = &one; };
  for (std::size_t i = 0; i < half; ++i) forget(*blocks[i], note);
  std::copy(blocks.begin() + static_cast<std::ptrdiff_t>(half), blocks.begin() + static_cast<std::ptrdiff_t>(count),
            blocks.begin());
  counts_[index] = static_cast<Count>(count - half);
  return gone;
}

void OwnerGate::wait_for_owner() const noexcept {
  // Acquire: behind the owner's `leave`.
  while (inside_.load(std::memory_order_acquire)) std::this_thread::yield();
}

}  // namespace unimem::detail
