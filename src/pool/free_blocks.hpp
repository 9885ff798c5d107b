#pragma once

#include "pool/block.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace unimem::detail {

/// The cached blocks of a pool, found by size for reuse and by age for giving back.
///
/// Three orders over the same nodes: a list in the order of release, a search tree by capacity, and the order of
/// release once more for each doubling of the capacity. Everything but `validate` relinks nodes and cannot fail. Not
/// thread-safe; the pool locks.
class FreeBlocks {
 public:
  /// Caches a block of the list `from`.
  void add(BlockList& from, Block& block, std::chrono::steady_clock::time_point now) noexcept;

  /// Caches a block that was released before now, as `cached_as` says: it is put among the others by its age.
  void add_released_earlier(BlockList& from, Block& block) noexcept;

  /// The number of the latest release it knows of.
  [[nodiscard]] std::uint64_t releases() const noexcept { return releases_; }
  void catch_up(std::uint64_t releases) noexcept { releases_ = std::max(releases_, releases); }

  /// Moves a cached block to the end of the list `to`.
  void remove(Block& block, BlockList& to) noexcept;

  /// The best fit for `bytes` on the queue with this id (0: the host): the smallest block of at most `largest` bytes
  /// that needs no waiting, else (if pending ones will do) the smallest, else null. O(log n), and a bounded number of
  /// looks at pending blocks.
  [[nodiscard]] Block* find(std::size_t bytes, std::size_t largest, std::uint64_t queue, bool also_pending) noexcept;

  /// Takes the oldest blocks until they make up at least `bytes`, or there are no more. Pending ones are left unless
  /// asked for.
  [[nodiscard]] BlockList take_oldest(std::size_t bytes, bool also_pending) noexcept;

  /// Takes blocks that hold the most memory for the longest, capacity times the releases since their own, until they
  /// make up at least `bytes`. Large ones go so after a little while, small ones, which cost next to nothing to keep,
  /// after a long one. Leaves pending ones, and those behind several that are.
  [[nodiscard]] BlockList take_bulkiest(std::size_t bytes) noexcept;

  /// Takes the blocks released before or with this number, oldest first, without pending ones.
  [[nodiscard]] BlockList take_released_until(std::uint64_t number) noexcept;

  /// Takes the blocks that are done, oldest first, but for those behind many that are not.
  [[nodiscard]] BlockList take_settled() noexcept;

  /// Takes the blocks cached before `time`, oldest first, without pending ones.
  [[nodiscard]] BlockList take_cached_before(std::chrono::steady_clock::time_point time) noexcept;

  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::size_t largest() const noexcept {
    return by_capacity_.empty() ? 0 : (*by_capacity_.rbegin())->capacity();
  }

  /// Oldest first.
  [[nodiscard]] BlockList const& by_age() const noexcept { return by_age_; }

  /// Throws std::logic_error unless both orders hold the same blocks, sorted, and the bytes add up.
  void validate() const;

 private:
  /// The cached blocks of one doubling, chained by `Block::newer`.
  struct Chain {
    Block* oldest = nullptr;
    Block* newest = nullptr;
  };

  [[nodiscard]] Chain& chain_of(Block const& block) noexcept;
  void chain(Block& block) noexcept;
  void unchain(Block& block) noexcept;
  [[nodiscard]] Block* bulkiest() const noexcept;

  BlockList by_age_;
  BlockIndex by_capacity_;
  std::array<Chain, 64> chains_{};
  std::uint64_t occupied_ = 0;  ///< a bit for each chain that has anything
  std::size_t bytes_ = 0;
  std::uint64_t releases_ = 0;
};

}  // namespace unimem::detail
