#pragma once

#include <unimem/device/device.hpp>
#include <unimem/device/memory.hpp>
#include <unimem/pool/statistics.hpp>

#include "core/held_over_fork.hpp"
#include "pool/object_source.hpp"
#include "pool/page_arena.hpp"
#include "pool/shared_limit.hpp"
#include "pool/slabs.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <optional>
#include <utility>

namespace unimem::detail {

/// Where in a pool's extents a block lies, so that it can go back there: in a slab or in a span of pages; in neither if
/// it is an allocation of its own.
struct Origin {
  Span* span = nullptr;
  SlabBlock small{};

  [[nodiscard]] bool in_pages() const noexcept { return span != nullptr || small.slab != nullptr; }
};

/// A pool's memory where its device maps pages: small blocks in slabs; slabs, and larger blocks, in spans of pages that
/// can be put side by side, so that free memory in pieces serves as well as in one.
///
/// Growing is cheap; gathering free pages costs a call or two for each run of them, but wastes nothing. So fresh pages
/// are taken as long as what is reserved stays within a twenty-eighth of the most that was ever in use, or a fourteenth
/// where pages have been moved for long, and beyond that only where gathering does not suffice. Where a limit leaves
/// room for some bytes, but not for the pages they make up, an allocation of its own is asked for.
///
/// The limit is kept here, under the lock under which pages are taken: a thread that asked for memory before it was
/// lowered, and waited, is refused by what it is then.
///
/// Thread-safe. Pages move under a lock, since none may be given out meanwhile: a thread that needs pages too waits for
/// the driver, no other thread does.
class Extents final : private SlabMemory {
 public:
  struct Piece {
    DeviceMemory memory;
    Origin origin;
    bool fresh = false;  ///< it is not all made of memory that had been in use before
  };

  struct Counts {
    std::size_t reserved = 0;       ///< taken from the device, bytes
    std::size_t peak_reserved = 0;  ///< the most that ever was
    std::size_t free = 0;           ///< part of no block
    std::size_t returnable = 0;     ///< of these, what makes up whole pages: what `trim(0)` gives back
  };

  /// The device's pages serve as memory at `location`; at most `limit` bytes are reserved, and, unless it is null, no
  /// more than `share`, which outlives this, has; `undumped`: what is the process's memory is left out of core dumps.
  Extents(Device& device, Location location, PageSource& pages, std::size_t limit, bool undumped, LimitShare* share);
  ~Extents() override;

  /// What a block for `bytes` (positive) bytes takes up, but for the rest of the last page of a large one.
  [[nodiscard]] std::size_t capacity_for(std::size_t bytes) const noexcept;

  /// Free memory for a block; an empty piece if none is free in one stretch. Calls no driver. Throws std::bad_alloc,
  /// changing nothing.
  [[nodiscard]] Piece try_take(std::size_t bytes);

  /// The same, unless pages are being moved just now: then nothing, without waiting.
  [[nodiscard]] std::optional<Piece> try_take_at_once(std::size_t bytes);

  /// Free memory for what is in a block of pages, as large, where it keeps less from being given back; an empty piece
  /// if none is free. Calls no driver. Throws std::bad_alloc, changing nothing.
  [[nodiscard]] Piece try_take_better(Origin const& than);

  /// Memory for a block; `peak` is the most that users ever had at once, this block included. Throws OutOfMemory if the
  /// limit, or the driver, forbids it, and what else the driver throws: free memory may then lie elsewhere, or have
  /// gone back.
  [[nodiscard]] Piece obtain(std::size_t bytes, std::size_t peak);

  /// Has at most `bytes` bytes reserved from now on: free pages go back to the device where it takes that. Returns what
  /// stays reserved all the same; if that is more than `bytes` the limit stays what it was. While it is held.
  [[nodiscard]] std::size_t limit_to(std::size_t bytes) noexcept;

  /// Takes blocks back that are not used any more, as many as there are in one go.
  class Returning;
  [[nodiscard]] Returning returning();

  /// The same, unless pages are being moved just now.
  [[nodiscard]] std::optional<Returning> returning_at_once();

  /// The bytes reserved that no trimming gives back: in use, or in a page with what is.
  [[nodiscard]] std::size_t held() const noexcept;

  /// Gives free pages back to the device until at most `keep` bytes are reserved, or none is free. Returns the bytes.
  std::size_t trim(std::size_t keep) noexcept;

  /// Puts free pages side by side, as far as the limits go, and returns the bytes that had to move. A thread that needs
  /// pages waits meanwhile. Throws what the driver throws; then some have moved.
  std::size_t compact(DefragmentationLimits const& limits);

  /// The most bytes that could have been given back at every moment since this was last asked.
  [[nodiscard]] std::size_t idle() noexcept;

  /// Does not wait for pages that are being moved.
  [[nodiscard]] Counts counts() const noexcept;

  /// The largest free stretch, bytes. While it is held.
  [[nodiscard]] std::size_t largest_free() const noexcept;

