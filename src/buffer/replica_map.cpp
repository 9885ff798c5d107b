#include "buffer/replica_map.hpp"

#include <unimem/manager/memory_manager.hpp>

#include "buffer/host_device.hpp"
#include "manager/file_device.hpp"

#include <algorithm>
#include <new>
#include <optional>
#include <utility>

namespace unimem::detail {

Place ReplicaMap::place_of(Device& device, MemoryManager& manager) {
  if (auto const place = places.find(device)) return *place;
  places.reserve_one();
  auto& clock = manager.use_clock(device);
  auto const place = coherence.add_device(places.shares(device) ? std::optional{host_place} : std::nullopt);
  places.add(device, clock);
  return place;
}

Place ReplicaMap::place_of_window(Device& device, ByteRange range, MemoryManager& manager) {
  // So many are remembered without memory: when they were used tells when they will be. Operations look at each place.
  constexpr std::size_t most_remembered = 256;
  std::optional<Place> idle;
  std::size_t remembered = 0;
  auto const rest = [&](Place place) { return places[place].history.expected_wait(*places[place].clock); };
  for (Place place = host_place + 1; place < places.count(); ++place) {
    auto const& one = places[place];
    if (!one.window || one.device != &device) continue;
    if (*one.window == range) return place;
    if (one.replica) continue;
    ++remembered;
    if (!idle || rest(place) > rest(*idle)) idle = place;
  }
  if (remembered >= most_remembered) {
    places[*idle] = {.device = &device, .clock = places[*idle].clock, .replica = nullptr, .window = range};
    return *idle;
  }
  places.reserve_one();
  auto& clock = manager.use_clock(device);
  auto const place = coherence.add_device();
  places.add_window(device, clock, range);
  return place;
}

Place ReplicaMap::place_of_file(DevicePlace::File which, MemoryManager& manager) {
  if (auto const place = places.find(which)) return *place;
  places.reserve_one();
  auto& clock = manager.use_clock(host_device());
  auto& files = FileDevice::instance();
  auto const place = coherence.add_file();
  places.add_file(which, files, clock);
  return place;
}

std::shared_ptr<Replica> const& ReplicaMap::in_memory_of_host() const noexcept {
  if (host_) return host_;
  // A device that works in the host's memory may have come first.
  for (auto const& one : places.devices()) {
    if (one.replica && places.shares(*one.device)) return one.replica;
  }
  return host_;
}

void ReplicaMap::put(Place place, std::shared_ptr<Replica> replica) noexcept {
  (place == host_place ? host_ : places[place].replica) = std::move(replica);
}

Coherence ReplicaMap::without_memory(std::size_t size) const {
  Coherence fresh(size);
  for (auto const& one : places.devices()) {
    if (one.file != DevicePlace::File::none) {
      fresh.add_file();
    } else {
      fresh.add_device(places.shares(*one.device) ? std::optional{host_place} : std::nullopt);
    }
  }
  return fresh;
}

void ReplicaMap::drop_everything(Coherence fresh, std::size_t new_size) noexcept {
  // Everything that was in flight keeps its memory by its tickets; what it writes is no data any more.
  pending.clear();
  for (auto& one : places.devices()) one.replica.reset();
  host_.reset();
  windows_may_go = false;
  coherence = std::move(fresh);
  bytes_ = new_size;
}

bool ReplicaMap::has_memory() const {
  for (Place place = host_place; place < coherence.place_count(); ++place) {
    if (coherence.has_storage(place)) return true;
  }
  return false;
}

bool ReplicaMap::holds_on_host_side(ByteRange range) const {
  if (holds(host_place, range)) return true;
  if (!coherence.has_data()) return false;
  auto missing = ByteRanges{range};
  for (auto const place : {std::optional{host_place}, places.spill_file(), places.users_file()}) {
    if (place) missing.remove(coherence.valid(*place));
  }
  return missing.empty();
}

void ReplicaMap::drop_stale_file() noexcept {
  auto const file = places.spill_file();
  if (!file_may_go || !file || !pending.empty() || !coherence.valid(*file).empty()) return;
  try {
    if (coherence.has_storage(*file)) coherence.remove_storage(*file);
  } catch (std::bad_alloc const&) {
    return;  // it stays until the next operation
  }
  drop(*file);
  file_may_go = false;
}

std::optional<Place> ReplicaMap::device_holding(ByteRange range) const {
  std::optional<Place> found;
  for (Place place = host_place + 1; place < places.count(); ++place) {
    auto* const candidate = places[place].device;
    if (places.is_file(place) || places.shares(*candidate) || candidate->is_lost() || !holds(place, range)) continue;
    if (candidate == places.known_default_device()) return place;
    if (!found) found = place;
  }
  return found;
}

ByteRanges ReplicaMap::held_on(Device const& device, ByteRange range) const {
  ByteRanges held;
  for (Place place = host_place + 1; place < places.count(); ++place) {
    if (places[place].device == &device) held.add(coherence.valid(place).intersection(ByteRanges{range}));
  }
  return held;
}

void ReplicaMap::drop_superseded_windows() noexcept {
  if (!windows_may_go || !pending.empty()) return;
  windows_may_go = false;
  auto const has_all = [&](Place other, Place window) {
    auto const& there = coherence.valid(other);
    return other != window && places.on_one_device(other, window) && at(other) &&
           reach(other).contains(*places[window].window) &&
           std::ranges::all_of(coherence.valid(window).ranges(), [&](ByteRange held) { return there.contains(held); });
  };
  for (Place window = host_place + 1; window < places.count(); ++window) {
    auto const& replica = places[window].replica;
    if (!places[window].window || !replica || replica.use_count() != 1) continue;
    if (replica->holds().leased() || replica->holds().has_running_work()) continue;
    bool superseded = false;
    for (Place other = host_place + 1; other < places.count() && !superseded; ++other)
      superseded = has_all(other, window);
    if (!superseded) continue;
    try {
      coherence.remove_storage(window);
    } catch (std::bad_alloc const&) {
      return;  // it stays until the device's memory is needed
    }
    drop(window);
  }
}

bool ReplicaMap::is_quiet(Place place, ByteRange range) const {
  if (!pending.empty() || !holds(place, range)) return false;
  auto const& replica = at(place);
  return !replica || replica->work().arrived(range);
}

bool ReplicaMap::leases_are_current_on(Device const& device) const {
  for (Place place = host_place + 1; place < places.count(); ++place) {
    auto const& one = places[place];
    if (one.device != &device || !one.window || !one.replica || !one.replica->holds().leased()) continue;
    if (!holds(place, *one.window)) return false;
  }
  return true;
}

Device* ReplicaMap::quiet_device() const {
  for (Place place = host_place + 1; place < places.count(); ++place) {
    if (places.is_file(place) || !is_quiet(place, whole())) continue;
    auto* const device = places[place].device;
    if (!places.has_windows() || leases_are_current_on(*device)) return device;
  }
  return nullptr;
}

void ReplicaMap::forget_ended() noexcept {
  for_each([](Replica& replica) { replica.work().forget_ended(); });
}

}  // namespace unimem::detail
