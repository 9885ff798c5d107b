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
#include <utility>
#include <vector>

namespace unimem::detail {

struct BufferKindHash {
  [[nodiscard]] std::size_t operator()(BufferKind const& kind) const noexcept;
};

/// The buffers a pool keeps, pageable or pinned ones: by age, to find the one that must go, and by kind, to find the
/// one that is wanted. Two indices over one list.
///
/// What it lets go it adds to a list of the caller's, who can destroy buffers, which may be a driver's business,
/// outside of the lock. Not thread-safe.
class FreeList {
  struct Bin;

 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Kept {
    explicit Kept(BufferKind of) : kind(std::move(of)) {}

    BufferKind kind;
    std::shared_ptr<BufferCore> core;
    Time since;
    std::uint64_t number = 0;  ///< of its release, whatever the clock says: the order of ages across shelves

   private:
    friend class FreeList;
    Bin* bin_ = nullptr;              ///< of its kind, where it is or was last
    std::uint64_t times_forgot_ = 0;  ///< when it was taken from there
  };
  using Buffers = std::list<Kept>;

  /// The one of this kind that was put there last; null if there is none.
  [[nodiscard]] Kept const* find(BufferKind const& kind) const noexcept;
  /// The one that was put there first; null if there is none.
  [[nodiscard]] Kept const* oldest() const noexcept { return by_age_.empty() ? nullptr : &by_age_.front(); }
  /// Takes one out that `find` has found.
  void take(Kept const& found, Buffers& to) noexcept;

  /// Whether a buffer of this kind may be put there at all.
  [[nodiscard]] static bool admits(BufferPoolLimits const& limits, BufferKind const& kind) noexcept;
  /// Puts the one buffer of a list there, which may have been taken from there. Strong guarantee.
  void put(Buffers& one);
  /// All were put there at this time.
  void set_ages(Time time) noexcept;

  /// Each evicts the oldest, as many as needed.
  void make_room(BufferPoolLimits const& limits, BufferKind const& kind, Buffers& to) noexcept;
  void shrink_to(BufferPoolLimits const& limits, Buffers& to) noexcept;
  void evict_older_than(Time time, Buffers& to) noexcept;
  /// There is one.
  void evict_oldest(Buffers& to) noexcept { evict(by_age_.begin(), to); }

  [[nodiscard]] std::uint64_t evicted() const noexcept { return evicted_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::size_t count() const noexcept { return by_age_.size(); }

  void validate() const;

 private:
  using Place = Buffers::iterator;
  /// Those of one kind.
  struct Bin {
    std::vector<Place> places;  ///< oldest first
  };

  [[nodiscard]] Bin& bin_for(Kept& one);
  void remove(Place place, Buffers& to) noexcept;
  void evict(Place place, Buffers& to) noexcept;
  void forget_empty_kinds() noexcept;
  template <class Enough>
  void evict_until(Enough enough, Buffers& to) noexcept;
  void evict_of_class(std::size_t index, std::size_t most, Buffers& to) noexcept;

  Buffers by_age_;  ///< oldest first
  std::unordered_map<BufferKind, Bin, BufferKindHash> by_kind_;
  std::array<std::size_t, size_class_count> in_class_{};
  std::size_t bytes_ = 0;
  std::size_t empty_kinds_ = 0;  ///< known, and none there: they come and go, and a few may stay known
  std::uint64_t times_forgot_ = 0;
  std::uint64_t evicted_ = 0;
};

}  // namespace unimem::detail
