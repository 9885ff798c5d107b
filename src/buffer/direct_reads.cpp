#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/device/timed_wait.hpp>

#include "buffer/inside.hpp"
#include "buffer/storage.hpp"
#include "device/current_task.hpp"

#include <cstring>
#include <exception>
#include <utility>
#include <vector>

// Reads into memory of the caller's where the buffer can have none on the host: the bytes come straight from where they
// are, a file or devices, and the buffer stays as it is.

namespace unimem {

bool BufferCore::read_directly(ByteRange range, std::span<std::byte> target) {
  struct Part {
    Place place;
    ByteRange range;
  };
  std::vector<Event> arriving;
  std::exception_ptr failure;
  {
    Guard inside(*this);
    inside->check_access("host access");
    inside->check_range(range);
    inside->resolve_pending(range, true);

    auto missing = ByteRanges(range);
    auto const take = [&](Place place) {
      ByteRanges found;
      if (inside->coherence.has_storage(place)) found = missing.intersection(inside->coherence.valid(place));
      missing.remove(found);
      return found;
    };
    auto const places = static_cast<Place>(inside->sides.size() + 1);
    ByteRanges on_host;  // first, under whichever name: those need no device
    for (Place place = host_place; place < places; ++place) {
      if (inside->in_host_memory(place)) on_host.add(take(place));
    }
    std::vector<Part> on_devices;
    for (Place place = host_place + 1; place < places; ++place) {
      if (inside->side(place).device->is_lost()) continue;
      for (auto const part : take(place).ranges()) on_devices.push_back({place, part});
    }
    for (Place place = host_place + 1; place < places; ++place) {
      if (!take(place).empty()) return false;  // the latest are on a device that is gone
    }
    auto const& host = inside->in_memory_of_host();
    bool const never_written = host && inside->coherence.has_data() && !inside->coherence.lost().intersects(missing);
    if (!missing.empty() && !never_written) return false;
    on_host.add(missing);  // whatever is there, as in memory
    // In the middle of work a device's queue may have to get to its end first.
    if (!on_devices.empty() && detail::CurrentTask::of_this_thread() != nullptr) return false;

    auto const target_of = [&](ByteRange part) { return target.subspan(part.begin - range.begin, part.size()); };
    try {
      for (auto const& [place, part] : on_devices) {
        arriving.push_back(inside->download_directly(place, part, target_of(part).data()));
      }
      for (auto const part : on_host.ranges()) host->read_into(target_of(part), part.begin);
    } catch (...) {
      failure = std::current_exception();  // what has begun still writes to the caller's memory
    }
  }
  for (auto const event : arriving) {
    if (auto error = event.wait_for_error(); error && !failure) failure = std::move(error);
  }
  if (failure) std::rethrow_exception(failure);
  return true;
}

Event BufferCore::Inside::download_directly(Place place, ByteRange part, std::byte* to) {
  auto& from = *storage_at(place);
  auto& queue = side(place).device->default_queue();
  std::vector<Event> needs;
  from.order_read(queue, part);
  from.hazards().add_writers(part, needs);
  from.hazards().reserve(1);
  auto const event = queue.download(to, from.window(part), part.size(), needs, meter(place, host_place));
  from.hazards().read_by(part, event);
  count(place, host_place, part.size());
  return event;
}

}  // namespace unimem