  /// Keeps everything as it is. Waits for pages that are being moved: not to be asked for under the pool's lock.
  [[nodiscard]] std::unique_lock<std::mutex> hold() const { return std::unique_lock{mutex_}; }

  /// The same while the process forks, if it can be had by then.
  [[nodiscard]] bool hold_over_fork(HeldOverFork::Deadline deadline) noexcept {
    return HeldOverFork::lock_by(deadline, mutex_);
  }
  void let_go_after_fork() noexcept { mutex_.unlock(); }

  /// Bytes that are out. While it is held.
  [[nodiscard]] std::size_t used() const noexcept { return used_now(); }

  /// Calls `each(bytes)` for every run of whole free pages. While it is held.
  template <class Each>
  void for_each_returnable(Each each) const {
    arena_.for_each_returnable(each);
  }

  /// Throws std::logic_error unless all is in order and `used` bytes are out. Walks everything. While it is held.
  void validate(std::size_t used) const;

 private:
  using End = PageArena::End;

  /// Holds the lock while something changes, and publishes what it has come to.
  class Open {
   public:
    explicit Open(Extents& extents) : Open(extents, std::unique_lock{extents.mutex_}) {}
    Open(Extents& extents, std::unique_lock<std::mutex> lock) noexcept : extents_(extents), lock_(std::move(lock)) {}
    Open(Open const&) = delete;
    Open& operator=(Open const&) = delete;
    ~Open() { extents_.publish(); }

   private:
    Extents& extents_;
    std::unique_lock<std::mutex> lock_;
  };
  [[nodiscard]] Open open() { return Open{*this}; }

  // The memory of the slabs. Every stretch has been made ready for them before they ask.
  [[nodiscard]] Stretch take(std::size_t bytes) override;
  void give(Stretch stretch) noexcept override;

  // All under the lock.
  [[nodiscard]] Piece take_free(std::size_t bytes);
  void give_back(DeviceMemory memory, Origin origin) noexcept;
  [[nodiscard]] Piece piece(Piece piece, bool fresh) noexcept;
  [[nodiscard]] Piece piece_of(Span& span, bool fresh) noexcept;
  [[nodiscard]] Piece small_piece(std::size_t capacity, bool fresh);
  /// Null if the limit leaves no room for its pages.
  [[nodiscard]] Span* obtain_span(std::size_t bytes, std::size_t peak, End end);
  /// An allocation of its own.
  [[nodiscard]] Piece alone(std::size_t bytes);
  /// What may be reserved: no device gives more than it has.
  [[nodiscard]] std::size_t own_limit() const noexcept { return std::min(limit_, device_.info().total_bytes); }
  [[nodiscard]] std::size_t limit_now() const noexcept {
    return share_ == nullptr ? own_limit() : std::min(own_limit(), share_->most());
  }
  [[nodiscard]] std::size_t reserved_now() const noexcept { return arena_.reserved() + alone_; }
  [[nodiscard]] std::size_t held_now() const noexcept { return reserved_now() - arena_.free_in_pages(); }
  [[nodiscard]] std::size_t used_now() const noexcept {
    return arena_.used() - slabs_.reserved() + slabs_.used() + alone_;
  }
  [[nodiscard]] std::size_t free_now() const noexcept { return arena_.free() + slabs_.reserved() - slabs_.used(); }
  void publish() noexcept;

  Device& device_;
  Location const location_;
  std::size_t const alignment_;  ///< of every block, and what their sizes are multiples of
  LimitShare* const share_;
  ObjectSource const objects_;  ///< of allocations of their own
  std::optional<SharedPages> shared_pages_;

  mutable std::mutex mutex_;
  PageArena arena_;
  Slabs slabs_;
  std::size_t limit_;
  Span* for_slab_ = nullptr;   ///< what the next slab is made of
  std::size_t alone_ = 0;      ///< bytes in allocations of their own
  std::size_t peak_used_ = 0;  ///< the most that was ever out
  std::size_t idle_ = 0;       ///< the least that was returnable since it was asked for

  // The counts, for readers that do not wait: they belong together if `published_` was even and has not changed
  // meanwhile.
  std::atomic<unsigned> published_{0};
  std::array<std::atomic<std::size_t>, 4> counts_{};
};

class Extents::Returning {
 public:
  Returning(Extents& extents, std::unique_lock<std::mutex> lock) noexcept
      : extents_(extents), open_(extents, std::move(lock)) {}

  /// Calls the driver for an allocation of its own, and for nothing else.
  void give(DeviceMemory memory, Origin origin) noexcept { extents_.give_back(memory, origin); }

 private:
  Extents& extents_;
  Open open_;
};

inline Extents::Returning Extents::returning() {
  return {*this, std::unique_lock{mutex_}};
}

inline std::optional<Extents::Returning> Extents::returning_at_once() {
  std::unique_lock lock{mutex_, std::try_to_lock};
  return lock.owns_lock() ? std::optional<Returning>{std::in_place, *this, std::move(lock)} : std::nullopt;
}

}  // namespace unimem::detail
