#pragma once

#include <unimem/device/device.hpp>

#include "pool/shared_limit.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace unimem::detail {

/// What a pool may reserve: its own limit, which can be changed, at most what its device has, and what others leave of
/// a limit that it shares with them.
///
/// Under the pool's lock, but for what is said of the share, which any thread may ask for.
class PoolLimits {
 public:
  /// `share` null: it shares no limit; else it outlives this.
  PoolLimits(Device const& device, LimitShare const* share, std::size_t max_bytes) noexcept
      : device_(device), share_(share), max_bytes_(max_bytes) {}

  [[nodiscard]] std::size_t max_bytes() const noexcept { return max_bytes_; }
  /// Of pages the extents' limit too: changed while they are held.
  void set_max_bytes(std::size_t bytes) noexcept { max_bytes_ = bytes; }

  /// What may be reserved, but for the limit that is shared; and with it, as far as others leave it just now.
  [[nodiscard]] std::size_t own() const noexcept { return std::min(max_bytes_, device_.info().total_bytes); }
  [[nodiscard]] std::size_t beside_others() const noexcept {
    return share_ == nullptr ? own() : std::min(own(), share_->most());
  }

  /// How often something has come back to the limit that is shared, and how often it has refused this pool memory.
  [[nodiscard]] std::uint64_t returns() const noexcept { return share_ == nullptr ? 0 : share_->whole().returns(); }
  [[nodiscard]] std::uint64_t refusals() const noexcept { return share_ == nullptr ? 0 : share_->refusals(); }

 private:
  Device const& device_;
  LimitShare const* const share_;
  std::size_t max_bytes_;
};

}  // namespace unimem::detail
