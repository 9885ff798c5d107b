#pragma once

#include <unimem/device/event.hpp>

#include "coherence/coherence.hpp"

#include <boost/container/small_vector.hpp>

#include <cstddef>
#include <exception>
#include <span>
#include <vector>

namespace unimem::detail {

/// What one piece of work ends with: one event, or some.
using WorkEvents = boost::container::small_vector<Event, 1>;

/// What a buffer's coherence has recorded ahead of the work: everything committed while its work was still running.
///
/// It is tentative until the work has ended well. When some of it fails, exactly that is taken back: all of it is
/// rolled back in reverse order, since each rollback starts from the state its commit made, and what happened is
/// recorded again in order: what succeeded, and what the rest ruined on its way. Work that needed failed work has
/// failed with it by then (its event inherits the error); if it never began, it has ruined nothing.
///
/// Not thread-safe; the buffer's lock guards it.
class TentativeWork {
 public:
  /// Makes room, so that the next `works` additions do not throw.
  void reserve(std::size_t works);

  /// `plan` was committed, giving `undo`; its work ends with `events`. `nothing_else`: the events are of this work
  /// alone, so that if none of it began, nothing has been touched.
  void add(WorkEvents&& events, bool nothing_else, Plan&& plan, Coherence::Undo&& undo);

  [[nodiscard]] bool empty() const noexcept { return entries_.empty(); }

  /// Forgets what is certain. Whether nothing of what is left has ended, so that there is nothing to take back.
  [[nodiscard]] bool drop_ended_well() noexcept;
  /// Looks at the work that changed bytes of `range`, or, with `wait`, waits for it. If any of it has failed, waits for
  /// everything, takes the failures back and returns the first; null if all is well so far. With `unfinished` it waits
  /// for nothing then: what it would wait for is added there, and nothing has changed.
  [[nodiscard]] std::exception_ptr resolve(Coherence& coherence, ByteRange range, bool wait,
                                           std::vector<Event>* unfinished = nullptr);

  /// Waits for the work that changed bytes of `range`: its first error.
  [[nodiscard]] std::exception_ptr failure(ByteRange range) const noexcept;
  /// The same of the work that brings bytes of it to `place`, or writes them there.
  [[nodiscard]] std::exception_ptr failure_at(Place place, ByteRange range) const noexcept;

  /// Adds what `resolve` would wait for, as far as is known.
  void add_unfinished(ByteRange range, std::vector<Event>& events) const;

  /// Calls `look(place, range, events)` for all that is being written or brought anywhere, until those events.
  template <class Look>
  void for_each_touch(Look const& look) const {
    for (auto const& entry : entries_) {
      for (auto const range : entry.undo.touched.ranges()) look(entry.undo.place, range, entry.events);
    }
  }

  /// Forgets it all. For data that is no more.
  void clear() noexcept { entries_.clear(); }

 private:
  struct Entry {
    WorkEvents events;
    Plan plan;
    Coherence::Undo undo;
    bool may_be_untouched;  ///< namely if none of the events' work began

    [[nodiscard]] bool changes(ByteRange range) const noexcept;
    [[nodiscard]] bool ended() const noexcept;
    void add_unfinished(std::vector<Event>& to) const;
    /// Blocks until all of it has ended; its first error.
    [[nodiscard]] std::exception_ptr failure() const noexcept;
    /// Whether the work, which has failed, touched nothing.
    [[nodiscard]] bool never_began() const noexcept;
  };

  /// Of all of it; whether there is any.
  [[nodiscard]] bool add_unfinished(std::vector<Event>& events) const;
  [[nodiscard]] std::exception_ptr take_failures_back(Coherence& coherence);
  /// Rolls all of it back, and records again what of it has not failed.
  void redo(Coherence& coherence, std::span<const std::exception_ptr> failures) const;
  void drop_what_is_certain() noexcept;

  std::vector<Entry> entries_;  ///< in the order of their commits
};

}  // namespace unimem::detail
