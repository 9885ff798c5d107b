#include "buffer/windows.hpp"

#include <unimem/manager/memory_manager.hpp>

#include "buffer/buffer_parts.hpp"

#include <algorithm>
#include <bit>

namespace unimem::detail {
bool Windows::may_choose(Device& device, ByteRange range) const {
  auto const& replicas = parts_->replicas;
  return range != replicas.whole() && !replicas.places.shares(device) && !standing(device, range);
}

bool Windows::fits_whole(Device& device, std::size_t beside) const {
  auto const available = parts_->terms.manager->available_memory(device);
  return beside <= available && parts_->replicas.bytes() <= available - beside;
}

Place Windows::place_for(Device& device, ByteRange range, bool takes_whole) const {
  if (!may_choose(device, range)) return standing(device, range).value_or(parts_->place_of(device));
  if (takes_whole) return parts_->place_of(device);
  return parts_->replicas.place_of_window(device, window_of(device, range), *parts_->terms.manager);
}

Place Windows::place_for(Device& device, ByteRange range, CopyChoice& choice) const {
  bool const whole = !may_choose(device, range) || choice.takes_whole(fits_whole(device));
  return place_for(device, range, whole);
}

std::vector<ByteRange> Windows::standing_in(Device& device, ByteRange range) const {
  std::vector<ByteRange> parts;
  if (!may_choose(device, range) && range != parts_->replicas.whole()) return {range};
  for (auto const& one : parts_->replicas.places.devices()) {
    if (one.device != &device || !one.replica) continue;
    if (!one.window) return {range};
    ByteRange const part{std::max(one.window->begin, range.begin), std::min(one.window->end, range.end)};
    if (part.begin < part.end) parts.push_back(part);
  }
  return parts.empty() ? std::vector{range} : parts;
}

std::optional<Place> Windows::standing(Device& device, ByteRange range) const {
  auto const& replicas = parts_->replicas;
  auto const whole = replicas.places.find(device);
  if (whole && replicas.at(*whole)) return whole;
  if (!replicas.places.has_windows()) return std::nullopt;
  std::optional<Place> found;
  for (Place place = host_place + 1; place < replicas.places.count(); ++place) {
    auto const& one = replicas.places[place];
    if (one.device != &device || !one.window || !one.replica) continue;
    if (!one.window->contains(range)) continue;
    if (replicas.holds(place, range)) return place;
    if (!found) found = place;
  }
  return found;
}

/// Exactly what is used, or for little the cell of a grid that it lies in: neighbours share it. A cell is a small part
/// of the buffer, so that its windows are not too many, and of the memory there may be.
ByteRange Windows::window_of(Device& device, ByteRange range) const {
  constexpr std::size_t least = std::size_t{64} << 10, most = std::size_t{4} << 20, cells = 1024, in_memory = 16;
  auto const bytes = parts_->replicas.bytes();
  auto const memory = parts_->terms.manager->total_memory(device) / in_memory;
  auto const wanted = std::clamp(std::bit_ceil(bytes / cells), least, most);
  auto const cell = std::max<std::size_t>(1, std::min(wanted, std::bit_floor(memory)));
  if (range.empty()) range = {std::min(range.begin, bytes - 1), std::min(range.begin, bytes - 1) + 1};
  if (range.size() >= cell) return range;
  return {range.begin / cell * cell, std::min(bytes, (range.end + cell - 1) / cell * cell)};
}

}  // namespace unimem::detail
