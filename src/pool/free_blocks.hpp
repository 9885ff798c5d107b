#pragma once

#include "pool/block.hpp"

#include <boost/intrusive/set.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace unimem::detail {

/// The cached blocks of a pool, found by size for reuse and by age for giving back.
///
/// Three orders over the same blocks: a list in the order of release, a search tree by capacity, and the order of
/// release once more for each doubling of the capacity. Everything but `validate` relinks blocks and cannot fail. Not
/// thread-safe; the pool locks.
class FreeBlocks {
 public:
  /// Caches a block, from whichever list it is in.
  void add(Block& block, std::chrono::steady_clock::time_point now) noexcept;

  /// Caches a block that was released before now, as `cached_as` says: it is put among the others by its age.
  void add_released_earlier(Block& block) noexcept;

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
    return by_capacity_.empty() ? 0 : by_capacity_.rbegin()->capacity();
  }

  /// Oldest first.
  [[nodiscard]] BlockList const& by_age() const noexcept { return by_age_; }

  /// Throws std::logic_error unless all orders hold the same blocks, sorted, and the bytes add up.
  void validate() const;

 private:
  /// Smallest first; among equals the one cached longest, whose work is the likeliest to have ended. Threads that know
  /// nothing of each other may give the same number.
  struct SmallerThenOlder {
    [[nodiscard]] bool operator()(Block const& a, Block const& b) const noexcept {
      return a.capacity() != b.capacity() ? a.capacity() < b.capacity() : a.cached_as < b.cached_as;
    }
    [[nodiscard]] bool operator()(Block const& block, std::size_t capacity) const noexcept {
      return block.capacity() < capacity;
    }
  };
  using ByCapacity =
      boost::intrusive::multiset<Block, boost::intrusive::member_hook<Block, Block::TreeHook, &Block::by_capacity>,
                                 boost::intrusive::compare<SmallerThenOlder>,
                                 boost::intrusive::constant_time_size<false>>;

  [[nodiscard]] Block* bulkiest() noexcept;

  BlockList by_age_;
  ByCapacity by_capacity_;
  std::array<BlockListBy<&Block::in_doubling>, 64> doublings_;  ///< oldest first
  std::uint64_t occupied_ = 0;                                  ///< a bit for each doubling that has anything
  std::size_t bytes_ = 0;
  std::uint64_t releases_ = 0;
};

}  // namespace unimem::detail
