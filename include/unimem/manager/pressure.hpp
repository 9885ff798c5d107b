#pragma once

#include <unimem/core/export.hpp>
#include <unimem/device/memory.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

namespace unimem {

class Device;

namespace detail {
class Pressure;
}

/// How full one location of a device is. One of the host's is as full as all of the host's memory together, if that is
/// more by its limit.
enum class PressureLevel : std::uint8_t { none, moderate, high, critical };

[[nodiscard]] UNIMEM_API std::string_view to_string(PressureLevel level) noexcept;

/// Where the levels begin, as parts of the limit: rising, up to 1, and the first more than the hysteresis.
struct PressureOptions {
  double moderate = 0.75;
  double high = 0.85;
  double critical = 0.95;
  double hysteresis = 0.05;  ///< how far below its beginning a level is left again
};

/// One crossing, over as many levels as it went.
struct PressureChange {
  Device* device = nullptr;  ///< the cpu device for host and pinned memory
  Location location = Location::device;
  PressureLevel before = PressureLevel::none;
  PressureLevel now = PressureLevel::none;
  /// In use when it was noticed; cached blocks are free. Of all of the host's memory where it is that which is so full.
  std::size_t live_bytes = 0;
  /// What that is a part of: the location's limit, that of all of the host's memory, or the device's capacity.
  std::size_t limit_bytes = 0;
};

using PressureCallback = std::function<void(PressureChange const&)>;

/// As long as it lives its callback is called. Ending it waits for a call that is going on, but for one that it is
/// ended from, and in a kernel for one that waits for that kernel; no other call comes after it. May outlive its
/// manager. Move-only.
class UNIMEM_API PressureSubscription {
 public:
  /// Of nothing.
  PressureSubscription() = default;
  PressureSubscription(std::shared_ptr<detail::Pressure> pressure, std::uint64_t id) noexcept;
  PressureSubscription(PressureSubscription&& other) noexcept;
  PressureSubscription& operator=(PressureSubscription&& other) noexcept;
  ~PressureSubscription();

  /// Ends it now.
  void end() noexcept;

 private:
  std::shared_ptr<detail::Pressure> pressure_;
  std::uint64_t id_ = 0;
};

}  // namespace unimem
