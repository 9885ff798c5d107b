#include "buffer/replica_copy.hpp"

#include <unimem/device/device.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "buffer/host_device.hpp"
#include "buffer/replica.hpp"
#include "buffer/staging.hpp"
#include "core/nvtx.hpp"

#include <fmt/format.h>

#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace unimem::detail {
namespace {

Queue& queue_on(Device& owner, Queue* wanted) {
  return wanted != nullptr && &wanted->device() == &owner ? *wanted : owner.default_queue();
}

/// Within one device, by way of a block of its own: what has not been read must not be overwritten.
Event copied_by(Allocation aside, Queue& on, DeviceMemory target, DeviceMemory source, std::span<const Event> needs) {
  auto const there = on.copy(aside.memory(), source, source.bytes, needs);
  try {
    auto const back = on.copy(target, aside.memory(), source.bytes, {{there}});
    aside.release(back);
    return back;
  } catch (...) {
    static_cast<void>(there.wait_for_error());  // it is at both memories, and not on record
    throw;
  }
}

}  // namespace

bool overlap(Replica const& from, ByteRange source, Replica const& to, ByteRange target) noexcept {
  return &from == &to && source.begin < target.end && target.begin < source.end;
}

StartedCopy copy_between(MemoryManager& manager, AcquireOptions const& staging, Replica& from, ByteRange source_range,
                         Replica& to, ByteRange target_range, Queue* queue, SharedMeter const& meter, Allocation aside,
                         Staging* between) {
  auto const count = source_range.size();
  auto const source = from.window(source_range);
  auto const target = to.window(target_range);
  bool const from_host = from.serves_host();
  bool const to_host = to.serves_host();
  bool const downwards = to_host && !from_host;
  bool const upwards = from_host && !to_host;
  auto& on = queue_on(downwards ? from.device() : to.device(), queue);
  NvtxRange const shown{[&] {
    auto const place = [](Replica const& replica, bool host) {
      return host ? std::string_view{"host"} : replica.device().id();
    };
    return fmt::format("{}: {} to {}", staging.name.empty() ? "a buffer" : staging.name.view(), place(from, from_host),
                       place(to, to_host));
  }};

  auto path = CopyPath::direct;
  if ((downwards || upwards) && gains_from_staging(downwards ? to : from, on.device(), count)) {
    auto& beside = on.host_side();
    if (auto blocks = Staging::pinned(manager, staging, beside, count, on.device().staging_depth())) {
      auto &first = upwards ? beside : on, &second = upwards ? on : beside;
      CopyPiece const piece{target_range.begin, source_range.begin, count};
      return {copy_staged(*blocks, from, to, {&piece, 1}, first, second, on, meter), CopyPath::staged};
    }
    path = CopyPath::unstaged;
  }
  if (goes_by_the_host(from, to)) {
    CopyPiece const piece{target_range.begin, source_range.begin, count};
    // A block that is not free yet holds up the files' queue for these, and not for what is evicted meanwhile.
    auto& first = from.in_file() ? from.device().waiting_queue() : from.device().default_queue();
    return {copy_staged(*between, from, to, {&piece, 1}, first, on, on, meter)};
  }

  std::vector<Event> needs;
  from.work().order_read(on, source_range);
  to.work().order_write(on, target_range);
  from.work().add_writers(source_range, needs);
  from.work().reserve(2);  // two for one storage that is both
  to.work().reserve(2);

  Event event;
  if (downwards) {
    event = on.download(host_address(to.host_window(target_range)), source, count, needs, meter);
  } else if (upwards) {
    event = on.upload(target, host_address(from.host_window(source_range)), count, needs, meter);
  } else {
    event = aside ? copied_by(std::move(aside), on, target, source, needs)
                  : on.copy(target, from.device(), source, count, needs, meter);
  }
  from.work().read_by(source_range, event);
  to.work().written_by(target_range, event);
  return {event, path};
}

StartedCopy copy_between(MemoryManager& manager, AcquireOptions const& staging, Replica& from, Replica& to,
                         std::shared_ptr<ByteRanges const> const& ranges, Queue* queue, SharedMeter const& meter) {
  bool const upwards = from.serves_host();
  auto& on = queue_on(upwards ? to.device() : from.device(), queue);
  auto const pieces = in_place(*ranges);

  auto path = CopyPath::direct;
  if (gains_from_gathering(upwards ? from : to, on.device(), *ranges)) {
    auto& pool = manager.pool(host_device(), Location::pinned);
    if (upwards) {
      if (auto const sent = gathered_at_once(pool, staging.name, from, to, ranges, on, meter)) {
        return {*sent, CopyPath::staged};
      }
    }
    auto& beside = on.host_side();
    if (auto blocks = Staging::pinned(manager, staging, beside, ranges->size_bytes(), on.device().staging_depth())) {
      auto &first = upwards ? beside : on, &second = upwards ? on : beside;
      return {copy_staged(*blocks, from, to, pieces, first, second, on, meter), CopyPath::staged};
    }
    path = CopyPath::unstaged;
  }
  std::vector<Event> needs;
  from.work().order_read(on, ranges);
  to.work().order_write(on, ranges);
  from.work().add_writers(ranges, needs);
  from.work().reserve(2);  // two for one storage that is both
  to.work().reserve(2);
  auto const event =
      upwards ? on.upload(to.memory(), from.host_address(), to.in_memory(pieces, &CopyPiece::to), needs, meter)
              : on.download(to.host_address(), from.memory(), from.in_memory(pieces, &CopyPiece::from), needs, meter);
  from.work().read_by(ranges, event);
  to.work().written_by(ranges, event);
  return {event, path};
}

}  // namespace unimem::detail
