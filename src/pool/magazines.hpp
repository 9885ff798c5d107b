#pragma once

#include "pool/asymmetric_barrier.hpp"
#include "pool/block.hpp"
#include "pool/near_exact.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

namespace unimem::detail {

/// Magazines serve blocks up to this size, a magazine a class; larger ones, of which each is worth counting, share one.
inline constexpr std::size_t largest_small_block = std::size_t{2} << 20;
inline constexpr std::size_t small_classes = near_exact_class(largest_small_block) + 1;

/// A few blocks of one size class, the latest on top. How many there are stands with the others' numbers (Magazines).
struct alignas(128) Magazine {
  static constexpr std::size_t slots = 14;
  static constexpr std::size_t bytes_each = std::size_t{8} << 20;

  std::uint64_t most = 0;  ///< how many it may hold
  std::uint64_t hits = 0;  ///< acquires served from here
  std::array<Block*, slots> blocks{};
};

/// The way into what belongs to one thread and is rarely wanted by others. The owner takes no lock and no atomic
/// read-modify-write: it says that it is inside (`enter`), looks whether another thread wants in, and says that it has
/// left. A thread that wants in says so, makes sure by `heavy_barrier` that the owner either has seen it or is seen
/// inside, and waits for the owner to leave (`seize`). As long as it is seized the owner goes without.
class OwnerGate {
 public:
  /// For the owner: false, and it stays outside, while another thread has seized this.
  [[nodiscard]] bool enter() noexcept {
    // Relaxed, on any processor: the heavy barrier runs on this one either before this store, and then the load sees
    // that it is seized, or behind it, and then who seizes sees it. Acquire: behind whoever has given it up.
    inside_.store(true, std::memory_order_relaxed);
    light_barrier();
    if (seized_.load(std::memory_order_acquire)) [[unlikely]] {
      leave();
      return false;
    }
    return true;
  }
  /// Release: what was done inside is seen by whoever waited for it.
  void leave() noexcept { inside_.store(false, std::memory_order_release); }

  /// For any thread: says that this is wanted. What follows, in this order: `heavy_barrier()`, `wait_for_owner()`,
  /// access, `give_up()`.
  void seize() noexcept { seized_.store(true, std::memory_order_relaxed); }
  void wait_for_owner() const noexcept;
  void give_up() noexcept { seized_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> inside_{false};
  std::atomic<bool> seized_{false};
};

/// The few large blocks that one thread keeps, and whether it does so for nothing, be it that it takes none or that it
/// takes others: it keeps none then, as they are few enough to be missed elsewhere. When it asks for one that it would
/// have had, it does again.
///
/// For the owner of the Magazines it is part of, but for `bytes`.
class LargeMagazine {
 public:
  static constexpr std::size_t slots = 4;
  /// All that is kept; a single block may be larger.
  static constexpr std::size_t most_bytes = std::size_t{64} << 20;
  /// How many blocks are kept, one after the other, before it is clear that it is for nothing.
  static constexpr std::uint32_t most_unclaimed = 8;

  /// A block that fits `bytes` and that the queue may start on at once: the best fit, or null. And the latest alone, if
  /// it is known to be ready for the host.
  [[nodiscard]] Block* take(std::size_t bytes, std::uint64_t queue) noexcept;
  [[nodiscard]] Block* take_ready(std::size_t bytes) noexcept {
    if (count_ == 0) return nullptr;
    auto* const top = blocks_[count_ - 1];
    if (top->parked_for != 0 || top->capacity() < bytes || top->capacity() > close_fit(bytes)) return nullptr;
    --count_;
    claimed(bytes);
    bytes_.store(this->bytes() - top->capacity(), std::memory_order_relaxed);
    return top;
  }
  /// The block that has been here longest; there is one.
  [[nodiscard]] Block& take_oldest() noexcept;

  /// False if there is no room for the block as things are.
  [[nodiscard]] bool keep(Block& block) noexcept {
    auto const then = bytes() + block.capacity();
    if (sends_on() || (count_ != 0 && (count_ == slots || then > most_bytes))) return false;
    blocks_[count_++] = &block;
    bytes_.store(then, std::memory_order_relaxed);
    ++unclaimed_;
    return true;
  }

  /// Whether a block that was just released is not for this thread. And notes one that was sent on for that.
  [[nodiscard]] bool sends_on() const noexcept { return unclaimed_ >= most_unclaimed; }
  void sent_on(Block const& block) noexcept { sent_on_ = block.capacity(); }

  /// An acquire of `bytes` bytes was served by a large block, from here or from elsewhere.
  void claimed(std::size_t bytes) noexcept {
    unclaimed_ = 0;
    ++hits_[static_cast<std::size_t>(std::bit_width(bytes - 1))];
  }

