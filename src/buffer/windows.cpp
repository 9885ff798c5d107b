#include "buffer/windows.hpp"

#include <unimem/core/error.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "buffer/buffer_parts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace unimem::detail {

std::size_t cell_bytes(std::size_t buffer_bytes, std::size_t memory_bytes) noexcept {
  constexpr std::size_t least = std::size_t{64} << 10, most = std::size_t{4} << 20, cells = 1024, in_memory = 16;
  auto const wanted = std::clamp(std::bit_ceil(buffer_bytes / cells), least, most);
  return std::min(wanted, std::bit_floor(memory_bytes / in_memory));
}

bool Windows::fits_whole(Device& device, std::size_t beside) const {
  auto const available = parts_->terms.manager->available_memory(device);
  return beside <= available && parts_->replicas.bytes() <= available - beside;
}

std::optional<Place> Windows::without_choice(Device& device, ByteRange range) const {
  auto const& replicas = parts_->replicas;
  if (range == replicas.whole() || replicas.places.shares(device)) return for_whole(device);
  return standing(device, range);
}

Place Windows::for_whole(Device& device) const {
  return parts_->place_of(device);
}

Place Windows::for_window(Device& device, ByteRange range) const {
  return parts_->replicas.place_of_window(device, range, *parts_->terms.manager);
}

std::vector<Windows::Part> Windows::leased_beside(Place place, ByteRange range) const {
  auto const& places = parts_->replicas.places;
  std::vector<Part> parts;
  if (!places.has_windows() || range.empty()) return parts;
  for (Place other = host_place + 1; other < places.count(); ++other) {
    auto const& replica = places[other].replica;
    if (other == place || !replica || !places.on_one_device(place, other) || !replica->holds().leased()) continue;
    auto const reach = parts_->replicas.reach(other);
    ByteRange const part{std::max(reach.begin, range.begin), std::min(reach.end, range.end)};
    if (part.begin < part.end) parts.push_back({other, part});
  }
  return parts;
}

void Windows::check_write(Place place, ByteRange range) const {
  for (auto const& [other, part] : leased_beside(place, range)) {
    auto const leased = parts_->replicas.reach(other);
    auto const requirement = part == range
                                 ? "outside bytes [{}, {}) of {}, which another lease on {} has in a window"
                                 : "inside bytes [{}, {}) of {}, which a lease on {} has in a window, or apart";
    throw InvalidArgument("range", fmt::format("bytes [{}, {})", range.begin, range.end),
                          fmt::format(fmt::runtime(requirement), leased.begin, leased.end, parts_->terms.display_name(),
                                      parts_->replicas.places[other].device->id()));
  }
}

std::vector<ByteRange> Windows::standing_in(Device& device, ByteRange range) const {
  std::vector<ByteRange> parts;
  if (range != parts_->replicas.whole() && standing(device, range)) return {range};
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
  auto whole = replicas.places.find(device);
  if (whole && !replicas.at(*whole)) whole = std::nullopt;
  if (!replicas.places.has_windows()) return whole;
  std::optional<Place> current, found;
  for (Place place = host_place + 1; place < replicas.places.count(); ++place) {
    auto const& one = replicas.places[place];
    if (one.device != &device || !one.window || !one.replica) continue;
    if (!one.window->contains(range)) continue;
    if (one.replica->holds().leased()) return place;
    if (!current && replicas.holds(place, range)) current = place;
    if (!found) found = place;
  }
  return whole ? whole : current ? current : found;
}

/// Exactly what is used, or for little the cell of a grid that it lies in: neighbours share it. A cell is a small part
/// of the buffer, so that its windows are not too many, and of the memory there may be. It begins where an allocation
/// of all of the buffer would be aligned as one of the window is: so are addresses of values in it.
ByteRange Windows::cells_of(Device& device, ByteRange range) const {
  auto const bytes = parts_->replicas.bytes();
  auto const cell = std::max<std::size_t>(1, cell_bytes(bytes, parts_->terms.manager->total_memory(device)));
  if (range.empty()) range = {std::min(range.begin, bytes - 1), std::min(range.begin, bytes - 1) + 1};
  auto const to = [](std::size_t at, std::size_t multiple) { return at / multiple * multiple; };
  auto const aligned = std::max<std::size_t>(1, device.info().alignment);
  if (range.size() >= cell) return {to(range.begin, aligned), range.end};
  return {to(to(range.begin, cell), aligned), std::min(bytes, to(range.end + cell - 1, cell))};
}

}  // namespace unimem::detail
