#pragma once

#include "core/brief_lock.hpp"
#include "pool/block.hpp"
#include "pool/magazines.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace unimem::detail {

/// Where threads exchange parked blocks in batches: what one releases another acquires, though neither may look into
/// the other's magazines. One small lock a class, each on cache lines of its own. Large blocks share one depot. A bit
/// says of each whether it has anything, so that no thread locks the empty ones to find nothing.
///
/// Thread-safe. `put` and `take` are for owners of magazines while inside: a thread that has seized all magazines has
/// the depots too.
class Depots {
 public:
  /// What is here is brought back before memory is taken in its place: so these bound how long that takes, no more.
  static constexpr std::size_t most_bytes = std::size_t{256} << 20;  ///< all small ones together
  static constexpr std::size_t most_each = 512;                      ///< of a class
  static constexpr std::size_t large_slots = 128;  ///< of any size: before memory is taken in their place they go back

  /// Takes no memory unless it will be used.
  explicit Depots(bool used) : small_(used ? small_classes : 0) {}

  /// Puts as many of `blocks` here as there is room for, from the front, and returns how many. All are of one small
  /// class.
  [[nodiscard]] std::size_t put(std::span<Block* const> blocks) noexcept;

  /// Takes up to `blocks.size()` small blocks of the class of `bytes`, the latest first.
  [[nodiscard]] std::size_t take(std::size_t bytes, std::span<Block*> blocks) noexcept;

  /// The same for one large block. None is put here while none are taken, until one is asked for that would
  /// have been here; and then twice as many are put here in a row, since they are taken late. Takes one
  /// that fits `bytes` and that work on the queue with this id may start on at once, or null.
  [[nodiscard]] bool put_large(Block& block) noexcept;
  [[nodiscard]] Block* take_large(std::size_t bytes, std::uint64_t queue) noexcept;

  /// Calls `each(Block&)` for every block, or every large one, and forgets them. The magazines are seized.
  template <class Each>
  void take_all(Each each) noexcept {
    for (std::size_t word = 0; word < occupied_.size(); ++word) {
      for (auto left = occupied_[word].load(std::memory_order_relaxed); left != 0; left &= left - 1) {
        auto const number = word * word_bits + static_cast<std::size_t>(std::countr_zero(left));
        if (number == large_number) {
          take_all_large(each);
        } else {
          take_all_small(number, each);
        }
      }
    }
  }
  template <class Each>
  void take_all_large(Each each) noexcept {
    if (!is_occupied(large_number)) return;
    std::lock_guard const lock{large_.lock};
    patience_ = std::max(patience_ / 2, Magazines::most_unclaimed);  // they were wanted elsewhere
    bytes_.fetch_sub(large_bytes(), std::memory_order_relaxed);
    large_bytes_.store(0, std::memory_order_relaxed);
    set_occupied(large_number, false);
    auto const count = std::exchange(large_.count, 0);
    for (std::size_t i = 0; i < count; ++i) each(*large_.blocks[i]);
  }

  /// Calls `each(Block const&)` for every block. The magazines are seized.
  template <class Each>
  void for_each(Each each) const {
    for (auto const& depot : small_) {
      for (auto const* block = depot.top; block != nullptr; block = block->below) each(*block);
    }
    for (std::size_t i = 0; i < large_.count; ++i) each(*large_.blocks[i]);
  }

  /// Throws std::logic_error unless the bits say which depots have something. The magazines are seized.
  void validate() const;

  /// Bytes in here, and those of them in large blocks; a moment ago. Relaxed, as all in here: blocks change hands under
  /// the depots' locks, and what is read without them is a hint.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::size_t large_bytes() const noexcept { return large_bytes_.load(std::memory_order_relaxed); }

 private:
  /// The latest on top, each with the one below it for `Block::below`.
  struct alignas(128) Depot {
    BriefLock lock;
    std::size_t count = 0;
    Block* top = nullptr;

    void push(Block& block) noexcept {
      block.below = std::exchange(top, &block);
      ++count;
    }
    [[nodiscard]] Block& pop() noexcept {
      --count;
      auto& block = *top;
      top = std::exchange(block.below, nullptr);
      return block;
    }
  };

  struct alignas(128) LargeDepot {
    BriefLock lock;
    std::size_t count = 0;
    std::array<std::size_t, large_slots>
        capacities{};  ///< of the blocks: a search that finds none has looked at none of them
    std::array<Block*, large_slots> blocks{};
  };

  static constexpr std::size_t word_bits = 64;
  static constexpr std::size_t large_number = small_classes;  ///< the number of the depot of large blocks

  /// Whether a depot has anything; a moment ago. Changes under its lock alone.
  [[nodiscard]] bool is_occupied(std::size_t number) const noexcept {
    return (occupied_[number / word_bits].load(std::memory_order_relaxed) >> number % word_bits & 1) != 0;
  }
  void set_occupied(std::size_t number, bool occupied) noexcept {
    auto const bit = std::uint64_t{1} << number % word_bits;
    auto& word = occupied_[number / word_bits];
    if (occupied) {
      word.fetch_or(bit, std::memory_order_relaxed);
    } else {
      word.fetch_and(~bit, std::memory_order_relaxed);
    }
  }

  template <class Each>
  void take_all_small(std::size_t number, Each& each) noexcept {
    auto& depot = small_[number];
    std::lock_guard const lock{depot.lock};
    while (depot.count != 0) {
      auto& block = depot.pop();
      bytes_.fetch_sub(block.capacity(), std::memory_order_relaxed);
      each(block);
    }
    set_occupied(number, false);
  }

  std::atomic<std::size_t> bytes_{0};
  std::atomic<std::size_t> large_bytes_{0};  ///< changes under the lock of the large ones
  std::array<std::atomic<std::uint64_t>, (large_number + word_bits) / word_bits> occupied_{};
  std::vector<Depot> small_;
  LargeDepot large_;
  std::uint32_t unclaimed_ = 0;  ///< large blocks put here since one was last taken; under its lock
  std::uint32_t patience_ = Magazines::most_unclaimed;  ///< how many may be put here in a row; under its lock
  std::atomic<std::size_t> refused_{0};  ///< the size of the last that was refused for that, 0 if none was
};

}  // namespace unimem::detail
