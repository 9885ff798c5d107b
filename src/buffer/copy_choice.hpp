#pragma once

#include <unimem/core/error.hpp>

#include <concepts>
#include <optional>
#include <utility>

namespace unimem::detail {

/// How much of a device an operation takes for parts of buffers.
enum class Room {
  ample,  ///< what is small gets cells of a grid, and reads that overlap windows of their own
  least,  ///< no byte twice, and none that is not used
};

/// What operations on parts of buffers give them on a device where they have no memory yet: memory for all of the
/// buffer, so that later operations find their parts in it, or else a window, which is memory for that part.
class CopyChoice {
 public:
  /// However often the operation is tried, the same: what was made for the one is not lost to the other. `has_room` is
  /// asked once, whether whole copies of all its buffers fit, with nothing evicted.
  template <std::predicate HasRoom>
  [[nodiscard]] bool takes_whole(HasRoom const& has_room) {
    if (!whole_) whole_ = has_room();
    return *whole_;
  }
  [[nodiscard]] bool took_whole() const noexcept { return whole_ == true; }
  [[nodiscard]] Room room() const noexcept { return room_; }
  /// What is thrown meanwhile is the failure of earlier work, be it for want of memory, and is told.
  void looks_at_earlier_work(bool does) noexcept { settled_ = does; }
  /// It has its memory: what is thrown from here on is not for want of that.
  void settle() noexcept { settled_ = true; }
  /// There was no memory. Whether another try may do: with windows, as the driver may have less than is known; with the
  /// least it needs, if `least_fits(refused)`; and at last once more, when `clear_the_way()` has given memory back.
  template <std::predicate<OutOfMemory const&> LeastFits, std::invocable<OutOfMemory const&> ClearTheWay>
  [[nodiscard]] bool try_with_less(OutOfMemory const& refused, LeastFits const& least_fits,
                                   ClearTheWay const& clear_the_way) {
    if (settled_) return false;
    if (std::exchange(whole_, false) == true) return true;
    if (cleared_ || !least_fits(refused)) return false;
    if (std::exchange(room_, Room::least) == Room::ample) return true;
    clear_the_way(refused);
    return cleared_ = true;
  }

 private:
  std::optional<bool> whole_;
  Room room_ = Room::ample;
  bool cleared_ = false;
  bool settled_ = false;
};

/// Does `work(choice)`, an operation that returns what comes of it.
template <class Work, std::predicate<OutOfMemory const&> LeastFits, std::invocable<OutOfMemory const&> ClearTheWay>
auto with_copy_choice(Work const& work, LeastFits const& least_fits, ClearTheWay const& clear_the_way) {
  for (CopyChoice choice;;) {
    try {
      return work(choice);
    } catch (OutOfMemory const& refused) {
      if (!choice.try_with_less(refused, least_fits, clear_the_way)) throw;
    }
  }
}

/// An operation on one part of one buffer, in whose way no memory of its own is.
template <class Work>
auto with_copy_choice(Work const& work) {
  return with_copy_choice(work, [](OutOfMemory const&) { return false; }, [](OutOfMemory const&) {});
}

}  // namespace unimem::detail
