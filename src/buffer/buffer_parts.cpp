#include "buffer/buffer_parts.hpp"

#include <unimem/core/error.hpp>
#include <unimem/manager/detail/resident.hpp>

#include "buffer/replica.hpp"
#include "buffer/residency.hpp"
#include "core/check_level.hpp"
#include "core/spare_memory.hpp"
#include "device/page_watch.hpp"
#include "manager/backing_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <thread>
#include <utility>

namespace unimem::detail {
namespace {

/// Below this, faults and scans cost more than copying it all would.
constexpr std::size_t smallest_tracked = std::size_t{64} << 10;

std::string text_of(std::exception_ptr const& failure) {
  if (!failure) return {};
  try {
    std::rethrow_exception(failure);
  } catch (std::exception const& error) {
    return error.what();
  } catch (...) {
    return "what wrote them failed";
  }
}

}  // namespace

void check_size(std::size_t bytes) {
  if (bytes <= static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max())) return;
  throw InvalidArgument("count", fmt::format("{} bytes", bytes), "at most 2^63 - 1 bytes");
}

void* BufferParts::operator new(std::size_t /*of one*/) {
  return SpareMemory<BufferParts>::take();
}

void BufferParts::operator delete(void* memory) noexcept {
  SpareMemory<BufferParts>::give(memory);
}

BufferParts::BufferParts(std::size_t bytes, BufferOptions&& options, Resident& buffer, PublishedState& to_publish)
    : terms(std::move(options)),
      self(buffer),
      published(to_publish),
      priority(terms.options.priority),
      replicas(bytes, terms.options),
      watch(terms.options.tracking) {
  if (terms.options.tracking == Tracking::pages) {
    if (auto reason = PageWatch::reason_unavailable(); !reason.empty()) {
      throw UnsupportedOperation("Tracking::pages", "this system", std::move(reason));
    }
    if (bytes < smallest_tracked || replicas.places.shares(replicas.default_device())) watch.track_by_access();
  }
  if (terms.options.location == Location::unified && !replicas.default_device().has_unified_memory()) {
    throw UnsupportedOperation("Location::unified", std::string(replicas.default_device().id()),
                               "the device has no memory that the host reaches too");
  }
  if (check_level() > 1) watch.check_reads(bytes, terms.display_name());
  published.publish({.bytes = bytes});
}

void BufferParts::check_access(std::string_view operation) const {
  if (terms.options.strict && !allocated) throw BufferNotAllocated(terms.display_name(), std::string(operation));
}

void BufferParts::check_allocated(std::string_view operation) const {
  check_access(operation);
  if (!replicas.has_memory()) throw BufferNotAllocated(terms.display_name(), std::string(operation));
}

void BufferParts::check_not_captured() const {
  if (!captured) return;
  throw UnsupportedOperation("any other use", terms.display_name(), "launches with it are being captured into a graph");
}

void BufferParts::check_file_writable(std::string_view operation) const {
  if (file->mode() != FileMode::read) return;
  throw UnsupportedOperation(std::string(operation), terms.display_name(),
                             fmt::format("it was made from '{}' to be read (FileMode::read); copy_on_write keeps what "
                                         "is written apart, read_write writes it to the file",
                                         file->name()));
}

void BufferParts::check_pages(ByteRange range) const {
  auto const& host = replicas.in_memory_of_host();
  if (host && host->mapped() != nullptr) host->mapped()->check(range);
}

bool BufferParts::file_is_mapped() const noexcept {
  return file->is_mapped();
}

void BufferParts::begin_in_file() {
  allocated = true;
  watch.wrote(replicas.whole());
  if (replicas.bytes() == 0) return;
  auto const place = replicas.place_of_file(DevicePlace::File::users, *terms.manager);
  auto& coherence = replicas.coherence;
  if (!replicas.at(place)) {
    auto replica = std::make_shared<Replica>(ReplicaMemory(std::shared_ptr<FileMemory>(file)));
    coherence.add_storage(place);
    replicas.put(place, std::move(replica));
  }
  auto const all_there = coherence.plan_access(place, replicas.whole(), Intent::read, replicas.places.cost());
  coherence.commit_certain(all_there);
}

void BufferParts::refuse(ByteRange range) const {
  throw InvalidArgument("range", fmt::format("bytes [{}, {})", range.begin, range.end),
                        fmt::format("within the {} bytes of {}", replicas.bytes(), terms.display_name()));
}

