#pragma once

#include <unimem/core/byte_ranges.hpp>
#include <unimem/device/device.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace unimem::testing {

/// What one buffer holds, byte by byte, as far as the work up to some moment goes: the model's own memory, which no
/// device ever sees.
struct Truth {
  struct Byte {
    std::uint8_t value = 0;
    bool defined = false;   ///< somebody wrote it; the others hold what nobody can know before reading it
    bool on_host = false;   ///< certainly current on the host, where no failure of a device reaches it
    bool shaken = false;    ///< a device's write to it failed, and nobody has read or written it since
    bool may_lost = false;  ///< the last good copy may have gone with failed work: DataLost is allowed
  };

  std::string name;
  std::vector<Byte> bytes;

  void write(ByteRange range, std::vector<std::uint8_t> const& values, bool defined, bool on_host) {
    for (std::size_t i = 0; i < range.size(); ++i) {
      bytes[range.begin + i] = {values[i], defined, on_host, false, false};
    }
  }

  /// A write to `range` failed on a device: only what the host certainly kept is certainly there, and not even that if
  /// the device works in the host's memory.
  void fail_on(Device const& device, ByteRange range) {
    for (auto i = range.begin; i < range.end; ++i) {
      auto& byte = bytes[i];
      byte.on_host = byte.on_host && !device.shares_storage_with_host();
      byte.shaken = true;
      byte.may_lost = byte.may_lost || !byte.on_host;
    }
  }

  /// Bringing `range` to the host failed. It may have come over the last good copy, if what it brought had failed.
  void fail_on_way_to_host(ByteRange range) {
    for (auto i = range.begin; i < range.end; ++i) {
      bytes[i].may_lost = bytes[i].may_lost || bytes[i].shaken;
      bytes[i].on_host = false;
    }
  }

  void arrive_on_host(ByteRange range) {
    for (auto i = range.begin; i < range.end; ++i) bytes[i].on_host = true;
  }
  void leave_host() {
    for (auto& byte : bytes) byte.on_host = false;
  }
  [[nodiscard]] bool may_have_lost(ByteRange range) const {
    for (auto i = range.begin; i < range.end; ++i) {
      if (i >= bytes.size() || !bytes[i].may_lost) return false;
    }
    return true;
  }
  void forget() {
    for (auto& byte : bytes) byte = {};
  }
};

}  // namespace unimem::testing
