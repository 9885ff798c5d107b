#pragma once

#include <unimem/core/error.hpp>

#include <concepts>
#include <optional>
#include <utility>

namespace unimem::detail {

/// Which operands of one operation work in one memory: those that overlap, where ...
enum class Sharing {
  for_writes,  ///< ... their buffer is written, or where one of them lies in the other
  always,      ///< for an operation that has room for no byte twice
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
  [[nodiscard]] Sharing sharing() const noexcept { return least_ ? Sharing::always : Sharing::for_writes; }
  /// It has its memory: what is thrown from here on is not for want of that.
  void settle() noexcept { settled_ = true; }
  /// There was no memory. Whether another try may do: first with windows, as the driver may have less than is known,
  /// and at last with the least it needs, once `clear_the_way()` has done something for that.
  template <std::predicate ClearTheWay>
  [[nodiscard]] bool try_with_less(ClearTheWay const& clear_the_way) {
    if (settled_) return false;
    if (std::exchange(whole_, false) == true) return true;
    return !std::exchange(least_, true) && clear_the_way();
  }

 private:
  std::optional<bool> whole_;
  bool least_ = false;
  bool settled_ = false;
};

/// Does `work(choice)`, an operation that returns what comes of it.
template <class Work, std::predicate ClearTheWay>
auto with_copy_choice(Work const& work, ClearTheWay const& clear_the_way) {
  for (CopyChoice choice;;) {
    try {
      return work(choice);
    } catch (OutOfMemory const&) {
      if (!choice.try_with_less(clear_the_way)) throw;
    }
  }
}

/// An operation on one part of one buffer, in whose way no memory of its own is.
template <class Work>
auto with_copy_choice(Work const& work) {
  return with_copy_choice(work, [] { return false; });
}

}  // namespace unimem::detail
