#pragma once

#include <unimem/buffer/options.hpp>
#include <unimem/core/byte_ranges.hpp>
#include <unimem/device/device.hpp>

#include "coherence/coherence.hpp"
#include "manager/use_history.hpp"

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace unimem::detail {

class Replica;

/// What the user has said of the next use.
enum class NextUse : unsigned char { unsaid, soon, none };

/// A device that a buffer has been used on, or its file (`FileDevice`), or a window, which is a part of the buffer on
/// such a device: the copy there, if there is one, and when it was used.
struct DevicePlace {
  /// Work of the device on that many bytes begins.
  void used(std::size_t bytes) noexcept;
  /// Whether it is about to be used there, or for long not, by what was said, else by what its history makes expect.
  [[nodiscard]] bool is_used_soon(double within) const noexcept;
  [[nodiscard]] bool is_idle(double beyond) const noexcept;

  Device* device = nullptr;
  UseClock* clock = nullptr;  ///< of the device, for `history`
  std::shared_ptr<Replica> replica;
  UseHistory history{};
  NextUse next_use = NextUse::unsaid;
  enum class File : unsigned char { none, spill, users };
  File file = File::none;             ///< what is evicted there, or the user's
  std::optional<ByteRange> window{};  ///< the part of the buffer that it is a copy of; none: all of it
};

/// The devices that a buffer has been used on, by place, its file among them, and which work in the host's memory.
///
/// A device has one place for a copy of the whole buffer, and beside it places for windows. Windows may overlap: they
/// are kept coherent like copies on several devices.
///
/// Not thread-safe; the buffer's lock guards it.
class Places {
 public:
  explicit Places(BufferOptions const& options) noexcept : wanted_(options.location), default_(options.device) {}

  /// Decided at first use: looking for drivers takes time. `host_has_memory`: it is too late for unified memory.
  [[nodiscard]] Device& default_device(bool host_has_memory);
  /// The same if it is decided, else null.
  [[nodiscard]] Device* known_default_device() const noexcept { return default_; }
  /// Whose unified memory serves the host; null: the host has its own.
  [[nodiscard]] Device* unified() const noexcept { return unified_; }
  /// The default device is known, and the host has no memory yet: whose it is going to be.
  void choose_host_memory() noexcept;
  /// The host has memory that is what it is.
  void host_has_its_own() noexcept { unified_ = nullptr; }

  /// Whether the host's memory is the device's as well: it reaches all of it, or the host uses the device's own.
  [[nodiscard]] bool shares(Device const& with) const noexcept {
    return with.reaches_host_memory() || (unified_ != nullptr && with.shares_unified_memory(*unified_));
  }
  /// Whether the place's memory has addresses that the host may use: the host's own, or a device's that shares it.
  [[nodiscard]] bool in_host_memory(Place place) const noexcept {
    return place == host_place || shares(*(*this)[place].device);
  }

  void add(Device& device, UseClock& clock) { devices_.push_back({&device, &clock, nullptr}); }
  void add_file(DevicePlace::File which, Device& files, UseClock& clock) {
    devices_.push_back({.device = &files, .clock = &clock, .replica = nullptr, .file = which});
  }
  [[nodiscard]] bool is_file(Place place) const noexcept {
    return place != host_place && (*this)[place].file != DevicePlace::File::none;
  }
  [[nodiscard]] std::optional<Place> find(DevicePlace::File which) const noexcept;
  /// The file that host memory is evicted to, and the one of the user's that the buffer was made from.
  [[nodiscard]] std::optional<Place> spill_file() const noexcept { return find(DevicePlace::File::spill); }
  [[nodiscard]] std::optional<Place> users_file() const noexcept { return find(DevicePlace::File::users); }
  void reserve_one() { devices_.reserve(devices_.size() + 1); }
  /// That of a device's copy of the whole buffer.
  [[nodiscard]] std::optional<Place> find(Device const& device) const noexcept {
    for (auto const& one : devices_) {
      if (one.device == &device && !one.window) return static_cast<Place>(&one - devices_.data() + 1);
    }
    return std::nullopt;
  }
  void add_window(Device& device, UseClock& clock, ByteRange range) {
    devices_.push_back({.device = &device, .clock = &clock, .replica = nullptr, .window = range});
    has_windows_ = true;
  }
  /// Whether there are places for windows, with memory or without.
  [[nodiscard]] bool has_windows() const noexcept { return has_windows_; }
  /// Whether both places are memory of one device's own, so that what moves between them goes over no link.
  [[nodiscard]] bool on_one_device(Place one, Place other) const noexcept;
  /// Of a device's place.
  [[nodiscard]] DevicePlace& operator[](Place place) noexcept { return devices_[place - 1]; }
  [[nodiscard]] DevicePlace const& operator[](Place place) const noexcept { return devices_[place - 1]; }
  [[nodiscard]] std::span<DevicePlace> devices() noexcept { return devices_; }
  [[nodiscard]] std::span<DevicePlace const> devices() const noexcept { return devices_; }
  /// The host's included.
  [[nodiscard]] Place count() const noexcept { return static_cast<Place>(devices_.size() + 1); }
  /// For messages and statistics.
  [[nodiscard]] std::string name(Place place) const;
  /// What a copy between two of them takes, by their links; without end to and from a device that is gone. It has to be
  /// so that writes to the user's file are not joined across bytes that were not written.
  [[nodiscard]] CopyCost cost() const;

 private:
  Location wanted_;
  Device* default_;
  Device* unified_ = nullptr;
  bool has_windows_ = false;
  std::vector<DevicePlace> devices_;  ///< by place, less one
};

}  // namespace unimem::detail
