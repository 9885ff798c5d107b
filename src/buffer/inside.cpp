#include "buffer/inside.hpp"

#include <unimem/core/environment.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>

#include "buffer/mutants.hpp"
#include "core/spare_memory.hpp"
#include "device/ending.hpp"
#include "device/page_watch.hpp"
#include "device/worker_threads.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace unimem {
namespace {

/// Below this, faults and scans cost more than copying it all would.
constexpr std::size_t smallest_tracked = std::size_t{64} << 10;

bool wants_check() {
  static bool const wanted = environment_flag("UNIMEM_CHECK", false);
  return wanted;
}

/// The default one is never destroyed, and is not counted.
std::shared_ptr<MemoryManager> manager_of(BufferOptions const& options) {
  if (options.manager != nullptr) return options.manager->share();
  return {std::shared_ptr<MemoryManager>{}, &default_manager()};
}

/// Threads take them by the dozen, so as not to meet here for each.
std::uint64_t next_id() {
  static constexpr std::uint64_t dozen = 12;
  static constinit std::atomic<std::uint64_t> next{1};
  static constinit thread_local std::uint64_t mine = 0, end = 0;
  if (mine == end) {
    mine = next.fetch_add(dozen, std::memory_order_relaxed);
    end = mine + dozen;
  }
  return mine++;
}

}  // namespace

Device& detail::host_device() {
  static auto& instance = device("cpu");
  return instance;
}

void* BufferCore::Inside::operator new(std::size_t /*of one*/) {
  return detail::SpareMemory<Inside>::take();
}

void BufferCore::Inside::operator delete(void* memory) noexcept {
  detail::SpareMemory<Inside>::give(memory);
}

BufferCore::Inside::Inside(std::size_t bytes_, BufferOptions&& options_)
    : bytes(bytes_),
      options(std::move(options_)),
      manager(manager_of(options)),
      spill_files(manager->spill_files()),
      device(options.device),
      name(options.name),
      key(name.empty() ? options.site : name),
      id(next_id()),
      priority(options.priority),
      coherence(bytes_),
      tracking(options.tracking) {
  if (options.manager != nullptr) options.manager = manager.get();
  static bool const strict_by_default = environment_flag("UNIMEM_STRICT", false);
  options.strict = options.strict || strict_by_default;
  if (options.location == Location::pinned) options.pinned = true;
  if (device != nullptr) choose_host_memory();
  if (options.tracking == Tracking::pages) {
    if (auto reason = detail::PageWatch::reason_unavailable(); !reason.empty()) {
      throw UnsupportedOperation("Tracking::pages", "this system", std::move(reason));
    }
    if (bytes < smallest_tracked || shares(default_device())) tracking = Tracking::access;
  }
  if (options.location == Location::unified && !default_device().has_unified_memory()) {
    throw UnsupportedOperation("Location::unified", std::string(default_device().id()),
                               "the device has no memory that the host reaches too");
  }
}

void BufferCore::Inside::choose_host_memory() noexcept {
  bool const wanted = options.location == Location::unified || device->shares_storage_with_host();
  if (wanted && !device->reaches_host_memory() && !host && !find_place(*device)) unified = device;
}

Device& BufferCore::Inside::default_device() {
  if (device == nullptr) {
    device = &unimem::default_device();
    choose_host_memory();
  }
  return *device;
}

bool BufferCore::Inside::shares(Device const& with) const noexcept {
  return with.reaches_host_memory() || (unified != nullptr && with.shares_unified_memory(*unified));
}

void BufferCore::Inside::throw_lost() const {
  throw UnsupportedOperation(fmt::format("using {}", display_name()), "a forked child process",
                             "a thread of the parent was in the middle of an operation on it");
}

std::string BufferCore::Inside::display_name() const {
  return name.empty() ? fmt::format("buffer #{}", id) : fmt::format("buffer '{}'", name.view());
}

std::string BufferCore::Inside::place_name(Place place) const {
  return place == host_place ? "host" : std::string(sides[place - 1].device->id());
}

bool BufferCore::Inside::has_any_storage() const {
  for (Place place = host_place; place < coherence.place_count(); ++place) {
    if (coherence.has_storage(place)) return true;
  }
  return false;
}

bool BufferCore::Inside::holds(Place place, ByteRange range) const {
  return coherence.has_data() && coherence.has_storage(place) && coherence.valid(place).contains(range);
}

