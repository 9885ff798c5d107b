#pragma once

#include <unimem/core/byte_ranges.hpp>
#include <unimem/device/device.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace unimem::testing {

/// What one buffer holds, byte by byte, as far as the work up to some moment goes: the model's own memory, which no
/// device ever sees.
struct Truth {
  struct Byte {
    std::uint8_t value = 0;
    bool defined = false;     ///< somebody wrote it; the others hold what nobody can know before reading it
    bool on_host = false;     ///< certainly current on the host, where no failure of a device reaches it
    bool shaken = false;      ///< a device's write to it failed, and nobody has read or written it since
    bool may_lost = false;    ///< the last good copy may have gone with failed work: DataLost is allowed
    std::uint8_t before = 0;  ///< what the last write replaced
  };

  /// What happened to some bytes, for the message when they turn out wrong.
  struct Note {
    ByteRange range;
    std::size_t step;
    std::string_view what;
    std::string_view how;
  };

  std::string name;
  std::vector<Byte> bytes;
  std::deque<Note> notes{};

  /// Whose entry of the record is being read: set by the model.
  inline static std::size_t reading_step = 0;
  inline static std::string_view reading;

  void note(ByteRange range, std::string_view how) {
    if (notes.size() == 256) notes.pop_front();
    notes.push_back({range, reading_step, reading, how});
  }
  /// The latest of what happened to one byte.
  [[nodiscard]] std::string history(std::size_t at) const {
    std::string text;
    std::size_t told = 0;
    for (auto note = notes.rbegin(); note != notes.rend() && told < 12; ++note) {
      if (at < note->range.begin || at >= note->range.end) continue;
      text += "\n  operation " + std::to_string(note->step) + ", " + std::string(note->what) + " of [" +
              std::to_string(note->range.begin) + ", " + std::to_string(note->range.end) +
              "): " + std::string(note->how);
      ++told;
    }
    return text;
  }

  void write(ByteRange range, std::vector<std::uint8_t> const& values, bool defined, bool on_host) {
    note(range, on_host ? "written on the host" : "written on a device");
    for (std::size_t i = 0; i < range.size(); ++i) {
      bytes[range.begin + i] = {values[i], defined, on_host, false, false, bytes[range.begin + i].value};
    }
  }

  /// A write to `range` failed on a device: only what the host certainly kept is certainly there, and not even that if
  /// the device works in the host's memory.
  void fail_on(Device const& device, ByteRange range) {
    note(range, device.shares_storage_with_host() ? "a write failed on the cpu" : "a write failed on a device");
    for (auto i = range.begin; i < range.end; ++i) {
      auto& byte = bytes[i];
      byte.on_host = byte.on_host && !device.shares_storage_with_host();
      byte.shaken = true;
      byte.may_lost = byte.may_lost || !byte.on_host;
    }
  }

  /// Bringing `range` to the host failed. It may have come over the last good copy, if what it brought had failed.
  void fail_on_way_to_host(ByteRange range) {
    note(range, "did not reach the host");
    for (auto i = range.begin; i < range.end; ++i) {
      bytes[i].may_lost = bytes[i].may_lost || bytes[i].shaken;
      bytes[i].on_host = false;
    }
  }

  void arrive_on_host(ByteRange range) {
    note(range, "is on the host");
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
