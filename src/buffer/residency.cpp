#include "buffer/residency.hpp"

#include <unimem/device/device.hpp>

#include "buffer/buffer_parts.hpp"
#include "buffer/host_device.hpp"
#include "device/current_task.hpp"
#include "manager/admission.hpp"
#include "manager/backing_file.hpp"
#include "manager/file_device.hpp"
#include "manager/spill_files.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>

namespace unimem::detail {
namespace {

/// Of what a window holds, what has to come back once more if it goes.
std::size_t only_in_window(ReplicaMap const& replicas, Place window) noexcept {
  auto const& one = replicas.places[window];
  auto const whole = replicas.places.find(*one.device);
  auto const& held = replicas.coherence.valid(window);
  if (!one.window || !whole) return held.size_bytes();
  std::size_t bytes = 0;
  for (auto const range : held.ranges()) {
    if (!replicas.coherence.valid(*whole).contains(range)) bytes += range.size();
  }
  return bytes;
}

Resident::Evictable evictable_at(BufferParts const& parts, Place place) noexcept {
  auto const& replicas = parts.replicas;
  auto const& one = replicas.places[place];
  Resident::Evictable offered;
  if (one.replica->holds().leased() || parts.captured) {
    offered.leased = one.replica->capacity();
    return offered;
  }
  if (one.replica->is_read_by_work()) {
    // It may keep what it reads, and ends some time; but not while this very thread is in the middle of it.
    offered.busy = !CurrentTask::is_in_work_of(one.replica->holds().works_on());
    (offered.busy ? offered.bytes : offered.leased) = one.replica->capacity();
    return offered;
  }
  offered.bytes = one.replica->capacity();
  offered.priority = parts.priority.load(std::memory_order_relaxed);
  if (!replicas.coherence.has_data()) return offered;
  auto const link = one.device->link_cost();
  auto const seconds = [&](std::size_t moved) {
    return moved == 0 ? 0 : link.latency_seconds + static_cast<double>(moved) / link.bytes_per_second;
  };
  offered.cost_seconds =
      seconds(only_in_window(replicas, place)) + seconds(replicas.coherence.written(place).size_bytes());
  auto const next_use = one.next_use;
  offered.wait = next_use == NextUse::soon   ? 0
                 : next_use == NextUse::none ? std::numeric_limits<double>::infinity()
                                             : one.history.expected_wait(*one.clock);
  return offered;
}

/// Whether an operation that uses those parts of the buffer works in that copy.
bool serves(ByteRange copy, std::span<const ByteRange> used) noexcept {
  return std::ranges::any_of(used, [&](ByteRange part) { return copy.contains(part); });
}

/// Whether the operation can do with less, which it takes if this goes.
bool may_do_with_less(ByteRange copy, std::span<const ByteRange> used) noexcept {
  bool const least = std::ranges::find(used, OperandsInUse::no_more) != used.end();
  return least && std::ranges::find(used, copy) == used.end();
}

/// What copies on a device could give, and which of them gives first.
struct Offer {
  Resident::Evictable evictable;
  std::optional<Place> first;
};

Offer offer_of_device(BufferParts const& parts, Device& device, std::span<const ByteRange> used) noexcept {
  auto const& replicas = parts.replicas;
  Offer all;
  if (replicas.places.shares(device)) return all;
  for (Place place = host_place + 1; place < replicas.places.count(); ++place) {
    auto const& one = replicas.places[place];
    if (one.device != &device || !one.replica) continue;
    auto const copy = replicas.reach(place);
    bool const in_use = serves(copy, used);
    if (in_use && !may_do_with_less(copy, used)) continue;
    auto offered = evictable_at(parts, place);
    if (in_use) offered.priority = std::numeric_limits<int>::max();
    auto& best = all.evictable;
    auto const together = best.bytes + best.more, leased = best.leased + offered.leased;
    auto const comes_first = [&] {
      if (offered.bytes == 0) return false;
      if (offered.busy != best.busy) return !offered.busy;
      return offered.priority != best.priority ? offered.priority < best.priority : offered.loss() < best.loss();
    };
    if (!all.first || comes_first()) {
      best = offered;
      best.more = together;
      if (offered.bytes != 0) all.first = place;
    } else {
      best.more += offered.bytes;
    }
    best.leased = leased;
  }
  return all;
}

/// Whether the file has all that the host has.
bool is_clean(ReplicaMap const& replicas) noexcept {
  auto const file = replicas.places.spill_file();
  if (!file) return false;
  auto const in_file = [&](ByteRange range) { return replicas.coherence.valid(*file).contains(range); };
  return std::ranges::all_of(replicas.coherence.valid(host_place).ranges(), in_file);
}

/// Of a part of the host's memory: whether an access, an operation or an address of a user's keeps it.
enum class Stays : unsigned char { no, busy, held, in_use };

Stays stays(BufferParts const& parts, std::size_t cell, std::span<const ByteRange> used) noexcept {
  auto const& replica = *parts.replicas.in_memory_of_host();
  auto const range = replica.reserved()->range_of(cell);
  if (parts.captured || replica.reserved()->is_held(cell)) return Stays::held;
  auto const meets = [&](ByteRange part) { return part.begin < range.end && range.begin < part.end; };
  if (std::ranges::any_of(used, meets)) return Stays::in_use;
  return replica.work().writes_ended_well(range) ? Stays::no : Stays::busy;
}

/// Whether any of `range` is current in the host's memory, for the host or a device that works there.
bool is_in_host_memory(ReplicaMap const& replicas, ByteRange range) noexcept {
  for (Place place = host_place; place < replicas.places.count(); ++place) {
    if (replicas.places.in_host_memory(place) && replicas.coherence.valid(place).intersects(range)) return true;
  }
  return false;
}

/// Whether a file has all that the host's memory has of `range`.
bool is_clean(ReplicaMap const& replicas, ByteRange range) noexcept {
  auto const held = [&](Place place) { return replicas.coherence.valid(place).contains(range); };
  if (!is_in_host_memory(replicas, range)) return true;
  auto const spilled = replicas.places.spill_file(), file = replicas.places.users_file();
  return (spilled && held(*spilled)) || (file && held(*file));
}

/// What taking that part back costs, per byte and over the time until it is used again.
double loss_of(BufferParts const& parts, std::size_t cell) noexcept {
  auto const& memory = *parts.replicas.in_memory_of_host()->reserved();
  auto const range = memory.range_of(cell);
  if (!is_in_host_memory(parts.replicas, range)) return 0;
  auto const once = 1 / FileDevice::disk.bytes_per_second;
  auto const wait = memory.history(cell).expected_wait(parts.terms.manager->use_clock(host_device()));
  return (is_clean(parts.replicas, range) ? once : 2 * once) / std::max(wait, 1.0);
}

/// What parts of the host's memory could give, and which of them gives first.
struct OfferOfParts {
  Resident::Evictable evictable;
  std::optional<std::size_t> first;
};

OfferOfParts offer_of_parts(BufferParts const& parts, std::span<const ByteRange> used) noexcept {
  OfferOfParts all;
  auto const& replica = parts.replicas.in_memory_of_host();
  if (!replica || replica->reserved() == nullptr || parts.watch.writes() != nullptr) return all;
  auto const& memory = *replica->reserved();
  auto& offered = all.evictable;
  auto first_stays = Stays::no;
  double least = 0;
  std::size_t may_go = 0;
  for (auto const cell : memory.committed()) {
    auto const why = stays(parts, cell, used);
    if (why == Stays::held) offered.leased += memory.cell_bytes();
    if (why == Stays::held || why == Stays::in_use || !part_may_go(parts, cell)) continue;
    may_go += memory.cell_bytes();
    // What work is at is waited for, if all else stays.
    auto const loss = loss_of(parts, cell);
    if (all.first && (why != first_stays ? why == Stays::busy : loss >= least)) continue;
    all.first = cell;
    first_stays = why;
    least = loss;
  }
  if (!all.first) return all;
  offered.bytes = memory.cell_bytes();
  offered.more = may_go - offered.bytes;
  offered.priority = parts.priority.load(std::memory_order_relaxed);
  offered.cost_seconds = least * static_cast<double>(offered.bytes);
  return all;
}

Resident::Evictable evictable_from_host(BufferParts const& parts, Location location) noexcept {
  Resident::Evictable offered;
  auto const& replica = parts.replicas.in_memory_of_host();
  if (replica == nullptr || replica->location() != location) return offered;
  // Other processes have the same pages: they go when the last of these does.
  bool const shared = parts.shared != nullptr;
  if (shared || replica->holds().leased() || replica->holds().exported()) {
    offered.leased = replica->capacity();
    return offered;
  }
  if (!may_spill(parts, location)) return offered;
  offered.bytes = replica->capacity();
  offered.priority = parts.priority.load(std::memory_order_relaxed);
  bool const elsewhere = parts.replicas.device_holding(parts.replicas.whole()) || is_clean(parts.replicas);
  auto const bytes = static_cast<double>(parts.replicas.bytes());
  offered.cost_seconds = elsewhere ? 0 : 2 * bytes / FileDevice::disk.bytes_per_second;
  offered.wait = parts.host_uses ? parts.host_uses->history.expected_wait(parts.host_uses->clock) : 1;
  return offered;
}

}  // namespace

bool part_may_go(BufferParts const& parts, std::size_t cell) noexcept {
  auto const& memory = *parts.replicas.in_memory_of_host()->reserved();
  return may_save_parts(parts) || is_clean(parts.replicas, memory.range_of(cell));
}

bool may_save_parts(BufferParts const& parts) noexcept {
  return parts.terms.spill_files != nullptr || parts.file->mode() == FileMode::read_write;
}

std::optional<std::size_t> first_part_to_evict(BufferParts const& parts, std::span<const ByteRange> used) noexcept {
  return offer_of_parts(parts, used).first;
}

bool may_spill(BufferParts const& parts, Location location) noexcept {
  auto const* const files = parts.terms.spill_files;
  auto const bytes = parts.replicas.bytes();
  // What UNIMEM_CHECK looks for comes through an address, and who has none of this memory writes nothing there.
  bool const looks_in_pages = parts.watch.tracking() == Tracking::pages && parts.watch.writes() != nullptr;
  if (files == nullptr || bytes < files->min_bytes() || bytes == 0 || parts.captured || looks_in_pages) return false;
  auto const& replica = parts.replicas.in_memory_of_host();
  if (replica == nullptr || replica->holds().exported()) return false;
  return replica->may_be_spilled() && replica->location() == location && parts.replicas.coherence.has_data();
}

Resident::Evictable evictable_from(BufferParts const& parts, MemoryPlace place,
                                   std::span<const ByteRange> used) noexcept {
  if (!place.device->reaches_host_memory()) return offer_of_device(parts, *place.device, used).evictable;
  if (auto const& replica = parts.replicas.in_memory_of_host(); replica && replica->reserved() != nullptr) {
    bool const here = place.location == Location::host;
    return here ? offer_of_parts(parts, used).evictable : Resident::Evictable{};
  }
  if (parts.is_mapped()) return {};  // pages of the system's cache are no memory of the manager's
  return used.empty() ? evictable_from_host(parts, place.location) : Resident::Evictable{};
}

std::optional<Place> first_to_evict(BufferParts const& parts, Device& device,
                                    std::span<const ByteRange> used) noexcept {
  return offer_of_device(parts, device, used).first;
}

}  // namespace unimem::detail
