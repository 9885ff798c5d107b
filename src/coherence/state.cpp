#include <unimem/coherence/state.hpp>
#include "coherence/coherence.hpp"

#include "coherence/coverage.hpp"

namespace unimem {

std::string_view to_string(BufferState state) noexcept {
  switch (state) {
    case BufferState::uninitialized:
      return "uninitialized";
    case BufferState::host_only:
      return "host_only";
    case BufferState::device_only:
      return "device_only";
    case BufferState::synchronized:
      return "synchronized";
    case BufferState::host_dirty:
      return "host_dirty";
    case BufferState::device_dirty:
      return "device_dirty";
    case BufferState::mixed:
      return "mixed";
  }
  return "unknown";
}

BufferState Coherence::projection() const {
  // The two sides; plain loops, since every operation on a buffer asks for its state.
  constexpr bool host = true, devices = false;
  auto const any_on = [&](bool side, auto const& holds) {
    for (auto const& place : places_) {
      if (place.on_host_side == side && holds(place)) return true;
    }
    return false;
  };

  if (!has_data_) {
    auto const has_storage = [](PlaceState const& place) { return place.storage; };
    bool const on_host = any_on(host, has_storage);
    bool const on_device = any_on(devices, has_storage);
    if (discarded_ || (!on_host && !on_device)) return BufferState::uninitialized;
    if (on_host && on_device) return BufferState::synchronized;
    return on_host ? BufferState::host_only : BufferState::device_only;
  }
  if (bytes_ == 0) return BufferState::synchronized;
  if (lost_.contains(whole())) return BufferState::uninitialized;

  // Every byte is valid somewhere or lost, so what one side lacks, and is not lost, is newer on the other.
  auto const lacks_bytes = [&](bool side) {
    return !detail::covered(whole(), [&](auto look) {
      for (auto const& place : places_) {
        if (place.on_host_side == side) look(place.valid);
      }
      look(lost_);
    });
  };
  bool const device_newer = lacks_bytes(host), host_newer = lacks_bytes(devices);
  auto const has_written = [&](bool side) {
    return any_on(side, [](PlaceState const& place) { return !place.written.empty(); });
  };

  if (host_newer && device_newer) {
    return BufferState::mixed;
  }
  if (host_newer) return has_written(host) ? BufferState::host_dirty : BufferState::host_only;
  if (device_newer) return has_written(devices) ? BufferState::device_dirty : BufferState::device_only;
  // Both sides have everything, but a kernel needs it on one device: parts on several are not a synchronized copy.
  bool const complete_copy = any_on(devices, [&](PlaceState const& device) {
    return detail::covered(whole(), [&](auto look) {
      look(device.valid);
      look(lost_);
    });
  });
  return complete_copy ? BufferState::synchronized : BufferState::host_only;
}

}  // namespace unimem
