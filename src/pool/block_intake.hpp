#pragma once

#include "pool/pool_state.hpp"

#include <mutex>
#include <optional>
#include <span>

namespace unimem::detail {

/// How blocks come back into a pool that their owners, or the threads that kept them, have released: to the extents if
/// they are done and those can be had at once, else among the cached ones.
///
/// Takes the pool's lock, where it does not say otherwise.
class BlockIntake {
 public:
  explicit BlockIntake(PoolState& pool) noexcept : pool_(pool) {}

  /// A block that its owner has just released. Under the lock.
  void take(Block& block, PoolAges::Time now) noexcept;

  // For ThreadCache: blocks that are parked, or were until now.
  void take_back(std::span<Block* const> blocks) noexcept;
  void take_back(Magazines& magazines) noexcept;
  void take_back(Depots& depots) noexcept;
  void take_back_large(Magazines& magazines) noexcept;
  void take_back_large(Depots& depots) noexcept;

  /// Counts the acquires of a thread that is gone.
  void count_hits_of(Magazines const& magazines) noexcept;
  [[nodiscard]] std::unique_lock<std::mutex> lock() const { return std::unique_lock{pool_.mutex}; }

 private:
  using Returning = std::optional<Extents::Returning>;

  // Under the lock.
  /// The extents, if there are any and they can be had at once.
  [[nodiscard]] Returning uniting() noexcept;
  /// Takes a block that was released back into the extents, if it is done.
  bool unite(Block& block, Extents::Returning& returning) noexcept;
  void take_back(Block& block, Returning& returning) noexcept;

  /// Has `take(each)` call `each(Block&)` for what is parked somewhere; the peak is noted as `of_peak` sees it.
  template <class Take>
  void take_back_by(Magazines* of_peak, Take const& take) noexcept;

  PoolState& pool_;
};

}  // namespace unimem::detail