Device* BufferCore::Inside::device_holding(ByteRange range) const {
  Device* found = nullptr;
  for (std::size_t i = 0; i < sides.size(); ++i) {
    auto* const candidate = sides[i].device;
    if (shares(*candidate) || candidate->is_lost() || !holds(static_cast<Place>(i + 1), range)) continue;
    if (candidate == device) return candidate;
    if (found == nullptr) found = candidate;
  }
  return found;
}

Device* BufferCore::Inside::quiet_device() const {
  for (std::size_t i = 0; i < sides.size(); ++i) {
    if (is_quiet(static_cast<Place>(i + 1), whole())) return sides[i].device;
  }
  return nullptr;
}

bool BufferCore::Inside::is_quiet(Place place, ByteRange range) const {
  if (!pending.empty() || !holds(place, range)) return false;
  auto const& storage = storage_at(place);
  return !storage || storage->arrived(range);
}

void BufferCore::Inside::check_access(std::string_view operation) const {
  if (options.strict && !allocated) throw BufferNotAllocated(display_name(), std::string(operation));
}

void BufferCore::Inside::check_allocated(std::string_view operation) const {
  check_access(operation);
  if (!has_any_storage()) throw BufferNotAllocated(display_name(), std::string(operation));
}

void BufferCore::Inside::check_not_captured() const {
  if (!captured) return;
  throw UnsupportedOperation("any other use", display_name(), "launches with it are being captured into a graph");
}

void BufferCore::Inside::check_range(ByteRange range) const {
  if (range.begin <= range.end && range.end <= bytes) return;
  throw InvalidArgument("range", fmt::format("bytes [{}, {})", range.begin, range.end),
                        fmt::format("within the {} bytes of {}", bytes, display_name()));
}

void BufferCore::Inside::check_not_leased(Place place) const {
  auto const& storage = storage_at(place);
  if (!storage || !storage->leased()) return;
  throw InvalidArgument(place == host_place ? "host" : "device", place_name(place),
                        fmt::format("a side of {} without leases and mappings", display_name()));
}

std::optional<Place> BufferCore::Inside::find_place(Device const& wanted) const noexcept {
  for (std::size_t i = 0; i < sides.size(); ++i) {
    if (sides[i].device == &wanted) return static_cast<Place>(i + 1);
  }
  return std::nullopt;
}

Place BufferCore::Inside::place_of(Device& wanted) {
  if (auto const place = find_place(wanted)) return *place;
  sides.reserve(sides.size() + 1);
  auto& clock = manager->use_clock(wanted);
  auto const place = coherence.add_device(shares(wanted) ? std::optional{host_place} : std::nullopt);
  sides.push_back({&wanted, &clock, nullptr});
  return place;
}

CopyCost BufferCore::Inside::cost() const {
  return [this](Place from, Place to, std::size_t count) {
    double seconds = 0;
    for (auto const place : {from, to}) {
      if (place == host_place) continue;
      if (sides[place - 1].device->is_lost()) return std::numeric_limits<double>::infinity();
      auto const link = sides[place - 1].device->link_cost();
      seconds += link.latency_seconds + (static_cast<double>(count) / link.bytes_per_second);
    }
    return seconds;
  };
}

void BufferCore::Inside::note_use(Place place, std::size_t used) noexcept {
  if (place == host_place || UNIMEM_MUTANT(uses_forgotten)) return;
  auto& one = side(place);
  one.history.used(*one.clock, used);
  one.next_use = NextUse::unsaid;
}

void BufferCore::Inside::note_visits() noexcept {
  auto* const at = door.load(std::memory_order_relaxed);
  auto const* const storage = at == nullptr || !at->take_visited() ? nullptr : at->behind();
  if (storage == nullptr) return;
  for (std::size_t i = 0; i < sides.size(); ++i) {
    if (sides[i].storage.get() == storage) note_use(static_cast<Place>(i + 1), bytes);
  }
}

void BufferCore::Inside::publish_places() noexcept {
  Device const* found = nullptr;
  bool several = false;
  for (auto const& one : sides) {
    if (!one.storage || shares(*one.device)) continue;
    several = several || found != nullptr;
    found = one.device;
  }
  // Written only when it is another: others look at it all the time.
  if (only_on.load(std::memory_order_relaxed) != found) only_on.store(found, std::memory_order_relaxed);
  if (published_bytes.load(std::memory_order_relaxed) != bytes) published_bytes.store(bytes, std::memory_order_relaxed);
  if (on_several.load(std::memory_order_relaxed) != several) on_several.store(several, std::memory_order_relaxed);
  if (spill_files == nullptr) return;
  auto const& storage = in_memory_of_host();
  bool const may_go = storage != nullptr && !storage->away() && may_spill(storage->location());
  spillable_bytes.store(may_go ? storage->capacity() : 0, std::memory_order_relaxed);
}

