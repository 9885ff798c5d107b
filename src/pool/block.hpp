#pragma once

#include <unimem/core/name.hpp>
#include <unimem/device/event.hpp>
#include <unimem/device/memory.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <set>

namespace unimem::detail {

class PoolCore;
struct Block;

/// Smallest first; among equals the one cached longest, whose work is the likeliest to have ended.
struct SmallerThenOlder {
  using is_transparent = void;
  [[nodiscard]] bool operator()(Block const* a, Block const* b) const noexcept;
  [[nodiscard]] bool operator()(Block const* block, std::size_t capacity) const noexcept;
};

using BlockList = std::list<Block>;
using BlockIndex = std::set<Block*, SmallerThenOlder>;

/// The descriptor of one driver allocation: what an `Allocation` points to. Device memory cannot hold free lists, so
/// they run through here.
///
/// A descriptor is a list node and carries its index node along: it never moves, and going from live to cached to spare
/// and back relinks nodes and allocates nothing. That is what lets a release be noexcept.
struct Block {
  PoolCore* pool = nullptr;
  DeviceMemory memory;

  /// How often the block has changed hands: what was remembered of an earlier use is told from the present one by it.
  std::uint64_t generation = 0;

  /// Work that was pending when the present owner got the block and that only the owner's queue is ordered behind. It
  /// counts again when the block comes back: an owner who never touched it proves nothing about the work before him.
  Event inherited;
  Event last_use;  ///< what the owner gave at release

  Name name;
  std::chrono::steady_clock::time_point cached_since{};
  std::uint64_t cached_as = 0;  ///< running number of its caching: the order of ages, whatever the clock says

  BlockList::iterator place;   ///< itself, in whichever list it is
  BlockIndex::node_type node;  ///< its place in the index by capacity, while it is not cached

  [[nodiscard]] std::size_t capacity() const noexcept { return memory.bytes; }

  /// Whether nothing is pending. Forgets events that are done, so that each is asked only until then. Never blocks.
  [[nodiscard]] bool settled() noexcept {
    if (inherited.ready()) inherited = {};
    if (last_use.ready()) last_use = {};
    return inherited == Event{} && last_use == Event{};
  }

  /// Whether work on the queue with this id (0: the host) may start on the block without waiting for anything.
  [[nodiscard]] bool ready_for(std::uint64_t queue) noexcept {
    auto const behind = [queue](Event event) { return event == Event{} || event.queue_id() == queue; };
    return settled() || (behind(inherited) && behind(last_use));
  }

  /// Blocks until nothing is pending. Whether that work went well is its own readers' business.
  void wait() noexcept {
    static_cast<void>(inherited.wait_for_error());
    static_cast<void>(last_use.wait_for_error());
    inherited = last_use = {};
  }
};

inline bool SmallerThenOlder::operator()(Block const* a, Block const* b) const noexcept {
  return a->capacity() != b->capacity() ? a->capacity() < b->capacity() : a->cached_as < b->cached_as;
}

inline bool SmallerThenOlder::operator()(Block const* block, std::size_t capacity) const noexcept {
  return block->capacity() < capacity;
}

}  // namespace unimem::detail