void BufferParts::check_not_leased(Place place) const {
  auto const& replica = replicas.at(place);
  if (!replica || !replica->holds().leased()) return;
  throw InvalidArgument(
      place == host_place ? "host" : "device", replicas.places.name(place),
      fmt::format("a side of {} without leases, mappings and graphs, which hold its memory", terms.display_name()));
}

void BufferParts::check_lost(Plan const& plan) const {
  if (plan.lost) throw DataLost(terms.display_name(), plan.lost->begin, plan.lost->end, text_of(replicas.last_failure));
  for (auto const& copy : plan.copies) {
    // Dearer than every other source: it was the only one.
    if (copy.from != host_place && replicas.places[copy.from].device->is_lost()) {
      throw DataLost(terms.display_name(), copy.range.begin, copy.range.end,
                     fmt::format("they were valid only on {}, which is gone", replicas.places.name(copy.from)));
    }
  }
}

ByteRange BufferParts::in_own_host_memory(void const* pointer, std::size_t count) const noexcept {
  auto const& host = replicas.host();
  if (!host) return {};
  auto const base = reinterpret_cast<std::uintptr_t>(host->host_address());
  auto const begin = reinterpret_cast<std::uintptr_t>(pointer);
  auto const end = begin + count;
  if (end <= base || begin >= base + replicas.bytes()) return {};
  return {std::max(begin, base) - base, std::min(end, base + replicas.bytes()) - base};
}

void BufferParts::become_resident() {
  if (resident) return;
  // Before others know it: they ask whether a thread works with it, and let go of it by what they find here.
  lock.count_operations();
  resident = true;
  try {
    terms.manager->add_resident(self);
  } catch (...) {
    resident = false;
    throw;
  }
}

void BufferParts::drop_everything(Coherence fresh, std::size_t new_size) noexcept {
  watch.unrecorded().clear();
  deferred = nullptr;
  watch.end();
  replicas.drop_everything(std::move(fresh), new_size);
  shared = nullptr;
  pinned.store(false, std::memory_order_relaxed);
}

void BufferParts::drop_everything() {
  drop_everything(replicas.without_memory(replicas.bytes()), replicas.bytes());
  watch.forget(replicas.bytes());
}

void BufferParts::forget_history() noexcept {
  allocated = false;
  pin_next = false;
  advice.clear();
  replicas.last_failure = nullptr;
  counters.reset();
  priority.store(terms.options.priority, std::memory_order_relaxed);
  for (auto& one : replicas.places.devices()) {
    one.history = {};
    one.next_use = NextUse::unsaid;
  }
}

void BufferParts::offer_leases(std::shared_ptr<Replica> const& replica, Queue const& queue) {
  auto* at = fast_lease.load(std::memory_order_relaxed);
  if (at == nullptr) {
    at = new FastLease;
    fast_lease.store(at, std::memory_order_release);
  }
  at->stand_before(replica, replicas.bytes(), queue.id());
}

void BufferParts::close_fast_lease() noexcept {
  auto* const at = fast_lease.load(std::memory_order_relaxed);
  if (at == nullptr) return;
  at->close();
  record_fast_uses();
}

void BufferParts::record_fast_uses() noexcept {
  auto* const at = fast_lease.load(std::memory_order_relaxed);
  auto const* const replica = at == nullptr || !at->take_visited() ? nullptr : at->behind();
  if (replica == nullptr) return;
  for (auto& one : replicas.places.devices()) {
    if (one.replica.get() == replica) one.used(replicas.bytes());
  }
}

void BufferParts::open_fast_lease() noexcept {
  auto* const at = fast_lease.load(std::memory_order_relaxed);
  auto const* const replica = at == nullptr ? nullptr : at->behind();
  if (replica == nullptr) return;
  auto const devices = replicas.places.devices();
  auto const one = std::ranges::find_if(devices, [&](auto const& place) { return place.replica.get() == replica; });
  if (one == devices.end()) return at->detach();
  auto const place = static_cast<Place>(one - devices.begin() + 1);
  bool const all_written = !watch.written_map() || watch.written_map()->complete();
  bool const at_rest = all_written && is_undisturbed() && replicas.pending.is_settled() &&
                       replica->work().writes_ended_well(replicas.whole());
  if (at_rest && replicas.holds(place, replicas.whole()) &&
      replica->work().used_by_others_on(*one->device, at->queue_id())) {
    at->open();
  }
}

