#include "buffer/inside.hpp"

#include <unimem/core/environment.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace unimem {
namespace {

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

void* host_address(DeviceMemory memory) {
  return reinterpret_cast<void*>(memory.object + memory.offset);
}

Device& cpu() {
  static auto& instance = unimem::device("cpu");
  return instance;
}

}  // namespace

BufferCore::Inside::Inside(std::size_t bytes_, BufferOptions options_)
    : bytes(bytes_),
      options(std::move(options_)),
      manager(options.manager == nullptr ? &default_manager() : options.manager),
      device(options.device),
      name(options.name),
      id(next_id()),
      coherence(bytes_) {
  static bool const strict_by_default = environment_flag("UNIMEM_STRICT", false);
  options.strict = options.strict || strict_by_default;
  if (options.location == Location::pinned) options.pinned = true;
  if (options.tracking == Tracking::pages) {
    throw UnsupportedOperation("Tracking::pages", "this version", "write tracking by page is not built yet");
  }
  if (options.location == Location::unified && !default_device().shares_storage_with_host()) {
    throw UnsupportedOperation("Location::unified", std::string(default_device().id()),
                               "the device does not share storage with the host");
  }
}

Device& BufferCore::Inside::default_device() {
  if (device == nullptr) device = &unimem::default_device();
  return *device;
}

std::string BufferCore::Inside::display_name() const {
  return name.empty() ? fmt::format("buffer #{}", id) : fmt::format("buffer '{}'", name.view());
}

std::string BufferCore::Inside::place_name(Place place) const {
  return place == host_place ? "host" : std::string(sides[place - 1].device->id());
}

void BufferCore::Inside::check_access(std::string_view operation) const {
  if (options.strict && !allocated) throw BufferNotAllocated(display_name(), std::string(operation));
}

void BufferCore::Inside::check_allocated(std::string_view operation) const {
  check_access(operation);
  for (Place place = host_place; place < coherence.place_count(); ++place) {
    if (coherence.has_storage(place)) return;
  }
  throw BufferNotAllocated(display_name(), std::string(operation));
}

Place BufferCore::Inside::place_of(Device& wanted) {
  for (std::size_t i = 0; i < sides.size(); ++i) {
    if (sides[i].device == &wanted) return static_cast<Place>(i + 1);
  }
  sides.reserve(sides.size() + 1);
  auto const place = coherence.add_device(wanted.shares_storage_with_host() ? std::optional{host_place} : std::nullopt);
  sides.push_back({&wanted, nullptr});
  return place;
}

CopyCost BufferCore::Inside::cost() const {
  return [this](Place from, Place to, std::size_t count) {
    double seconds = 0;
    for (auto const place : {from, to}) {
      if (place == host_place) continue;
      auto const link = sides[place - 1].device->link_cost();
      seconds += link.latency_seconds + (static_cast<double>(count) / link.bytes_per_second);
    }
    return seconds;
  };
}

std::shared_ptr<detail::Storage> BufferCore::Inside::host_memory() {
  if (host) return host;
  // A device that shares storage with the host may have come first.
  for (auto const& other : sides) {
    if (other.storage && other.device->shares_storage_with_host()) return other.storage;
  }
  Allocation memory;
  if (options.pinned) {
    try {
      memory = manager->acquire(cpu(), Location::pinned, bytes, named());
      pinned.store(true, std::memory_order_relaxed);
    } catch (OutOfMemory const&) {
      // Documented: pageable memory serves instead, and is_pinned() says so.
      pinned.store(false, std::memory_order_relaxed);
    }
  }
  if (!memory) memory = manager->acquire(cpu(), Location::host, bytes, named());
  return std::make_shared<detail::Storage>(cpu(), std::move(memory));
}

void BufferCore::Inside::ensure_host() {
  if (coherence.has_storage(host_place)) return;
  if (bytes != 0) host = host_memory();
  coherence.add_storage(host_place);
}