  /// All blocks, the latest last; and forgets them.
  [[nodiscard]] std::span<Block* const> blocks() const noexcept { return std::span{blocks_}.first(count_); }
  void clear() noexcept {
    count_ = 0;
    bytes_.store(0, std::memory_order_relaxed);
  }

  /// The acquires served so far, by the doubling their size is in.
  [[nodiscard]] std::span<std::uint64_t const> hits() const noexcept { return hits_; }

  /// For any thread; of another thread's a moment ago.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_.load(std::memory_order_relaxed); }

 private:
  std::uint32_t unclaimed_ = 0;  ///< blocks kept since one was last of use to this thread
  std::size_t sent_on_ = 0;      ///< the size of the last that was sent on
  std::size_t count_ = 0;
  std::atomic<std::size_t> bytes_{0};
  std::array<Block*, slots> blocks_{};
  std::array<std::uint64_t, 64> hits_{};
};

/// What one thread keeps of one pool for itself: blocks it has released and is likely to ask for again. Bounded by
/// bytes as well as by number. A block whose work may still be running waits here too, for the same queue to take it
/// again; nothing is ever waited for, and no event is asked unless the queue is another one.
///
/// It belongs to its thread, which goes in and out by the gate.
class Magazines : public OwnerGate {
 public:
  /// All that is kept of small blocks together.
  static constexpr std::size_t most_small_bytes = std::size_t{64} << 20;
  static constexpr std::uint32_t most_unclaimed = LargeMagazine::most_unclaimed;

  Magazines() noexcept;
  Magazines(Magazines const&) = delete;
  Magazines& operator=(Magazines const&) = delete;

  // ---- The owner inside ----

  /// A block of at least `bytes` bytes that work on the queue with this id (0: the host) may start on at once, named
  /// after its new owner; or null.
  [[nodiscard]] Block* take(std::size_t bytes, std::uint64_t queue, Name name) noexcept;

  /// The same if it is on top and known to be ready for the host: the short way.
  [[nodiscard]] Block* take_ready(std::size_t bytes, Name name) noexcept {
    if (bytes > largest_small_block) [[unlikely]]
      return hand_out(large_.take_ready(bytes), name);
    auto const index = near_exact_class(bytes);
    auto& magazine = magazines_[index];
    auto& count = counts_[index];
    if (count == 0) [[unlikely]]
      return nullptr;
    auto* const top = magazine.blocks[count - 1U];
    if (top->parked_for != 0 || top->capacity() < bytes) [[unlikely]]
      return nullptr;
    --count;
    ++magazine.hits;
    return hand_out(top, name);
  }

  /// Keeps a block that was just released, if there is room for it as things are.
  [[nodiscard]] bool keep(Block& block) noexcept {
    auto const bytes_then = bytes() + block.capacity();
    if (block.magazine >= small_classes) [[unlikely]] {
      if (!large_.keep(block)) return false;
    } else {
      auto& magazine = magazines_[block.magazine];
      auto& count = counts_[block.magazine];
      if (count == magazine.most || bytes_then - large_bytes() > most_small_bytes) [[unlikely]]
        return false;
      magazine.blocks[count++] = &block;
    }
    bytes_.store(bytes_then, std::memory_order_relaxed);
    mark_parked(block);
    return true;
  }

  /// Whether a block that was just released is not for this thread. And marks it as parked elsewhere.
  [[nodiscard]] bool sends_on(Block const& block) const noexcept {
    return block.magazine >= small_classes && large_.sends_on();
  }
  void send_on(Block& block) noexcept {
    fewest_bytes_ -= static_cast<std::ptrdiff_t>(block.capacity());  // it was in use until now
    large_.sent_on(block);
    mark_parked(block);
  }

  /// How many blocks of the class of `bytes` may be taken in at once: there is room for them, and they are no more than
  /// half a magazine. And takes a parked block in.
  [[nodiscard]] std::size_t room_for(std::size_t bytes) const noexcept {
    auto const index = near_exact_class(bytes);
    auto const most = magazines_[index].most;
    return std::min<std::size_t>(most - counts_[index], (most + 1) / 2);
  }
  void receive(Block& block) noexcept {
    magazines_[block.magazine].blocks[counts_[block.magazine]++] = &block;
    bytes_.store(bytes() + block.capacity(), std::memory_order_relaxed);
    fewest_bytes_ += static_cast<std::ptrdiff_t>(block.capacity());
  }

  /// Counts a large block that came from elsewhere to serve an acquire.
  void pass_on(Block& block, std::size_t bytes, Name name) noexcept;

  /// Whether all small magazines together leave no room for a block of `bytes`.
  [[nodiscard]] bool are_full_for(std::size_t bytes) const noexcept {
    return this->bytes() - large_bytes() + bytes > most_small_bytes;
  }

