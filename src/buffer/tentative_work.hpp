#pragma once

#include <unimem/device/event.hpp>

#include "buffer/untold_failures.hpp"
#include "coherence/coherence.hpp"

#include <boost/container/small_vector.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace unimem::detail {

/// What one piece of work ends with: one event, or some.
using WorkEvents = boost::container::small_vector<Event, 1>;

/// A change of coherence that work makes, and what takes it back.
class TentativeChange {
 public:
  /// Throws std::bad_alloc, with nothing changed.
  TentativeChange(Plan plan, Coherence::Undo undo)
      : place_(undo.place), known_(std::make_unique<Known>(std::move(plan), std::move(undo))) {}
  /// One that writes again what its place alone has (`Coherence::is_rewrite`): that says it all.
  TentativeChange(Place place, ByteRange range, std::uint64_t data) noexcept
      : place_(place), rewritten_(range), data_(data) {}

  [[nodiscard]] bool is_rewrite() const noexcept { return known_ == nullptr || known_->undo.rewrite; }
  /// Whether nothing is to be taken back.
  [[nodiscard]] bool is_nothing() const noexcept {
    return known_ != nullptr && !known_->undo.adopted && known_->undo.changed.empty();
  }
  /// Whether it changes anything of `range`.
  [[nodiscard]] bool reaches(ByteRange range) const noexcept {
    if (known_ == nullptr) return rewritten_.meets(range);
    return known_->undo.adopted || known_->undo.changed.intersects(range);
  }
  /// What its failure says something of.
  [[nodiscard]] ByteRanges concerned() const;
  /// Where its work writes, or what it brings there.
  [[nodiscard]] Place place() const noexcept { return place_; }
  [[nodiscard]] std::span<const ByteRange> touched() const noexcept {
    return known_ == nullptr ? std::span{&rewritten_, 1} : known_->undo.touched.ranges();
  }
  /// `room`: for the plan of a rewrite.
  [[nodiscard]] Plan const& plan(Plan& room) const;
  [[nodiscard]] Coherence::Undo undo() const;
  /// The change is made, of what was prepared.
  void record(Coherence& coherence) const noexcept {
    if (known_) coherence.record(known_->plan, known_->undo);
  }

 private:
  struct Known {
    Plan plan;
    Coherence::Undo undo;
  };

  Place place_;
  ByteRange rewritten_{};
  std::uint64_t data_ = 0;
  std::unique_ptr<Known> known_;  ///< null for a rewrite
};

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

  /// `change` was recorded; its work ends with `events`. `nothing_else`: the events are of this work
  /// alone, so that if none of it began, nothing has been touched.
  void add(WorkEvents&& events, bool nothing_else, TentativeChange&& change) noexcept;

  [[nodiscard]] bool empty() const noexcept { return forgotten_ == all_.size(); }
  /// No failure has been taken back and not told.
  [[nodiscard]] bool all_told() const noexcept { return untold_ == nullptr; }
  /// Nothing of it is left to wait for, to take back or to tell.
  [[nodiscard]] bool is_settled() const noexcept { return empty() && all_told(); }

  /// Forgets what is certain. Whether nothing of what is left has ended, so that there is nothing to take back.
  [[nodiscard]] bool drop_ended_well() noexcept;
  /// Looks at the work that changed bytes of `range`, or, with `wait`, waits for it. If any of it has failed, waits for
  /// everything, takes all failures back, which are to be told then, and returns one of them; null if all is well so
  /// far. With `unfinished` it waits for nothing then: what it would wait for is added there, and nothing has changed.
  [[nodiscard]] std::exception_ptr resolve(Coherence& coherence, ByteRange range, bool wait,
                                           std::vector<Event>* unfinished = nullptr);

  /// The first failure on bytes of `range` that was taken back and not told; null if there is none. Throws
  /// std::bad_alloc, with nothing changed.
  [[nodiscard]] std::exception_ptr tell(ByteRange range);

  /// Waits for the work that changed bytes of `range`: its first error.
  [[nodiscard]] std::exception_ptr failure(ByteRange range) const noexcept;
  /// The same of the work that brings bytes of it to `place`, or writes them there.
  [[nodiscard]] std::exception_ptr failure_at(Place place, ByteRange range) const noexcept;

  /// Adds what `resolve` would wait for, as far as is known.
  void add_unfinished(ByteRange range, std::vector<Event>& events) const;

  /// Calls `look(place, range, events)` for all that is being written or brought anywhere, until those events.
  template <class Look>
  void for_each_touch(Look const& look) const {
    for (auto const& entry : entries()) {
      for (auto const range : entry.change.touched()) look(entry.change.place(), range, entry.events);
    }
  }

  /// Forgets it all. For data that is no more.
  void clear() noexcept {
    forget_all();
    untold_.reset();
  }

 private:
  struct Entry {
    WorkEvents events;
    TentativeChange change;
    bool may_be_untouched;  ///< namely if none of the events' work began

    [[nodiscard]] bool ended() const noexcept;
    /// The same after a question to the driver, where that is not known.
    [[nodiscard]] bool ended_if_asked() const noexcept;
    void add_unfinished(std::vector<Event>& to) const;
    /// Blocks until all of it has ended; its first error.
    [[nodiscard]] std::exception_ptr failure() const noexcept;
    /// Whether the work, which has failed, touched nothing.
    [[nodiscard]] bool never_began() const noexcept;
  };

  [[nodiscard]] std::span<Entry const> entries() const noexcept { return std::span{all_}.subspan(forgotten_); }
  void forget_all() noexcept {
    all_.clear();
    forgotten_ = 0;
  }
  /// Of all of it; whether there is any.
  [[nodiscard]] bool add_unfinished(std::vector<Event>& events) const;
  [[nodiscard]] std::exception_ptr take_failures_back(Coherence& coherence);
  /// Rolls all of it back, and records again what of it has not failed.
  void redo(Coherence& coherence, std::span<const std::exception_ptr> failures) const;
  void drop_what_is_certain() noexcept;

  std::vector<Entry> all_;     ///< in the order of their commits
  std::size_t forgotten_ = 0;  ///< how many of those, from the front
  /// If the works of all entries end in that order, the queue they are of; else 0.
  std::uint64_t queue_ = 0;
  std::unique_ptr<UntoldFailures> untold_;  ///< null: none
};

}  // namespace unimem::detail
