#pragma once

#include <unimem/core/byte_ranges.hpp>

#include "buffer/places.hpp"
#include "buffer/replica.hpp"
#include "buffer/tentative_work.hpp"
#include "coherence/coherence.hpp"

#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <vector>

namespace unimem {
class MemoryManager;
}  // namespace unimem

namespace unimem::detail {

/// The replicas of a buffer, by place, and which of its bytes are valid in which. The host and the devices that work in
/// its memory are places over one replica.
///
/// Not thread-safe; the buffer's lock guards it.
class ReplicaMap {
 public:
  ReplicaMap(std::size_t bytes, BufferOptions const& options) : places(options), coherence(bytes), bytes_(bytes) {
    if (options.device != nullptr) places.choose_host_memory();
  }

  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] ByteRange whole() const noexcept { return {0, bytes_}; }
  [[nodiscard]] Device& default_device() { return places.default_device(host_ != nullptr); }
  /// The place of a device, added when it is new.
  Place place_of(Device& device, MemoryManager& manager);
  /// That of a window of the buffer on the device, added when it is new, or in place of one without memory.
  Place place_of_window(Device& device, ByteRange range, MemoryManager& manager);
  /// The bytes that the place may hold: all, but for a window.
  [[nodiscard]] ByteRange reach(Place place) const noexcept {
    return place == host_place ? whole() : places[place].window.value_or(whole());
  }
  /// That of the file which host memory is evicted to, or of the user's, added when it is new.
  Place place_of_file(DevicePlace::File which, MemoryManager& manager);

  /// The replica at a place; null without memory, or of a buffer without bytes.
  [[nodiscard]] std::shared_ptr<Replica> const& at(Place place) const {
    return place == host_place ? host_ : places[place].replica;
  }
  [[nodiscard]] std::shared_ptr<Replica> const& host() const noexcept { return host_; }
  /// The one that host accesses work in, whichever place it came to first; null if there is none.
  [[nodiscard]] std::shared_ptr<Replica> const& in_memory_of_host() const noexcept;
  /// Calls `each(Replica&)` once for each.
  template <class Do>
  void for_each(Do const& each) const {
    if (host_) each(*host_);
    for (auto const& one : places.devices()) {
      if (one.replica && one.replica != host_) each(*one.replica);
    }
  }
  /// Calls `each(range, event)` for what devices that work in the host's memory are writing or being brought there,
  /// until those events.
  template <class Do>
  void for_each_write_to_host_memory(Do const& each) const {
    pending.for_each_touch([&](Place place, ByteRange range, WorkEvents const& events) {
      if (place == host_place || !places.in_host_memory(place)) return;
      for (auto const event : events) each(range, event);
    });
  }
  void put(Place place, std::shared_ptr<Replica> replica) noexcept;
  void drop(Place place) noexcept { put(place, nullptr); }
  /// How things stand in a buffer of that size with these devices and without memory.
  [[nodiscard]] Coherence without_memory(std::size_t size) const;
  /// All memory goes, with the data in it. `fresh` is for that size.
  void drop_everything(Coherence fresh, std::size_t new_size) noexcept;

  [[nodiscard]] bool has_memory() const;
  /// Whether the place has memory of its own, not the host's, with every byte of `range` current in it.
  [[nodiscard]] bool is_apart_and_holds(Place place, ByteRange range) const {
    return coherence.has_storage(place) && !places.in_host_memory(place) && holds(place, range);
  }
  /// The device's place, if it has no other, and memory of its own with every byte of `range` current in it.
  [[nodiscard]] std::optional<Place> only_place_on(Device const& device, ByteRange range) const {
    auto const place = places.has_windows() ? std::nullopt : places.find(device);
    return place && is_apart_and_holds(*place, range) ? place : std::nullopt;
  }
  /// Whether every byte of `range` is current at the host or in a file.
  [[nodiscard]] bool holds_on_host_side(ByteRange range) const;
  /// What was spilled goes once nothing of it is current, and nothing can be taken back that would make it so.
  void drop_stale_file() noexcept;
  /// Whether every byte of `range` is current at `place`.
  [[nodiscard]] bool holds(Place place, ByteRange range) const {
    return coherence.has_data() && coherence.has_storage(place) && coherence.valid(place).contains(range);
  }
  /// The place of a device that has memory of its own, is not lost and holds all of `range`, the default device first.
  [[nodiscard]] std::optional<Place> device_holding(ByteRange range) const;
  /// What of `range` is current on the device, in all of its windows together.
  [[nodiscard]] ByteRanges held_on(Device const& device, ByteRange range) const;
  /// Windows go whose bytes another copy on their device has as well, where nothing works with them, and nothing can be
  /// taken back that would need them.
  void drop_superseded_windows() noexcept;
  /// Whether `range` is current at `place`, with no write to it and no doubt about it pending.
  [[nodiscard]] bool is_quiet(Place place, ByteRange range) const;
  /// A device whose copy is complete, and every leased window beside it current, with no work pending in this buffer;
  /// null if there is none.
  [[nodiscard]] Device* quiet_device() const;

  /// Failures have been dealt with: later work does not need what failed.
  void forget_ended() noexcept;

  Places places;
  Coherence coherence;
  TentativeWork pending;
  std::exception_ptr last_failure;  ///< why bytes are lost: nothing else loses any
  bool file_may_go = false;         ///< once it is stale: it is there, and nothing is on its way to it
  bool windows_may_go = false;      ///< once they are superseded: another copy has come to their device

 private:
  [[nodiscard]] bool leases_are_current_on(Device const& device) const;

  std::size_t bytes_;
  std::shared_ptr<Replica> host_;
};

}  // namespace unimem::detail
