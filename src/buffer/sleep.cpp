#include <unimem/buffer/sleep.hpp>

#include <unimem/core/error.hpp>
#include <unimem/device/device.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "buffer/named_buffers.hpp"
#include "device/watched_wait.hpp"
#include "manager/sleep_book.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace unimem {

using detail::SleepingPart;

namespace {

using Buffers = std::vector<std::shared_ptr<BufferCore>>;

Buffers of_tag(MemoryManager const& manager, std::string_view tag) {
  auto const all = detail::named_buffers(manager, NameUse::place);
  Buffers buffers;
  std::ranges::copy_if(all, std::back_inserter(buffers),
                       [&](auto const& core) { return detail::tag_covers(tag, core->name()); });
  if (buffers.empty()) {
    throw NotFound("buffer of the tag", std::string(tag), detail::names_of(all),
                   "a tag is a name, or what is in front of a '/' or '.' of it");
  }
  return buffers;
}

/// What is to come back. Throws where something holds it.
std::vector<SleepingPart> parts_on_devices(Buffers const& buffers, std::string const& tag) {
  std::vector<SleepingPart> parts;
  for (auto const& core : buffers) {
    for (auto& share : core->shares_of_devices()) {
      if (share.leased) {
        throw InvalidArgument(
            "tag", fmt::format("'{}'", tag),
            fmt::format("one of buffers of whose device memory nothing is leased, mapped or captured; "
                        "of '{}' something is on {}",
                        core->name(), share.device->id()));
      }
      parts.push_back({core->id(), share.device, std::move(share.current), share.bytes});
    }
  }
  return parts;
}

/// One part as it is to come back now.
struct Waking {
  std::shared_ptr<BufferCore> core;
  Device* device = nullptr;
  ByteRanges ranges;
};

/// Leaves out what has ended, or has no data any more, since it was put to sleep. Throws OutOfMemory.
std::vector<Waking> fitting(MemoryManager& manager, std::string const& tag, std::vector<SleepingPart> const& parts) {
  std::map<std::uint64_t, std::shared_ptr<BufferCore>> live;
  for (auto& core : detail::named_buffers(manager, NameUse::place)) live.emplace(core->id(), std::move(core));
  std::map<Device*, std::size_t> wanted;
  std::vector<Waking> waking;
  for (auto const& part : parts) {
    auto const found = live.find(part.buffer);
    if (found == live.end() || found->second->state() == BufferState::uninitialized) continue;
    auto const& core = found->second;
    auto const ranges = part.current.intersection(ByteRanges(ByteRange{0, core->size_bytes()}));
    if (ranges.empty()) continue;
    waking.push_back({core, part.device, ranges});
    auto const shares = core->shares_of_devices();
    if (std::ranges::find(shares, part.device, &BufferCore::DeviceShare::device) == shares.end()) {
      wanted[part.device] += part.bytes;
    }
  }
  for (auto const& [device, bytes] : wanted) {
    auto const available = manager.available_memory(*device);
    if (bytes <= available) continue;
    OutOfMemory::Facts facts;
    facts.where = fmt::format("{} device", device->id());
    facts.requested = bytes;
    facts.limit = manager.total_memory(*device);
    facts.live = facts.limit - std::min(facts.limit, available);
    facts.largest_free = available;
    facts.device_free = device->memory_info().free_bytes;
    facts.reason = fmt::format("the buffers of '{}' wake together, beside what is live there, or not at all", tag);
    throw OutOfMemory(std::move(facts));
  }
  return waking;
}

}  // namespace

std::size_t sleep(MemoryManager& manager, std::string_view tag) {
  auto const name = std::string(tag);
  auto const buffers = of_tag(manager, tag);
  auto& book = manager.sleep_book();
  book.begin(name);
  std::size_t bytes = 0;
  try {
    auto parts = parts_on_devices(buffers, name);
    std::set<Device*> devices;
    for (auto const& core : buffers) {
      for (auto const& share : core->shares_of_devices()) {
        core->release_device(share.device);
        devices.insert(share.device);
      }
    }
    for (auto const& part : parts) bytes += part.bytes;
    for (auto* const device : devices) manager.pool(*device, Location::device).trim();
    book.keep(name, std::move(parts));
  } catch (...) {
    book.forget(name);
    throw;
  }
  return bytes;
}

std::size_t wake(MemoryManager& manager, std::string_view tag) {
  auto const name = std::string(tag);
  auto& book = manager.sleep_book();
  auto parts = book.take(name);
  std::size_t bytes = 0;
  try {
    std::vector<Event> arriving;
    for (auto const& [core, device, ranges] : fitting(manager, name, parts)) {
      for (auto const range : ranges.ranges()) {
        bytes += core->missing_on(*device, range);
        arriving.push_back(core->prefetch(*device, nullptr, range));
      }
    }
    for (auto const event : arriving) {
      detail::wait_watched(event);
      event.wait();
    }
    book.forget(name);
  } catch (...) {
    book.keep(name, std::move(parts));
    throw;
  }
  return bytes;
}

}  // namespace unimem
