#pragma once

#include <unimem/core/byte_ranges.hpp>
#include <unimem/device/queue.hpp>

#include <cstddef>
#include <memory>
#include <vector>

namespace unimem::detail {

/// Which work may still read or write which bytes of one piece of memory. New work goes behind what it conflicts with:
/// a read behind writes, a write behind everything; on other bytes work goes on as if there were no other.
///
/// Work is ordered before it is recorded, so a new write stands for all it covers. A failed write stays until its
/// failure has been dealt with (`forget_ended`): work that needs those bytes meanwhile inherits its error.
///
/// What has been submitted cannot be called back, so room for its record is made before (`reserve`).
///
/// Not thread-safe; the buffer's lock guards it.
class Hazards {
 public:
  /// Ranges of which one piece of work is remembered, not one for each.
  using Parts = std::shared_ptr<ByteRanges const>;

  /// Makes room, so that of what is recorded next, that many pieces of work, none throws.
  void reserve(std::size_t works);

  void read_by(ByteRange range, Event event);
  void written_by(ByteRange range, Event event);
  void read_by(Parts ranges, Event event);
  void written_by(Parts ranges, Event event);

  /// A write that other code submitted, in whatever order: what was recorded before it may still be running.
  void written_elsewhere_by(ByteRange range, Event event);

  /// Work that may have written here, or something else: it orders like a write, and its result is not needed.
  void perhaps_written_by(ByteRange range, Event event);

  /// Orders `queue` behind what conflicts with reading or writing `range`.
  void order_read(Queue& queue, ByteRange range) const;
  void order_write(Queue& queue, ByteRange range) const;
  void order_read(Queue& queue, ByteRanges const& ranges) const;
  void order_write(Queue& queue, ByteRanges const& ranges) const;

  /// Blocks until the host may read or write `range`. Errors of that work stick to its tickets.
  void wait_to_read(ByteRange range) const noexcept;
  void wait_to_write(ByteRange range) const noexcept;

  /// Adds the writes that reach into `range` and are not known to have ended well: what a reader needs.
  void add_writers(ByteRange range, std::vector<Event>& events) const;
  void add_writers(ByteRanges const& ranges, std::vector<Event>& events) const;

  /// Adds the unfinished work on `range` that a reader waits for, or with `readers_too` a writer.
  void add_unfinished(ByteRange range, bool readers_too, std::vector<Event>& events) const;

  /// Whether every write that reaches into `range` has ended, and none left a failure to be dealt with.
  [[nodiscard]] bool writes_ended_well(ByteRange range) const noexcept;
  [[nodiscard]] bool idle() const noexcept;
  /// Whether there has been nothing, or it has been forgotten.
  [[nodiscard]] bool empty() const noexcept { return uses_.empty(); }

  /// The latest unfinished event of every queue.
  [[nodiscard]] std::vector<Event> unfinished() const;

  /// Drops what has ended, well or badly.
  void forget_ended() noexcept;

 private:
  enum class Kind : unsigned char { read, write, foreign };
  struct Use {
    ByteRange range;
    Event event;
    Kind kind = Kind::read;
    Parts parts{};  ///< null: all of the range

    [[nodiscard]] bool meets(ByteRange other) const noexcept;
    [[nodiscard]] bool meets(ByteRanges const& others) const noexcept;
    [[nodiscard]] bool lies_in(ByteRange other) const noexcept;
    [[nodiscard]] bool lies_in(ByteRanges const& others) const noexcept;
  };

  void add(Use use);
  template <class Where>
  void forget_reads(Where const& where, Event event);
  template <class Where>
  void order(Queue& queue, Where const& where, bool behind_reads) const;
  template <class Where>
  void writers(Where const& where, std::vector<Event>& events) const;

  std::vector<Use> uses_;
  std::size_t look_at_ = 32;  ///< how many make it worth looking for work that has ended
};

}  // namespace unimem::detail
