#pragma once

#include <unimem/device/device.hpp>
#include <unimem/pool/upstream.hpp>

#include "pool/shared_limit.hpp"

#include <cstddef>
#include <memory>
#include <utility>

namespace unimem::detail {

/// What gives a pool memory by whole objects: its device, or an upstream of the user's. The one is trusted; what the
/// other gives is looked at before it is used, and what it throws made one of the library's errors, since callers
/// of a pool know of no others. Where the pool shares a limit with others, an object is taken from its share before
/// that, and is back there once it is gone.
///
/// Thread-safe as far as the upstream is.
class ObjectSource {
 public:
  /// `upstream` null: the device, whose memory is left out of core dumps if it is to be `undumped`. `share` null: of no
  /// limit; else it outlives this.
  ObjectSource(Device& device, Location location, std::shared_ptr<Upstream> upstream, bool undumped,
               LimitShare* share) noexcept
      : device_(device), location_(location), upstream_(std::move(upstream)), undumped_(undumped), share_(share) {}

  /// An object of exactly `bytes` bytes. Throws OutOfMemory if the share has not as much left, and as Device::allocate,
  /// or as Upstream says.
  [[nodiscard]] DeviceMemory take(std::size_t bytes) const;

  void give(DeviceMemory memory) const noexcept;

  [[nodiscard]] bool has_upstream() const noexcept { return upstream_ != nullptr; }

 private:
  [[nodiscard]] DeviceMemory take_unshared(std::size_t bytes) const;
  void give_unshared(DeviceMemory memory) const noexcept;
  [[nodiscard]] DeviceMemory ask_upstream(std::size_t bytes) const;
  /// Throws unless it is what was asked for.
  void check(DeviceMemory memory, std::size_t bytes) const;

  Device& device_;
  Location const location_;
  std::shared_ptr<Upstream> const upstream_;
  bool const undumped_;
  LimitShare* const share_;
};

}  // namespace unimem::detail