void BufferCore::Inside::ensure_device(BufferCore& self, Place place, Queue& queue) {
  if (coherence.has_storage(place)) return;
  auto& wanted = side(place);
  if (bytes != 0 && wanted.device->shares_storage_with_host()) {
    wanted.storage = host_memory();
  } else if (bytes != 0) {
    if (!resident) {
      manager->add_resident(self);
      resident = true;
    }
    auto request = named();
    request.queue = &queue;
    auto memory = manager->acquire(*wanted.device, Location::device, bytes, request);
    wanted.storage = std::make_shared<detail::Storage>(*wanted.device, std::move(memory));
    // The block may still be in use by earlier work of this queue: whoever comes from another goes behind it.
    wanted.storage->written_by(queue.record());
  }
  coherence.add_storage(place);
}

void BufferCore::Inside::ensure(BufferCore& self, Place place) {
  if (place == host_place) {
    ensure_host();
  } else {
    ensure_device(self, place, side(place).device->default_queue());
  }
}

AcquireOptions BufferCore::Inside::named() const {
  AcquireOptions options_of_block;
  options_of_block.name = name;
  return options_of_block;
}

void BufferCore::Inside::settle(bool wait) {
  while (!pending.empty()) {
    auto& front = pending.front();
    std::exception_ptr failure;
    for (auto const event : front.events) {
      if (!wait && !event.ready()) return;
      if (auto const error = event.wait_for_error(); error && !failure) failure = error;
    }
    if (!failure) {
      pending.pop_front();
      continue;
    }
    // What was committed later may rest on the failed work, so all of it goes, last first, once it has stopped moving.
    for (auto const& later : pending) {
      for (auto const event : later.events) static_cast<void>(event.wait_for_error());
    }
    while (!pending.empty()) {
      coherence.roll_back(pending.back().undo);
      pending.pop_back();
    }
    try {
      std::rethrow_exception(failure);
    } catch (std::exception const& error) {
      last_failure = error.what();
      throw;
    }
  }
}

void BufferCore::Inside::add_unfinished(std::vector<Event>& events) const {
  for (auto const& entry : pending) {
    // A ready event may have failed, and settle() has not seen it yet: keep what is not known to be good.
    for (auto const event : entry.events) {
      if (!event.ready() || event.error()) events.push_back(event);
    }
  }
}

void BufferCore::Inside::remember(std::vector<Event> events, Coherence::Undo undo) {
  std::erase_if(events, [](Event event) { return event.ready() && !event.error(); });
  // Behind unfinished work even a finished commit must be kept: the rollback of the one undoes the other.
  if (events.empty() && pending.empty()) return;
  pending.push_back({std::move(events), std::move(undo)});
}

void BufferCore::Inside::check_lost(Plan const& plan) const {
  if (!plan.lost) return;
  throw DataLost(display_name(), plan.lost->begin, plan.lost->end,
                 last_failure.empty() ? "they were valid only on a device that is gone" : last_failure);
}

bool BufferCore::Inside::in_host_memory(Place place) const {
  return place == host_place || sides[place - 1].device->shares_storage_with_host();
}

