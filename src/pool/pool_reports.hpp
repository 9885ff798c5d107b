#pragma once

#include "pool/pool_state.hpp"

#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

namespace unimem::detail {

/// What a pool says of itself. Each report but `shortage` takes the locks it needs, and counts in what threads keep.
///
/// Thread-safe.
class PoolReports {
 public:
  explicit PoolReports(PoolState& pool) noexcept : pool_(pool) {}

  [[nodiscard]] PoolStatistics statistics() const {
    auto const still = hold_extents();
    return statistics_while_held();
  }
  /// Keeps the extents as they are, if there are any: asked for before other locks.
  [[nodiscard]] std::unique_lock<std::mutex> hold_extents() const;
  [[nodiscard]] PoolStatistics statistics_while_held() const;
  [[nodiscard]] PoolFragmentation fragmentation() const;
  [[nodiscard]] std::vector<OutOfMemory::Holder> holders(std::size_t most) const;
  /// Throws std::logic_error unless all is in order.
  void validate() const;

  /// All that is known when there is no memory for `bytes` bytes; `refusal` is what the driver said, if it came to
  /// that. Drops the lock.
  [[nodiscard]] OutOfMemory::Facts shortage(PoolLock& lock, std::size_t bytes, std::string const& refusal) const;

 private:
  [[nodiscard]] std::vector<OutOfMemory::Holder> holders_under_lock(std::size_t most) const;

  PoolState& pool_;
};

}  // namespace unimem::detail
