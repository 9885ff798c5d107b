#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/device/detail/blocking_wait.hpp>

#include "buffer/buffer_parts.hpp"
#include "buffer/reconciler.hpp"
#include "buffer/replica.hpp"
#include "buffer/transfer_engine.hpp"
#include "manager/admission.hpp"

#include <cstring>
#include <exception>
#include <utility>
#include <vector>

// Reads into memory of the caller's where the buffer can have none on the host: the bytes come straight from where they
// are, a file or devices, and the buffer stays as it is.

namespace unimem {

using detail::AccessContext;
using detail::Reconciler;
using detail::TransferEngine;

void BufferCore::read_in_place(std::size_t offset, std::span<std::byte> data) {
  ByteRange const range{offset, offset + data.size()};
  if (data.empty()) return;
  bool const shared = Guard(*parts_)->shared != nullptr;
  if (shared || !read_directly(range, data)) return read(offset, data);
  note_read(range);
}

bool BufferCore::read_directly(ByteRange range, std::span<std::byte> target) {
  struct Part {
    Place place;
    ByteRange range;
  };
  std::vector<Event> arriving;
  std::exception_ptr failure;
  bool possible = true;
  detail::run_admitted(detail::operands(*this), [&](AccessContext& context) {
    Guard parts(*parts_);
    parts->check_access("host access");
    parts->check_range(range);
    if (!Reconciler(*parts).resolve_or_wait(context, range)) return false;
    possible = false;

    auto missing = ByteRanges(range);
    auto const take = [&](Place place) {
      ByteRanges found;
      if (parts->replicas.coherence.has_storage(place))
        found = missing.intersection(parts->replicas.coherence.valid(place));
      missing.remove(found);
      return found;
    };
    auto const places = parts->replicas.places.count();
    ByteRanges on_host;  // first, under whichever name: those need no device
    for (Place place = host_place; place < places; ++place) {
      if (parts->replicas.places.in_host_memory(place)) on_host.add(take(place));
    }
    std::vector<Part> in_files;
    for (auto const file : {parts->replicas.places.spill_file(), parts->replicas.places.users_file()}) {
      if (!file) continue;
      for (auto const part : take(*file).ranges()) in_files.push_back({*file, part});
    }
    std::vector<Part> on_devices;
    for (Place place = host_place + 1; place < places; ++place) {
      if (parts->replicas.places[place].device->is_lost()) continue;
      for (auto const part : take(place).ranges()) on_devices.push_back({place, part});
    }
    for (Place place = host_place + 1; place < places; ++place) {
      if (!take(place).empty()) return true;  // the latest are on a device that is gone
    }
    auto const& host = parts->replicas.in_memory_of_host();
    bool const never_written =
        host && parts->replicas.coherence.has_data() && !parts->replicas.coherence.lost().intersects(missing);
    if (!missing.empty() && !never_written) return true;
    on_host.add(missing);  // whatever is there, as in memory
    // In the middle of work a device's queue may have to get to its end first.
    if (!on_devices.empty() && detail::is_in_work()) return true;
    possible = true;

    auto const target_of = [&](ByteRange part) { return target.subspan(part.begin - range.begin, part.size()); };
    try {
      for (auto const& [place, part] : on_devices) {
        arriving.push_back(TransferEngine(*parts).download_directly(place, part, target_of(part).data()));
      }
      for (auto const part : on_host.ranges()) host->read_into(target_of(part), part.begin);
      for (auto const& [file, part] : in_files) parts->replicas.at(file)->read_into(target_of(part), part.begin);
    } catch (...) {
      failure = std::current_exception();  // what has begun still writes to the caller's memory
    }
    return true;
  });
  if (!possible) return false;
  for (auto const event : arriving) {
    if (auto error = event.wait_for_error(); error && !failure) failure = std::move(error);
  }
  if (failure) std::rethrow_exception(failure);
  return true;
}

}  // namespace unimem