BufferCore::Reclaimable BufferCore::Inside::offer(Device& from) const noexcept {
  Reclaimable offered;
  auto const at = find_place(from);
  if (!at || shares(from)) return offered;
  auto const& side = sides[*at - 1];
  if (!side.storage) return offered;
  if (side.storage->leased() || captured) {
    offered.leased = side.storage->capacity();
    return offered;
  }
  if (side.storage->is_read_by_work()) {
    // It may keep what it reads, and ends some time; but not while this very thread is in the middle of it.
    offered.busy = !detail::AtWork::is_in_work_of(side.storage->works_on());
    (offered.busy ? offered.bytes : offered.leased) = side.storage->capacity();
    return offered;
  }
  offered.bytes = side.storage->capacity();
  if (!UNIMEM_MUTANT(priorities_ignored)) offered.priority = priority.load(std::memory_order_relaxed);
  if (!coherence.has_data()) return offered;
  auto const link = from.link_cost();
  auto const seconds = [&](std::size_t moved) {
    return moved == 0 ? 0 : link.latency_seconds + static_cast<double>(moved) / link.bytes_per_second;
  };
  offered.cost_seconds = seconds(coherence.valid(*at).size_bytes()) + seconds(coherence.written(*at).size_bytes());
  auto const next_use = UNIMEM_MUTANT(hints_ignored) ? NextUse::unsaid : side.next_use;
  offered.wait = next_use == NextUse::soon   ? 0
                 : next_use == NextUse::none ? std::numeric_limits<double>::infinity()
                                             : side.history.expected_wait(*side.clock);
  return offered;
}

std::shared_ptr<detail::Storage> BufferCore::Inside::new_host_memory(std::size_t size) {
  if (unified != nullptr) {
    // What is not begun again must not wait with the buffer's lock.
    std::optional<detail::Operation> with_the_lock;
    if (detail::Operation::innermost() == nullptr) with_the_lock.emplace(detail::Operation::Waiting::never);
    auto storage = detail::Storage::unified(*unified, manager->acquire(*unified, Location::unified, size, named()));
    storage->count_in(manager->usage_book(), key, id);
    return storage;
  }
  auto [block, part] = new_host_block(size);
  auto storage = std::allocate_shared<detail::Storage>(detail::SpareAllocator<detail::Storage>{}, detail::host_device(),
                                                       std::move(block), part);
  storage->count_in(manager->usage_book(), key, id);
  return storage;
}

BufferCore::Inside::HostBlock BufferCore::Inside::new_host_block(std::size_t size) {
  // Tracked memory has its pages to itself. No pool aligns as coarsely, so it gets one page more than it needs.
  bool const in_pages = tracking == Tracking::pages;
  auto const page = in_pages ? detail::PageWatch::page_bytes() : 1;
  auto const whole_pages = in_pages ? (size + page - 1) / page * page : size;  // a division takes as long as a lock
  auto const wanted = whole_pages + page - 1;
  Allocation memory;
  if (options.pinned || pin_next) {
    memory = manager->acquire_pinned_or_not(wanted, named());
    // Documented: pageable memory may serve instead, and is_pinned() says so.
    bool const locked = memory.location() == Location::pinned;
    pinned.store(locked, std::memory_order_relaxed);
    if (!locked) manager->note_refused_pinning();
  } else {
    memory = manager->acquire(detail::host_device(), Location::host, wanted, named());
  }
  auto const block = memory.memory();
  auto const skipped = in_pages ? (page - (block.object + block.offset) % page) % page : 0;
  return {std::move(memory), block.window(skipped, whole_pages)};
}

std::shared_ptr<detail::Storage> BufferCore::Inside::host_memory() {
  auto const& there = in_memory_of_host();
  return there ? there : new_host_memory(bytes);
}

std::shared_ptr<detail::Storage> BufferCore::Inside::new_device_memory(BufferCore& self, Device& wanted,
                                                                       std::size_t size, Queue& queue) {
  become_resident(self);
  auto request = named();
  request.queue = &queue;
  auto memory = manager->acquire(wanted, Location::device, size, request);
  if (auto* const operation = detail::Operation::innermost()) operation->took(size);
  auto storage = std::make_shared<detail::Storage>(wanted, std::move(memory));
  storage->count_in(manager->usage_book(), key, id);
  // The block may still be in use by earlier work of this queue, or by what the pool made it wait for with a ticket of
  // its own: whoever comes from another goes behind it.
  if (!UNIMEM_MUTANT(fresh_block_not_ordered)) storage->hazards().perhaps_written_by({0, size}, queue.record());
  return storage;
}