  /// Takes up to half of what the class of a block of `bytes` may hold out of its magazine, the oldest first.
  [[nodiscard]] std::size_t take_half(std::size_t bytes, std::span<Block*, Magazine::slots> taken) noexcept;

  /// Takes the large block that has been here longest out; there is one.
  [[nodiscard]] Block& take_oldest_large() noexcept;

  // ---- The owner inside, or the thread that has seized them ----

  /// Calls `each(Block&)` for every block, or every large one, and forgets them.
  template <class Each>
  void take_all(Each each) noexcept {
    for_each_occupied([&](std::size_t index) {
      auto const count = std::exchange(counts_[index], Count{0});
      for (std::size_t i = 0; i < count; ++i) forget(*magazines_[index].blocks[i], each);
    });
    take_all_large(each);
  }
  template <class Each>
  void take_all_large(Each each) noexcept {
    for (auto* const block : large_.blocks()) forget(*block, each);
    large_.clear();
  }

  /// Calls `each(Block const&)` for every block.
  template <class Each>
  void for_each(Each each) const {
    for_each_occupied([&](std::size_t index) {
      for (std::size_t i = 0; i < counts_[index]; ++i) each(*magazines_[index].blocks[i]);
    });
    for (auto const* const block : large_.blocks()) each(*block);
  }

  /// Calls `each(std::size_t bytes, std::uint64_t hits)` for the acquires served so far, by a size of their class.
  template <class Each>
  void for_each_hits(Each each) const {
    for (std::size_t i = 0; i < small_classes; ++i) {
      if (magazines_[i].hits != 0) each(near_exact_limit(i), magazines_[i].hits);
    }
    auto const large = large_.hits();
    for (std::size_t doubling = 0; doubling < large.size(); ++doubling) {
      if (large[doubling] != 0) each(std::size_t{1} << doubling, large[doubling]);
    }
  }

  /// The fewest bytes that were in here since `begin_watch`. Blocks that came from elsewhere or went there (`receive`,
  /// `take_half`, `take_all`) count as if they had done so at its beginning: so it can be less than none.
  [[nodiscard]] std::ptrdiff_t fewest_bytes() const noexcept { return fewest_bytes_; }
  void begin_watch() noexcept { fewest_bytes_ = static_cast<std::ptrdiff_t>(bytes()); }

  /// The owner's running number of releases: told later ones, it goes on from there.
  [[nodiscard]] std::uint64_t releases() const noexcept { return releases_; }
  void catch_up(std::uint64_t releases) noexcept { releases_ = std::max(releases_, releases); }

  // ---- Any thread ----

  /// Bytes in here, and those of them in large blocks; of another thread's a moment ago.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::size_t large_bytes() const noexcept { return large_.bytes(); }

 private:
  /// What becomes of a block that was taken out, if any was.
  Block* hand_out(Block* block, Name name) noexcept {
    if (block == nullptr) return nullptr;
    auto const left = bytes() - block->capacity();
    bytes_.store(left, std::memory_order_relaxed);
    fewest_bytes_ = std::min(fewest_bytes_, static_cast<std::ptrdiff_t>(left));
    block->unpark(name);
    return block;
  }

  void mark_parked(Block& block) noexcept {
    block.parked = true;
    block.cached_as = ++releases_;
    ++block.generation;
  }

  /// Calls `each(std::size_t index)` for every magazine that has something: there are hundreds, and mostly a dozen do.
  template <class Each>
  void for_each_occupied(Each each) const {
    for (std::size_t first = 0; first < counts_.size(); first += counts_at_once) {
      std::uint64_t at_once = 0;
      std::memcpy(&at_once, &counts_[first], sizeof at_once);
      if (at_once == 0) continue;
      for (auto index = first; index < first + counts_at_once; ++index) {
        if (counts_[index] != 0) each(index);
      }
    }
  }

  template <class Each>
  void forget(Block& block, Each& each) noexcept {
    bytes_.store(bytes() - block.capacity(), std::memory_order_relaxed);
    fewest_bytes_ -= static_cast<std::ptrdiff_t>(block.capacity());
    each(block);
  }

  std::atomic<std::size_t> bytes_{0};
  std::ptrdiff_t fewest_bytes_ = 0;
  std::uint64_t releases_ = 0;
  LargeMagazine large_;

  using Count = std::uint8_t;
  static constexpr std::size_t counts_at_once = sizeof(std::uint64_t) / sizeof(Count);
  /// How many blocks each magazine has, side by side: a search for those that have any reads four cache lines and not
  /// two hundred.
  alignas(64) std::array<Count, (small_classes + counts_at_once - 1) / counts_at_once * counts_at_once> counts_{};
  std::array<Magazine, small_classes> magazines_;
};

}  // namespace unimem::detail
