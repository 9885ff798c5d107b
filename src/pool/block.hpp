#pragma once

#include <unimem/core/name.hpp>
#include <unimem/device/event.hpp>
#include <unimem/device/memory.hpp>

#include "pool/extents.hpp"

#include <boost/intrusive/list.hpp>
#include <boost/intrusive/set_hook.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace unimem::detail {

class PoolCore;

/// How far an Zeroer has come with what the last owner has left in a block.
enum class Erasure : std::uint8_t {
  none,      ///< nothing of the last owner's is left, or the block is in use, or it does not matter
  begun,     ///< it may yet fail
  given_up,  ///< it has failed, and will not be tried again
};

/// The descriptor of one piece of memory: what an `Allocation` points to. Device memory cannot hold free lists, so
/// they run through here.
///
/// The pool owns its descriptors until it ends; lists and indices only link them, by hooks that they carry. A
/// descriptor never moves, and going from live to cached to spare and back allocates nothing: so a release can be
/// noexcept.
struct Block {
  using ListHook = boost::intrusive::list_member_hook<boost::intrusive::link_mode<boost::intrusive::auto_unlink>>;
  using TreeHook = boost::intrusive::set_member_hook<boost::intrusive::optimize_size<true>>;

  PoolCore* pool = nullptr;
  DeviceMemory memory;
  Origin origin;  ///< whose memory that is, where the pool has extents

  /// How often the block has changed hands: what was remembered of an earlier use is told from the present one by it.
  std::uint64_t generation = 0;

  /// Work that was pending when the present owner got the block and that only the owner's queue is ordered behind. It
  /// counts again when the block comes back: an owner that never touched it proves nothing about the work before.
  Event inherited;
  Event last_use;  ///< what the owner gave at release

  /// While it is parked (see Magazines): the only queue that may go on with it at once; 0 if nothing is pending.
  std::uint64_t parked_for = 0;
  std::uint32_t magazine = 0;  ///< the number of its near-exact class
  bool parked = false;         ///< in a magazine or a depot: neither in use nor among the free blocks of the core

  Erasure erasure = Erasure::none;
  Event erasing;  ///< the work that overwrites it, if that could be submitted

  Name name;
  std::chrono::steady_clock::time_point cached_since{};
  std::uint64_t cached_as = 0;  ///< running number of its release: the order of ages, whatever the clock says

  ListHook place;        ///< in whichever list it is
  TreeHook by_capacity;  ///< while it is cached
  ListHook in_doubling;  ///< likewise

  Block* below = nullptr;  ///< while it is in a depot

  [[nodiscard]] std::size_t capacity() const noexcept { return memory.bytes; }

  /// Whether nothing is pending. Forgets events that are done, so that each is asked only until then. Never blocks.
  [[nodiscard]] bool settled() noexcept {
    if (inherited == Event{} && last_use == Event{}) return true;
    if (inherited.ready()) inherited = {};
    if (last_use.ready()) last_use = {};
    return inherited == Event{} && last_use == Event{};
  }

  /// Whether work on the queue with this id (0: the host) may start on the block without waiting for anything.
  [[nodiscard]] bool ready_for(std::uint64_t queue) noexcept {
    auto const behind = [queue](Event event) { return event == Event{} || event.queue_id() == queue; };
    return settled() || (behind(inherited) && behind(last_use));
  }

  /// The one queue that may go on with it without waiting or asking: 0 if nothing is known to be pending, `no_queue` if
  /// there is no such queue.
  static constexpr std::uint64_t no_queue = ~std::uint64_t{0};
  [[nodiscard]] std::uint64_t only_queue() const noexcept {
    if (last_use == Event{} && inherited == Event{}) [[likely]]
      return 0;
    if (last_use == Event{}) return inherited.queue_id();
    if (inherited == Event{} || inherited.queue_id() == last_use.queue_id()) return last_use.queue_id();
    return no_queue;
  }

  /// Notes the block's last owner, and which of its work may still use the block.
  void used_until(Event event) noexcept {
    // One queue runs in order, so a later event of the same queue stands for the earlier one as well.
    if (event != Event{} && event.queue_id() == inherited.queue_id()) inherited = {};
    last_use = event;
  }

  /// Hands it on, at once: its new owner's work is ordered behind that which may still be using it.
  void unpark(Name owner) noexcept {
    parked = false;
    name = owner;
    if (last_use != Event{}) inherited = std::exchange(last_use, {});
  }

  /// Blocks until nothing is pending. Whether that work went well is its own readers' business.
  void wait() noexcept {
    static_cast<void>(inherited.wait_for_error());
    static_cast<void>(last_use.wait_for_error());
    inherited = last_use = {};
  }
};

template <Block::ListHook Block::* hook>
using BlockListBy = boost::intrusive::list<Block, boost::intrusive::member_hook<Block, Block::ListHook, hook>,
                                           boost::intrusive::constant_time_size<false>>;

/// Where blocks are, each in one list at a time. Does not own them; `size` walks it.
using BlockList = BlockListBy<&Block::place>;

/// Moves a block to the end of a list, from whichever it is in.
inline void move_to(BlockList& list, Block& block) noexcept {
  block.place.unlink();
  list.push_back(block);
}

}  // namespace unimem::detail
