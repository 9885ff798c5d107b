#pragma once

#include <unimem/device/device.hpp>
#include <unimem/device/memory.hpp>
#include <unimem/pool/statistics.hpp>

#include "pool/object_source.hpp"
#include "pool/page_arena.hpp"
#include "pool/pool_limits.hpp"
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

/// The bytes of a pool's extents.
struct ExtentCounts {
  std::size_t reserved = 0;       ///< taken from the device, bytes
  std::size_t peak_reserved = 0;  ///< the most that ever was
  std::size_t free = 0;           ///< part of no block
  std::size_t returnable = 0;     ///< of these, what makes up whole pages: what `trim(0)` gives back
};

/// The counts for readers that do not wait. One thread at a time publishes; of the peak it keeps the largest.
class PublishedCounts {
 public:
  void publish(ExtentCounts const& counts) noexcept;
  [[nodiscard]] ExtentCounts read() const noexcept;

 private:
  // They belong together if `number_` was even and has not changed meanwhile.
  std::atomic<unsigned> number_{0};
  std::array<std::atomic<std::size_t>, 4> counts_{};
};

/// Gives slabs the spans that were taken for them: whatever a slab needs is there before it asks.
class SlabSpans final : public SlabMemory {
 public:
  explicit SlabSpans(PageArena& arena) noexcept : arena_(arena) {}

  /// What the next slab is made of; null: nothing.
  void provide(Span* span) noexcept { next_ = span; }
  /// Takes it back if it was not made.
  void take_back() noexcept;
  [[nodiscard]] bool is_empty() const noexcept { return next_ == nullptr; }

  [[nodiscard]] Stretch take(std::size_t bytes) override;
  void give(Stretch stretch) noexcept override;

 private:
  PageArena& arena_;
  Span* next_ = nullptr;
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
class Extents {
 public:
  struct Piece {
    DeviceMemory memory;
    Origin origin;
    bool fresh = false;  ///< it is not all made of memory that had been in use before
  };

  using Counts = ExtentCounts;

  /// The device's pages serve as memory at `location`; at most `limit` bytes are reserved, and, unless it is null, no
  /// more than `share`, which outlives this, has; `undumped`: what is the process's memory is left out of core dumps.
  Extents(Device& device, Location location, PageSource& pages, std::size_t limit, bool undumped, LimitShare* share);

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

  /// The bytes reserved that no trimming gives back: in use, or in a page with what is. While it is held.
  [[nodiscard]] std::size_t held() const noexcept { return reserved_now() - arena_.free_in_pages(); }

  /// Gives free pages back to the device until at most `keep` bytes are reserved, or none is free. Returns the bytes.
  std::size_t trim(std::size_t keep) noexcept;

  /// Puts free pages side by side, as far as the limits go, and returns the bytes that had to move. A thread that needs
  /// pages waits meanwhile. Throws what the driver throws; then some have moved.
  std::size_t compact(DefragmentationLimits const& limits);

  /// The most bytes that could have been given back at every moment since this was last asked.
  [[nodiscard]] std::size_t idle() noexcept;

  /// Does not wait for pages that are being moved.
  [[nodiscard]] Counts counts() const noexcept;

  /// While it is locked everything stays as it is. To lock it waits for pages that are being moved: not to be done
  /// under the pool's lock.
  [[nodiscard]] std::mutex& mutex() const noexcept { return mutex_; }

  /// Bytes that are out. While it is held.
  [[nodiscard]] std::size_t used() const noexcept { return arena_.used() - slabs_.reserved() + slabs_.used() + alone_; }

  /// What is free, and where. While it is held.
  [[nodiscard]] PageArena const& arena() const noexcept { return arena_; }

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

  // All under the lock.
  [[nodiscard]] Piece take_free(std::size_t bytes);
  void give_back(DeviceMemory memory, Origin origin) noexcept;
  /// Notes what is out, and whether all of it had been in use before.
  [[nodiscard]] Piece hand_out(Piece piece, bool fresh) noexcept;
  [[nodiscard]] Piece small_piece(std::size_t capacity, bool fresh);
  /// Null if the limit leaves no room for its pages.
  [[nodiscard]] Span* obtain_span(std::size_t bytes, std::size_t peak, End end);
  /// An allocation of its own.
  [[nodiscard]] Piece alone(std::size_t bytes);
  [[nodiscard]] std::size_t reserved_now() const noexcept { return arena_.reserved() + alone_; }
  void publish() noexcept;

  Device& device_;
  Location const location_;
  std::size_t const alignment_;  ///< of every block, and what their sizes are multiples of
  LimitShare* const share_;
  ObjectSource const objects_;  ///< of allocations of their own
  std::optional<SharedPages> shared_pages_;

  mutable std::mutex mutex_;
  PageArena arena_;
  SlabSpans slab_spans_{arena_};
  Slabs slabs_{slab_spans_, false};
  PoolLimits limits_;
  std::size_t alone_ = 0;      ///< bytes in allocations of their own
  std::size_t peak_used_ = 0;  ///< the most that was ever out
  std::size_t idle_ = 0;       ///< the least that was returnable since it was asked for

  PublishedCounts published_;
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