void BufferCore::Inside::ensure_host(ByteRange overwritten) {
  if (coherence.has_storage(host_place)) {
    if (host) come_to(*host, overwritten == whole());
    return;
  }
  if (bytes != 0) {
    auto memory = host_memory();
    come_to(*memory);
    memory->heed(advice);
    host = std::move(memory);
    watch_host();
  }
  coherence.add_storage(host_place);
}

void BufferCore::Inside::ensure_device(BufferCore& self, Place place, Queue& queue) {
  if (coherence.has_storage(place)) {
    if (auto const& there = storage_at(place)) come_to(*there);
    return;
  }
  auto& wanted = *side(place).device;
  if (bytes != 0) {
    auto memory = shares(wanted) ? host_memory() : new_device_memory(self, wanted, bytes, queue);
    come_to(*memory);
    memory->heed(advice);
    side(place).storage = std::move(memory);
    publish_places();  // others that need it count on it from now on
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
  options_of_block.name = key;
  return options_of_block;
}

Coherence BufferCore::Inside::fresh_coherence(std::size_t size) const {
  Coherence fresh(size);
  for (auto const& other : sides) {
    fresh.add_device(shares(*other.device) ? std::optional{host_place} : std::nullopt);
  }
  return fresh;
}

void BufferCore::Inside::drop_everything(Coherence fresh, std::size_t new_size) noexcept {
  // Everything that was in flight keeps its memory by its tickets; what it writes is nobody's any more.
  pending.clear();
  deferred = nullptr;
  for (auto& other : sides) other.storage.reset();
  host_writes.reset();
  host.reset();
  coherence = std::move(fresh);
  bytes = new_size;
  pinned.store(false, std::memory_order_relaxed);
}

bool BufferCore::Inside::watches_host() const {
  return tracking == Tracking::pages || wants_check();
}

std::unique_ptr<detail::HostWrites> BufferCore::Inside::watched(std::shared_ptr<detail::Storage> const& memory,
                                                                std::size_t size) const {
  if (tracking == Tracking::pages) return detail::track_pages(memory, size);
  if (wants_check()) return detail::check_host(memory, size, display_name(), last_marks);
  return nullptr;
}

void BufferCore::Inside::watch_host() {
  absorbed = true;  // nobody has had an address of this memory: what this operation leaves there is known
  // Devices that share it may have come first, and are writing to it.
  if (tracking == Tracking::pages) host->wait_to_write(whole());
  host_writes = watched(host, bytes);
  if (!host_writes) return;
  pending.for_each_touch([this](Place place, ByteRange range, std::vector<Event> const& events) {
    if (place == host_place || !in_host_memory(place)) return;
    for (auto const event : events) host_writes->expect_device(range, event);
  });
}

void BufferCore::Inside::absorb_host_writes(bool decide, bool wait) {
  if (!host_writes) return;
  // With what is pending: when failed work is taken back, these are not.
  auto const conflict = host_writes->absorb(
      coherence, [this](ByteRange range) { commit_write(host_place, range, {}, Events::of_all); }, wait);
  absorbed = true;
  counters.unmarked_writes.fetch_add(host_writes->take_unmarked(), std::memory_order_relaxed);
  if (!conflict || decide) return;
  throw CoherenceConflict(display_name(),
                          {place_name(conflict->device), conflict->on_device.begin, conflict->on_device.end},
                          {fmt::format("host (found by pages of {} bytes)", detail::PageWatch::page_bytes()),
                           conflict->host.begin, conflict->host.end});
}

void BufferCore::Inside::note(std::string_view what, ByteRange range) {
  if (wants_check()) last_marks = fmt::format("last declared: {} of bytes [{}, {})", what, range.begin, range.end);
}

void BufferCore::Inside::settle(ByteRange range, bool wait, bool decide) {
  check_not_captured();
  absorb_host_writes(decide);
  if (deferred) std::rethrow_exception(std::exchange(deferred, nullptr));
  if (pending.empty()) return;
  bool const child_had_it = detail::is_forked_child() && holds(host_place, range);
  auto const failure = pending.settle(coherence, range, wait);
  if (!failure) return;
  forget_ended();
  last_failure = "what wrote them failed";
  try {
    std::rethrow_exception(failure);
  } catch (UnsupportedOperation const& error) {
    // The parent's work, which nobody does here: an upload that never arrives takes nothing from the host.
    // What it was to write is another matter: the copy that the host has again is not what the parent will have.
    if (child_had_it && holds(host_place, range)) return;
    last_failure = error.what();
    throw;
  } catch (std::exception const& error) {
    last_failure = error.what();
    throw;
  }
}

void BufferCore::Inside::settle_for_another(bool wait) {
  auto told = std::exchange(deferred, nullptr);
  try {
    settle(whole(), wait);
  } catch (std::exception const&) {
    if (!told) told = std::current_exception();
  }
  deferred = std::move(told);
}

void BufferCore::Inside::forget_ended() noexcept {
  if (UNIMEM_MUTANT(failures_not_forgotten)) return;
  if (host) host->hazards().forget_ended();
  for (auto const& other : sides) {
    if (other.storage) other.storage->hazards().forget_ended();
  }
}

void BufferCore::Inside::commit_copies(Plan const& plan, std::span<const Event> events) {
  if (plan.copies.empty()) return commit(plan, {});
  bool const as_one = events.size() == plan.copies.size() &&
                      std::ranges::all_of(events, [&](Event event) { return event == events.front(); });
  if (as_one) {
    Plan part;
    part.place = plan.place;
    part.range = plan.copies.front().range;
    part.copies = plan.copies;
    return commit(std::move(part), {events.front()});
  }
  auto event = events.begin();
  for (auto const& copy : plan.copies) {
    Plan part;
    part.place = plan.place;
    part.range = copy.range;
    part.copies = {copy};
    commit(std::move(part), copy.fence ? std::vector<Event>{} : std::vector{*event++});
  }
}

void BufferCore::Inside::commit(Plan plan, std::vector<Event> events, Events what) {
  auto undo = coherence.commit(plan);
  pending.add(std::move(events), what == Events::of_all, std::move(plan), std::move(undo));
}

void BufferCore::Inside::commit_write(Place place, ByteRange range, Event event, Events what) {
  if (host_writes && place != host_place && in_host_memory(place)) host_writes->expect_device(range, event);
  commit(coherence.plan_access(place, range, Intent::write, cost()), {event}, what);
}

void BufferCore::Inside::check_lost(Plan const& plan) const {
  if (plan.lost) throw DataLost(display_name(), plan.lost->begin, plan.lost->end, last_failure);
  for (auto const& copy : plan.copies) {
    // Dearer than every other source: it was the only one.
    if (copy.from != host_place && sides[copy.from - 1].device->is_lost()) {
      throw DataLost(display_name(), copy.range.begin, copy.range.end,
                     fmt::format("they were valid only on {}, which is gone", place_name(copy.from)));
    }
  }
}

bool BufferCore::Inside::in_host_memory(Place place) const noexcept {
  return place == host_place || shares(*sides[place - 1].device);
}

void BufferCore::Inside::mark(BufferCore& self, Place place, ByteRange range, Event event) {
  ensure(self, place);
  auto plan = coherence.plan_mark(place, range, cost());
  if (plan.conflict) {
    throw CoherenceConflict(display_name(),
                            {place_name(plan.conflict->place), plan.conflict->range.begin, plan.conflict->range.end},
                            {place_name(place), range.begin, range.end});
  }
  carry_out(plan);
  bool const overrules = plan.overrules;
  auto const& storage = storage_at(place);
  bool const says_when = event != Event{} && place != host_place;
  if (storage && says_when) storage->hazards().written_elsewhere_by(range, event);
  if (host_writes && says_when && in_host_memory(place)) host_writes->expect_device(range, event);
  if (storage && !says_when && place != host_place) storage->used_by_others(*side(place).device, nullptr);
  commit(std::move(plan), says_when ? std::vector{event} : std::vector<Event>{}, Events::of_the_end);
  if (overrules) counters.conflicting_marks.fetch_add(1, std::memory_order_relaxed);
  if (!storage) return;
  // What is marked was written, by somebody who took no access for writing.
  storage->usage().note_host(false, place == host_place);
  storage->usage().note_device(false, place != host_place);
}

void BufferCore::Inside::release(BufferCore& self, Place place, Place to) {
  auto plan = coherence.plan_release(place, to, cost());
  spare_good_bytes(plan);
  if (!plan.copies.empty()) {
    ensure(self, to);
    carry_out(plan);
  }
  static_cast<void>(coherence.commit(plan));
  coherence.remove_storage(place);
  if (place == host_place) {
    host_writes.reset();
    host.reset();
  } else {
    side(place).storage.reset();
  }
}

}  // namespace unimem
