#include <unimem/coherence/state.hpp>
#include "coherence/coherence.hpp"

#include "coherence/coverage.hpp"

#include <algorithm>
#include <ranges>
#include <span>

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

BufferState Coherence::state() const {
  auto const& host = places_.front();
  auto const devices = std::span{places_}.subspan(1);

  if (!has_data_) {
    bool const on_host = host.storage;
    bool const on_device = std::ranges::any_of(devices, &PlaceState::storage);
    if (discarded_ || (!on_host && !on_device)) return BufferState::uninitialized;
    if (on_host && on_device) return BufferState::synchronized;
    return on_host ? BufferState::host_only : BufferState::device_only;
  }
  if (bytes_ == 0) return BufferState::synchronized;
  if (lost_.contains(whole())) return BufferState::uninitialized;

  // Every byte is valid somewhere or lost, so what one side lacks, and is not lost, is newer on the other.
  bool const device_newer = !detail::covered(whole(), [&](auto look) {
    look(host.valid);
    look(lost_);
  });
  bool const host_newer = !detail::covered(whole(), [&](auto look) {
    for (auto const& device : devices) look(device.valid);
    look(lost_);
  });
  auto const has_written = [](auto const& place) { return !place.written.empty(); };

  if (host_newer && device_newer) {
    return BufferState::mixed;
  }
  if (host_newer) return has_written(host) ? BufferState::host_dirty : BufferState::host_only;
  if (device_newer) {
    return std::ranges::any_of(devices, has_written) ? BufferState::device_dirty : BufferState::device_only;
  }
  // Both sides have everything, but a kernel needs it on one device: parts on several are not a synchronized copy.
  bool const complete_copy = std::ranges::any_of(devices, [&](auto const& device) {
    return detail::covered(whole(), [&](auto look) {
      look(device.valid);
      look(lost_);
    });
  });
  return complete_copy ? BufferState::synchronized : BufferState::host_only;
}

}  // namespace unimem
