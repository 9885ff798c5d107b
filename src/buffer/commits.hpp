#pragma once

#include <unimem/core/byte_ranges.hpp>
#include <unimem/device/event.hpp>

#include "buffer/tentative_work.hpp"
#include "coherence/coherence.hpp"

#include <cstddef>
#include <exception>
#include <span>
#include <vector>

namespace unimem::detail {

struct BufferParts;

/// Records what work changes in a buffer, ahead of its end, and resolves what has ended: what failed is taken back.
///
/// For the holder of the buffer's lock.
class Commits {
 public:
  /// Whether events are of the work they are named for and of nothing else, or of the last piece of it.
  enum class Events : unsigned char { of_all, of_the_end };

  explicit Commits(BufferParts& parts) noexcept : parts_(&parts) {}

  /// Commits a plan whose work ends with `events`, or throws and has changed nothing.
  void commit(Plan plan, std::vector<Event> const& events, Events what = Events::of_all) const;
  /// What may fail of committing a write, for work that is about to be submitted and cannot be called back then. Until
  /// it is committed nothing is but what is planned with it: as many writes at `place` as `together` says.
  [[nodiscard]] TentativeChange plan_write(Place place, ByteRange range, std::size_t together = 1) const;
  /// The work has been submitted, and ends with `event`.
  void commit(TentativeChange&& write, Event event, Events what) const noexcept;
  /// Commits a plan to read whose copies end with `events`, each by itself: where one fails, what another has brought
  /// stays.
  void commit_copies(Plan const& plan, std::span<const Event> events) const;
  /// Commits a write at `place` that ends with `event`.
  void commit_write(Place place, ByteRange range, Event event, Events what) const;

  enum class Tells : bool { no, yes };
  /// Looks at the work in flight on `range`, or waits for it: the first failure, which has been rolled back; null if
  /// all is well. With `unfinished` what else is pending beside failed work is not waited for, but added there, and
  /// nothing has changed.
  /// With Tells::no null whatever has failed: the owner's next access to those bytes is told.
  [[nodiscard]] std::exception_ptr resolve(ByteRange range, bool wait, std::vector<Event>* unfinished = nullptr,
                                           Tells tells = Tells::yes) const;
  /// Whether resolving all of it would wait in the middle of work of the host's, where others are not waited for.
  [[nodiscard]] bool would_wait_in_work() const;

 private:
  /// In a forked child, where the parent's work neither ends nor says whether it failed: why nothing is known of
  /// `range`, or null, also where the host has it whatever becomes of that work.
  [[nodiscard]] std::exception_ptr resolve_in_child(ByteRange range) const;

  BufferParts* parts_;
};

}  // namespace unimem::detail
