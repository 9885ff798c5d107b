#pragma once

#include <unimem/core/error.hpp>
#include <unimem/device/device.hpp>
#include <unimem/pool/memory_pool.hpp>

#include "pool/shared_limit.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

namespace unimem::detail {

/// The limit of all host memory of one manager: that of the cpu device, at whatever location, which memory of devices
/// that work on other memory is taken from too. Limits of its locations are their pools' own, within it.
///
/// Thread-safe. Pools are those that there are so far.
class HostLimit {
 public:
  static constexpr std::size_t places = 4;  ///< locations of memory

  /// No more than `from_outside` bytes, whatever is set; `trimmed` is called when caches of some pools have made room
  /// for another.
  HostLimit(std::size_t from_outside, std::function<void()> trimmed);
  HostLimit(HostLimit const&) = delete;
  HostLimit& operator=(HostLimit const&) = delete;

  [[nodiscard]] static bool bounds(Device const& device) noexcept { return device.backend() == Backend::cpu; }

  /// What the pool of a location is made with.
  [[nodiscard]] std::shared_ptr<LimitShare> const& share(Location location) const noexcept {
    return shares_[static_cast<std::size_t>(location)];
  }
  /// Once it is made: it stays as long as this.
  void add(MemoryPool& pool) noexcept;
  /// Null: there is none yet.
  [[nodiscard]] MemoryPool* pool(Location location) const noexcept {
    return pools_[static_cast<std::size_t>(location)].load(std::memory_order_acquire);
  }
  [[nodiscard]] std::vector<MemoryPool*> pools() const;

  [[nodiscard]] SharedLimit& whole() noexcept { return *whole_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return whole_->bytes(); }

  /// Has cached blocks given back if need be. Throws InvalidArgument, and the limit stays, if it is below what is in
  /// use, or below what devices do not take back.
  void set(std::size_t bytes);

  /// Bytes of blocks in use at all locations, exactly.
  [[nodiscard]] std::size_t in_use() const;

  /// Makes what one of its pools says of itself, when this limit has refused it memory, what is so of all of them.
  void complete(OutOfMemory::Facts& facts, MemoryPool const& asked) const;

 private:
  bool make_room(Location location, std::size_t wanted, bool may_wait);

  static constexpr std::size_t most_holders = 5;  ///< in a message, as of a pool

  std::size_t const from_outside_;
  std::function<void()> const trimmed_;
  std::shared_ptr<SharedLimit> const whole_;
  std::array<std::shared_ptr<LimitShare>, places> shares_;
  std::array<std::atomic<MemoryPool*>, places> pools_{};  ///< by location; acquire: with what it points to
};

}  // namespace unimem::detail
