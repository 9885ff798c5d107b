#pragma once

#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/cluster/device_addresses.hpp>
#include <unimem/cluster/elements.hpp>
#include <unimem/device/discovery.hpp>

#include <cstddef>
#include <optional>
#include <utility>

namespace unimem::mpi::detail {

inline Device& host_device() {
  static Device& cpu = device("cpu");
  return cpu;
}

/// Where the bytes of an operand are current, as far as a message is concerned.
struct Whereabouts {
  bool on_host = false;
  Device* reached = nullptr;  ///< a device that has all of them, at an address that MPI takes
  Device* other = nullptr;    ///< a device that has all of them, and whose addresses MPI does not take
};

/// Whether all of the bytes are current on the host. What kernels under way are to write counts as the device's.
inline bool is_on_host(Window const& window) {
  return window.core.host_ready(Intent::read) || window.core.missing_on(host_device(), window.range) == 0;
}

inline Whereabouts find(Window const& window) {
  if (is_on_host(window)) return {true, nullptr, nullptr};
  Whereabouts found;
  for (auto* const device : window.core.devices_with_memory()) {
    if (window.core.missing_on(*device, window.range) != 0) continue;
    (mpi_reaches(*device) ? found.reached : found.other) = device;
  }
  return found;
}

/// Where the host's bytes are if they are current there and stay there for as long as the caller's own views of them
/// would, which takes no lock; null otherwise.
inline void* address_at_once(Window const& window, Intent intent) noexcept {
  auto* const host = window.core.host_at_once(intent);
  return host == nullptr ? nullptr : static_cast<std::byte*>(host) + window.range.begin;
}

/// The bytes that a message is sent from, held for as long as this lives: on the host, to which they are brought if
/// they are not there, or on a device that MPI reaches. Waits for the work that writes them, and throws its error.
class BytesToSend {
 public:
  BytesToSend(Window const& window, Whereabouts const& found) : address_(address_at_once(window, Intent::read)) {
    if (address_ != nullptr) return;
    lease_ = found.reached == nullptr ? window.core.map(window.range, MapMode::read)
                                      : window.core.lease(*found.reached, nullptr, window.range, Intent::read);
    address_ = lease_.address();
  }

  [[nodiscard]] void* address() const noexcept { return address_; }

 private:
  void* address_;
  DeviceLease lease_;
};

/// The memory that a message is received into: the host's, or a device's, which MPI reaches and where the buffer has
/// its current bytes. What is received counts as written by `keep`; without it nothing counts.
class BytesToReceive {
 public:
  explicit BytesToReceive(Window const& window) : window_(window), address_(address_at_once(window, Intent::write)) {
    if (address_ != nullptr) return;  // all of it counts as written there already
    if (auto* const device = find(window).reached) {
      lease_ = window.core.lease(*device, nullptr, window.range, Intent::write);
    } else {
      lease_ = window.core.map(window.range, MapMode::discard);
      is_mapped_ = true;
    }
    address_ = lease_.address();
  }
  BytesToReceive(BytesToReceive const&) = delete;
  BytesToReceive& operator=(BytesToReceive const&) = delete;
  ~BytesToReceive() {
    if (is_mapped_) window_.core.nothing_written_through_map();
  }

  [[nodiscard]] void* address() const noexcept { return address_; }

  /// All of it counts as written from here on.
  void keep() {
    if (std::exchange(is_mapped_, false)) window_.core.written_through_map(window_.range, lease_);
  }

 private:
  Window const& window_;
  void* address_;
  DeviceLease lease_;
  bool is_mapped_ = false;
};

}  // namespace unimem::mpi::detail