PublishedState::Facts BufferParts::facts() const noexcept {
  auto const whole = replicas.whole();
  auto const& host = replicas.host();
  PublishedState::Facts facts;
  facts.bytes = whole.size();
  facts.state = replicas.coherence.state();
  facts.found_by_looking =
      (watch.tracking() == Tracking::pages && watch.writes() != nullptr) || !watch.unrecorded().empty() || shared;
  facts.host_address = host ? host->host_address() : nullptr;
  facts.host_is_exported = host && host->holds().exported_for_writing();
  bool const arrived = !host || host->work().arrived(whole);
  // Of what processes share each access is told to the others.
  bool const all_told = !deferred && !captured && !shared && replicas.pending.all_told();
  bool const told_at_once = arrived && all_told;
  // Lock-free readers are not recorded, so the address is published only once it has been exported anyway.
  // At each access: in parts, or a file's own pages.
  bool const is_looked_after = file != nullptr && host && (host->reserved() != nullptr || host->mapped() != nullptr);
  bool const may_be_given = !is_looked_after && (terms.spill_files == nullptr || (host && host->holds().exported()));
  // Or a read may have to be reported.
  bool const all_written = !watch.written_map() || watch.written_map()->complete();
  facts.host_is_current = told_at_once && may_be_given && all_written && replicas.holds(host_place, whole);
  facts.host_is_exclusive = facts.host_is_current && !whole.empty() && replicas.pending.empty() &&
                            (!host || host->work().idle()) && replicas.coherence.written(host_place).contains(whole);
  bool const device_at_rest = all_told && watch.writes() == nullptr && watch.unrecorded().empty();
  facts.current_on = device_at_rest ? replicas.quiet_device() : nullptr;
  for (auto const& one : replicas.places.devices()) {
    if (!one.replica || one.file != DevicePlace::File::none || replicas.places.shares(*one.device)) continue;
    facts.on_several = facts.on_several || (facts.only_on != nullptr && facts.only_on != one.device);
    facts.only_on = one.device;
  }
  if (terms.spill_files != nullptr || file != nullptr) {
    auto const& memory = replicas.in_memory_of_host();
    bool const may_go = memory != nullptr && (memory->reserved() != nullptr || may_spill(*this, memory->location()));
    facts.spillable_bytes = may_go ? memory->capacity() : 0;
  }
  return facts;
}

BufferGuard::BufferGuard(BufferParts& parts, Watched watched) : parts_(parts) {
  bool const counted = parts_.lock.counts();
  if (counted) parts_.lock.operation_begins();
  try {
    parts_.lock.lock(parts_.terms, watched);
  } catch (...) {
    if (counted) parts_.lock.operation_ends();
    throw;
  }
  // It may have become known to the manager while this waited.
  if (!counted && parts_.lock.counts()) parts_.lock.operation_begins();
  ++parts_.operations;
  entered();
}

BufferGuard::BufferGuard(BufferParts& parts, Look /*look*/) : parts_(parts) {
  parts_.lock.lock(parts_.terms);
  if (parts_.lock.counts()) parts_.lock.operation_begins();  // from now on: its own thread may come to ask for memory
  entered();
}

BufferGuard::BufferGuard(BufferParts& parts, std::chrono::milliseconds patience) noexcept : parts_(parts) {
  using Clock = std::chrono::steady_clock;
  auto const locked = [&] { return !parts_.lock.has_operations() && parts_.lock.try_lock(); };
  locked_ = locked();
  for (auto const end = Clock::now() + patience; !locked_ && Clock::now() < end; locked_ = locked()) {
    std::this_thread::yield();
  }
  if (!locked_) return;
  parts_.lock.count_operations_to_come();  // for the manager, which knows it, or a test
  parts_.lock.operation_begins();
  ++parts_.operations;
  entered();
}

void BufferGuard::entered() noexcept {
  parts_.lock.hold_here();
  parts_.close_fast_lease();
}

void BufferGuard::unlock() noexcept {
  if (!std::exchange(locked_, false)) return;
  try {
    parts_.watch.remember(parts_.replicas.coherence);
  } catch (...) {
    if (!parts_.deferred) parts_.deferred = std::current_exception();
  }
  if (parts_.replicas.file_may_go || parts_.replicas.windows_may_go) leaves_ = Leaves::anything;
  if (parts_.replicas.file_may_go) parts_.replicas.drop_stale_file();
  if (parts_.replicas.windows_may_go) parts_.replicas.drop_superseded_windows();
  if (leaves_ == Leaves::anything) parts_.publish();
  if (leaves_ == Leaves::a_rewrite) parts_.published.publish_write_in_flight();
  parts_.open_fast_lease();
  bool const counted = parts_.lock.counts();
  parts_.lock.hold_no_more();
  parts_.lock.unlock();
  if (counted) parts_.lock.operation_ends();
}

}  // namespace unimem::detail