void BufferCore::Inside::start_copies(Plan const& plan, Queue* queue, std::vector<Event>& events) {
  for (auto const& copy : plan.copies) {
    if (copy.fence) continue;
    auto& from = storage_at(copy.from);
    auto& to = storage_at(copy.to);
    auto const count = copy.range.size();
    auto const source = from.memory().window(copy.range.begin, count);
    auto const target = to.memory().window(copy.range.begin, count);
    auto const queue_of = [&](Place place) -> Queue& {
      auto& owner = *side(place).device;
      return queue != nullptr && &queue->device() == &owner ? *queue : owner.default_queue();
    };
    auto const order = [&](Queue& on) {
      from.order_read(on);
      to.order_write(on);
    };
    auto const record = [&](Event event) {
      from.read_by(event);
      to.written_by(event);
      events.push_back(event);
    };
    if (in_host_memory(copy.from)) {
      auto& on = queue_of(copy.to);
      order(on);
      record(on.upload(target, host_address(source), count));
      counters.upload_bytes.fetch_add(count, std::memory_order_relaxed);
      counters.uploads.fetch_add(1, std::memory_order_relaxed);
    } else if (in_host_memory(copy.to)) {
      auto& on = queue_of(copy.from);
      order(on);
      record(on.download(host_address(target), source, count));
      counters.download_bytes.fetch_add(count, std::memory_order_relaxed);
      counters.downloads.fetch_add(1, std::memory_order_relaxed);
    } else {
      // Between two devices, through host memory of our own: the buffer's host side need not exist for this.
      auto const between = manager->acquire(cpu(), Location::host, count, named());
      auto& first = queue_of(copy.from);
      from.order_read(first);
      auto const down = first.download(between.data(), source, count);
      from.read_by(down);
      down.wait();
      auto& second = queue_of(copy.to);
      to.order_write(second);
      auto const up = second.upload(target, between.data(), count);
      to.written_by(up);
      up.wait();
      counters.between_bytes.fetch_add(count, std::memory_order_relaxed);
      counters.between.fetch_add(1, std::memory_order_relaxed);
    }
  }
}

void BufferCore::Inside::carry_out(Plan const& plan) {
  std::vector<Event> events;
  start_copies(plan, nullptr, events);
  // All must have ended before one's error may be told: a copy still running writes into memory we are responsible for.
  for (auto const event : events) static_cast<void>(event.wait_for_error());
  for (auto const event : events) event.wait();
}

void BufferCore::Inside::prepare(BufferCore& self, Place place, ByteRange range, Intent intent, Queue& queue,
                                 std::vector<Event>& events) {
  ensure_device(self, place, queue);
  if (intent != Intent::write) {
    auto const plan = coherence.plan_access(place, range, Intent::read, cost());
    check_lost(plan);
    auto const before = events.size();
    start_copies(plan, &queue, events);
    auto undo = coherence.commit(plan);
    remember({events.begin() + static_cast<std::ptrdiff_t>(before), events.end()}, std::move(undo));
  }
  if (auto const& storage = side(place).storage) {
    intent == Intent::read ? storage->order_read(queue) : storage->order_write(queue);
  }
}

void BufferCore::Inside::commit_write(Place place, ByteRange range, std::vector<Event> events) {
  auto const plan = coherence.plan_access(place, range, Intent::write, cost());
  remember(std::move(events), coherence.commit(plan));
}

void BufferCore::Inside::mark(BufferCore& self, Place place, ByteRange range, Event event) {
  ensure(self, place);
  auto const plan = coherence.plan_mark(place, range, cost());
  if (plan.conflict) {
    throw CoherenceConflict(display_name(),
                            {place_name(plan.conflict->place), plan.conflict->range.begin, plan.conflict->range.end},
                            {place_name(place), range.begin, range.end});
  }
  carry_out(plan);
  auto undo = coherence.commit(plan);
  if (plan.overrules) counters.conflicting_marks.fetch_add(1, std::memory_order_relaxed);
  if (event != Event{} && place != host_place && side(place).storage) {
    side(place).storage->written_by(event);
    remember({event}, std::move(undo));
  } else if (place != host_place && side(place).storage) {
    side(place).storage->used_by_others(*side(place).device, nullptr);
  }
}

void BufferCore::Inside::release(BufferCore& self, Place place, Place to) {
  auto const plan = coherence.plan_release(place, to, cost());
  if (!plan.copies.empty()) {
    ensure(self, to);
    carry_out(plan);
  }
  static_cast<void>(coherence.commit(plan));
  coherence.remove_storage(place);
  if (place == host_place) {
    host.reset();
  } else {
    side(place).storage.reset();
  }
}

}  // namespace unimem
