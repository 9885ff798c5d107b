#pragma once

#include <unimem/buffer/buffer_pool.hpp>
#include <unimem/pool/statistics.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

namespace unimem::detail {

struct BufferKindHash {
  [[nodiscard]] std::size_t operator()(BufferKind const& kind) const noexcept;
};

/// The buffers a pool keeps, pageable or pinned ones: by age, to find the one that must go, and by kind, to find the
/// one that is wanted. Two indices over one list.
///
/// What it lets go it returns as a list, so that the caller can destroy buffers, which may be a driver's business,
/// outside of the lock. Not thread-safe.
class FreeList {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Kept {
    BufferKind kind;
    std::shared_ptr<BufferCore> core;
    Time since;
    std::uint64_t number = 0;  ///< of its release, whatever the clock says: the order of ages across shelves
  };
  using Buffers = std::list<Kept>;

  /// The one of this kind that was put there last; null if there is none.
  [[nodiscard]] Kept const* find(BufferKind const& kind) const noexcept;
  /// The one that was put there first; null if there is none.
  [[nodiscard]] Kept const* oldest() const noexcept { return by_age_.empty() ? nullptr : &by_age_.front(); }
  /// Takes one out that one of these two has found.
  [[nodiscard]] Buffers take(Kept const& found) noexcept;

  /// Whether a buffer of this kind may be put there at all.
  [[nodiscard]] static bool admits(BufferPoolLimits const& limits, BufferKind const& kind) noexcept;
  /// Puts the one buffer of a list there. Strong guarantee.
  void put(Buffers& one);
  /// All were put there at this time.
  void set_ages(Time time) noexcept;

  /// Each takes the oldest, as many as needed.
  [[nodiscard]] Buffers make_room(BufferPoolLimits const& limits, BufferKind const& kind) noexcept;
  [[nodiscard]] Buffers shrink_to(BufferPoolLimits const& limits) noexcept;
  [[nodiscard]] Buffers take_older_than(Time time) noexcept;

  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::size_t count() const noexcept { return by_age_.size(); }

  void validate() const;

 private:
  using Place = Buffers::iterator;

  void remove(Place place, Buffers& to) noexcept;
  void forget_empty_kinds() noexcept;
  template <class Enough>
  void remove_oldest(Buffers& to, Enough enough) noexcept;
  void remove_oldest_of_class(std::size_t index, std::size_t most, Buffers& to) noexcept;

  Buffers by_age_;                                                              ///< oldest first
  std::unordered_map<BufferKind, std::vector<Place>, BufferKindHash> by_kind_;  ///< oldest first
  std::array<std::size_t, size_class_count> in_class_{};
  std::size_t bytes_ = 0;
  std::size_t empty_kinds_ = 0;  ///< known, and none there: they come and go, and a few may stay known
};

}  // namespace unimem::detail
