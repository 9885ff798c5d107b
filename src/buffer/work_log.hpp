#pragma once

#include <unimem/core/byte_ranges.hpp>
#include <unimem/device/queue.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace unimem {
class Device;
}  // namespace unimem

namespace unimem::detail {

class Holds;

/// Bytes that one piece of work is about: a range, or parts of one.
class Region {
 public:
  Region(ByteRange range) noexcept : hull_(range) {}  // NOLINT(google-explicit-constructor): a range is a region
  Region(std::shared_ptr<ByteRanges const> parts);    // NOLINT(google-explicit-constructor): so are several

  [[nodiscard]] bool empty() const noexcept { return hull_.empty(); }
  [[nodiscard]] bool meets(Region const& other) const noexcept {
    bool const near = hull_.begin < other.hull_.end && other.hull_.begin < hull_.end;
    return near && ((!parts_ && !other.parts_) || parts_meet(other));
  }
  [[nodiscard]] bool lies_in(Region const& other) const noexcept {
    return other.hull_.contains(hull_) && (!other.parts_ || lies_in_parts_of(other));
  }

 private:
  [[nodiscard]] bool parts_meet(Region const& other) const noexcept;
  [[nodiscard]] bool lies_in_parts_of(Region const& other) const noexcept;

  ByteRange hull_;
  std::shared_ptr<ByteRanges const> parts_{};  ///< null: all of the range
};

/// Which work may still read or write which bytes of one replica. New work goes behind what it conflicts with: a read
/// behind writes, a write behind everything; on other bytes work goes on as if there were no other.
///
/// Work is ordered before it is recorded, so a new write stands for all it covers. A failed write stays until its
/// failure has been dealt with (`forget_ended`): work that needs those bytes meanwhile inherits its error.
///
/// What has been submitted cannot be called back, so room for its record is made before (`reserve`).
///
/// Code outside of the library may work here, too, through a lease. What it submits is not reported: it is looked for
/// on its queues, and goes on record when the next operation comes.
///
/// Not thread-safe; the buffer's lock guards it.
class WorkLog {
 public:
  /// `holds`, which it is a part of the same replica with: leases tell whether further work of others may come.
  explicit WorkLog(Holds const& holds) noexcept : holds_(&holds) {}
  WorkLog(WorkLog const&) = delete;
  WorkLog& operator=(WorkLog const&) = delete;

  /// Makes room, so that of what is recorded next, that many pieces of work, none throws.
  void reserve(std::size_t works);

  void read_by(Region region, Event event);
  void written_by(Region region, Event event);
  /// A write that other code submitted, in whatever order: what was recorded before it may still be running.
  void written_elsewhere_by(ByteRange range, Event event);
  /// Work that may have written here, or something else: it orders like a write, and its result is not needed.
  void perhaps_written_by(ByteRange range, Event event);
  /// Of writes on record which end with these events no later work needs the result: it comes behind them, and inherits
  /// no error.
  void not_needed(std::span<const Event> events) noexcept;
  /// Code outside of the library may be working here: on `queue` if there is one, else anywhere on `device`. Throws
  /// std::bad_alloc, with nothing noted.
  void used_by_others(Device& device, Queue const* queue);
  /// Whether all others are at work on this queue of this device.
  [[nodiscard]] bool used_by_others_on(Device const& device, std::uint64_t queue_id) const noexcept;

  /// Orders `queue` behind what conflicts with reading or writing `region`.
  void order_read(Queue& queue, Region const& region);
  void order_write(Queue& queue, Region const& region);

  /// The unfinished work that the host has to wait for before it reads `range`, or `writes` there.
  [[nodiscard]] std::vector<Event> before_host_access(ByteRange range, bool writes);
  /// Blocks until the host may read or write `range`. Errors of that work stick to its tickets. Throws
  /// UnsupportedOperation in the middle of work, where the wait would never end, and WaitInterrupted in a watched
  /// thread.
  void wait_for_host_access(ByteRange range, bool writes);

  /// Adds the writes that reach into `region` and are not known to have ended well: what a reader needs.
  void add_writers(Region const& region, std::vector<Event>& events) const;
  /// The latest unfinished event of every queue.
  [[nodiscard]] std::vector<Event> unfinished() const;

  /// Whether every write on record that reaches into `range` has ended, and none left a failure to be dealt with.
  [[nodiscard]] bool writes_ended_well(ByteRange range) const noexcept;
  /// Whether `range` holds what was written there last: the same, and no other code may be writing.
  [[nodiscard]] bool arrived(ByteRange range) const noexcept;
  /// Whether no recorded work is pending and no other code works here.
  [[nodiscard]] bool idle() const noexcept;
  /// The same after a look at what others have submitted by now.
  [[nodiscard]] bool at_rest();
  /// Whether there has been nothing, or it has been forgotten.
  [[nodiscard]] bool empty() const noexcept { return uses_.empty() && others_on_ == nullptr; }

  /// Drops what has ended, well or badly.
  void forget_ended() noexcept;
  /// Another owner's from now on, who is ordered behind the work that is pending on the `whole`, and needs nothing of
  /// what it does.
  void hand_over(ByteRange whole);

 private:
  enum class Kind : unsigned char { read, write, foreign };
  struct Use {
    Region region;
    Event event;
    Kind kind = Kind::read;
  };

  void add(Use use);
  /// What others have submitted by now, recorded as ours.
  void note_others();
  void order(Queue& queue, Region const& region, bool behind_reads) const;
  [[nodiscard]] std::vector<Event> unfinished_on(ByteRange range, bool readers_too) const;

  Holds const* holds_;
  std::vector<Use> uses_;
  std::size_t look_at_ = 32;  ///< how many make it worth looking for work that has ended
  Device* others_on_ = nullptr;
  std::uint64_t others_queue_ = 0;  ///< 0: on any queue, or on none of ours
  std::vector<Device*> also_on_;    ///< further devices that others work on, on any queue
};

}  // namespace unimem::detail
