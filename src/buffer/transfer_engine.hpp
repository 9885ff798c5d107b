#pragma once

#include <unimem/core/byte_ranges.hpp>
#include <unimem/device/event.hpp>

#include "buffer/buffer_counters.hpp"
#include "buffer/staging.hpp"
#include "coherence/coherence.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace unimem {
class Queue;
}  // namespace unimem

namespace unimem::detail {

class AccessContext;
struct BufferParts;

/// Moves the bytes of a buffer between its replicas, as plans say.
///
/// For the holder of the buffer's lock. What has been made ready for a plan is there until the engine ends.
class TransferEngine {
 public:
  explicit TransferEngine(BufferParts& parts) noexcept : parts_(&parts) {}

  /// What reading `range` at `place` needs, sparing what is good there.
  [[nodiscard]] Plan plan_read(Place place, ByteRange range) const;
  /// The same for any access.
  [[nodiscard]] Plan plan_access(Place place, ByteRange range, Intent intent) const;
  /// A copy goes across bytes that are current there already only if those it brings are certain (should they fail,
  /// they would have been brought over the last good copy), and if no address was given away through which code may be
  /// writing there, to declare it later.
  void spare_good_bytes(Plan& plan) const;
  /// What the host has as the file's own pages comes from the file: a page that it does not give is an error then, and
  /// no bytes that stand in for it.
  void read_the_file(Plan& plan) const;

  /// Makes ready for the copies of a plan, before they are submitted: those that go by way of the host get memory for
  /// that. False, with nothing copied, where the context says for what to wait.
  [[nodiscard]] bool make_ready(AccessContext& context, Plan const& plan);
  /// Submits the copies of a plan and commits it: each copy behind the work it conflicts with, on `queue` where that is
  /// the device's, else on the device's default queue.
  /// Returns an event for each copy.
  std::vector<Event> bring(Plan const& plan, Queue* queue);
  /// Submits them and waits; throws the first error when all have ended.
  void carry_out(Plan const& plan);

  /// For callers that wait without the lock: whether all is there that the plan, which reads, is to bring. If not, it
  /// has been brought under way and committed, and the context says for what to wait.
  [[nodiscard]] bool bring_or_wait(AccessContext& context, Plan const& plan);
  /// Copies that were carried out while the lock was free.
  struct CarriedOut {
    Plan plan;
    std::vector<Event> events;
    std::uint64_t operations = 0;  ///< of the buffer, when they were submitted
  };
  /// The same, with nothing committed: whether this very plan has been carried out, with no other operation between.
  /// What is under way stands in `carried` meanwhile. Throws the first error when all have ended.
  [[nodiscard]] bool carry_out_or_wait(AccessContext& context, Plan const& plan, std::optional<CarriedOut>& carried);

  /// What `range` at `place` is still to arrive by, and when all of it will have.
  [[nodiscard]] std::vector<Event> arriving(Place place, ByteRange range) const;
  [[nodiscard]] Event arrival(Place place, ByteRange range, Queue& queue) const;

  /// Starts copying `part`, which is valid at that device's place, to memory that is no buffer's.
  Event download_directly(Place place, ByteRange part, std::byte* to) const;

  /// What the time of a copy from one place to another counts into.
  [[nodiscard]] SharedMeter meter(Place from, Place to) const;
  /// Counts one copy, or several that went as one piece of work.
  void count(Place from, Place to, std::size_t moved, CopyPath path = CopyPath::direct, std::size_t copies = 1) const;

 private:
  /// Ranges that go from one place as one piece of work.
  struct Batch {
    Place from = host_place;
    std::vector<std::size_t> copies;  ///< of the plan, by index, ascending
    ByteRanges ranges;
  };

  /// A copy between host and device goes across bytes that are current there as the rows of a rectangle, which leave
  /// them out, where they are one and that is cheaper.
  void part_into_rows(Plan& plan) const;
  [[nodiscard]] std::vector<ByteRange> rows_in(PlannedCopy const& copy, CopyCost const& costs) const;
  [[nodiscard]] std::vector<Batch> batches_of(Plan const& plan) const;
  /// Adds an event for each copy: copies that go as one piece of work have one for all of them.
  void start_copies(Plan const& plan, Queue* queue, std::vector<Event>& events);
  /// Whatever they have come to, the copies have ended: throws the first error.
  void end_copies(Plan const& plan, std::span<const Event> events) const;
  /// A plan will not be carried out, or not be on record: blocks until what has been started of it, which ends with
  /// `events`, has ended, so that nothing of it is pending.
  void give_up(Plan const& plan, std::span<const Event> events) const;
  void note_arrivals(Plan const& plan) const;
  void expect_arrivals(Plan const& plan, std::span<const Event> events) const;
  [[nodiscard]] Direction direction(Place from, Place to) const noexcept;
  [[nodiscard]] bool is_on_host_side(Place place) const noexcept;
  [[nodiscard]] bool goes_over_no_link(Place from, Place to) const noexcept;

  BufferParts* parts_;
  std::optional<Staging> staging_;  ///< for the copies by way of the host, by turns
};

}  // namespace unimem::detail
