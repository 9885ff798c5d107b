#pragma once

#include <cstdint>
#include <string>

namespace unimem {

/// What moved, in whichever direction.
struct Traffic {
  std::uint64_t bytes = 0;
  std::uint64_t copies = 0;

  friend bool operator==(Traffic, Traffic) = default;
};

/// What moved for one buffer since it was made: bytes, and the copies that carried them. Switches between places that
/// share storage move nothing and count nothing, nor does what moves within one device.
///
/// Bytes and copies count when the copies are submitted, their time when they have ended, as the devices that carry
/// them out measure it (see `TransferCounters`): of copies at once each counts its own. A copy that goes by way of the
/// host, from one device to another, takes the time of both halves; one that is staged that of its way between host
/// and device, not of the host's own part.
struct BufferStatistics {
  std::uint64_t host_to_device_bytes = 0;
  std::uint64_t host_to_device_copies = 0;
  std::uint64_t device_to_host_bytes = 0;
  std::uint64_t device_to_host_copies = 0;
  std::uint64_t device_to_device_bytes = 0;
  std::uint64_t device_to_device_copies = 0;
  std::uint64_t conflicting_marks = 0;  ///< marks that overruled unsynchronized writes of the other side
  std::uint64_t unmarked_writes = 0;    ///< host writes that were not declared, found with UNIMEM_CHECK=1
  /// Of the copies between host and device: by way of pinned blocks (`Device::staging_threshold`).
  std::uint64_t staged_copies = 0;
  /// And those that should have gone that way and went directly, for want of pinned memory.
  std::uint64_t unstaged_copies = 0;
  std::uint64_t host_to_device_nanoseconds = 0;
  std::uint64_t device_to_host_nanoseconds = 0;
  std::uint64_t device_to_device_nanoseconds = 0;
  /// What is in none of these sums: commands of its copies whose time the device does not know. A copy that goes in
  /// chunks is several.
  std::uint64_t untimed_copies = 0;

  /// Everything that was copied from one place to another, whichever way.
  [[nodiscard]] Traffic traffic() const noexcept {
    return {host_to_device_bytes + device_to_host_bytes + device_to_device_bytes,
            host_to_device_copies + device_to_host_copies + device_to_device_copies};
  }
  /// The same since these statistics were `earlier`. A buffer that was reset meanwhile counts from then on.
  [[nodiscard]] Traffic traffic_since(BufferStatistics const& earlier) const noexcept {
    auto const now = traffic();
    auto const before = earlier.traffic();
    bool const was_reset = now.bytes < before.bytes || now.copies < before.copies;
    return was_reset ? now : Traffic{now.bytes - before.bytes, now.copies - before.copies};
  }
};

/// What moved from one place to another for one buffer: its migrations, link by link. Places are device ids, and
/// "host".
struct LinkStatistics {
  std::string from;
  std::string to;
  std::uint64_t copies = 0;
  std::uint64_t bytes = 0;

  friend bool operator==(LinkStatistics const&, LinkStatistics const&) = default;
};

}  // namespace unimem
