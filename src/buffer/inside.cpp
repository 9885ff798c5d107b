#include "buffer/inside.hpp"

#include <unimem/core/detail/environment.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/timed_wait.hpp>

#include "buffer/mutants.hpp"
#include "core/check_level.hpp"
#include "core/spare_memory.hpp"
#include "device/current_task.hpp"
#include "device/page_watch.hpp"
#include "device/watched_wait.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <thread>
#include <utility>

namespace unimem {
namespace {

/// Below this, faults and scans cost more than copying it all would.
constexpr std::size_t smallest_tracked = std::size_t{64} << 10;

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
  if (detail::check_level() > 1) {
    written_map = std::make_shared<detail::WrittenMap>(bytes, display_name());
    stale_views = std::make_shared<detail::StaleViews>(display_name());
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

void BufferCore::Inside::lock_contended(Watched watched) {
  LongWait known{holder};  // for threads that wait for this one
  std::optional<detail::WatchedWait> wait;
  if (watched == Watched::yes) wait.emplace("waiting for another thread that uses a buffer");
  bool const ends_early = wait && wait->watched();
  if (detail::CurrentTask::may_wait_for_any() && !ends_early) {
    if (!mutex.lock()) throw_lost();
    return;
  }
  constexpr std::chrono::microseconds longest{1000};
  for (std::chrono::microseconds pause{10}; !mutex.try_lock(); pause = std::min(2 * pause, longest)) {
    if (mutex.is_lost()) throw_lost();
    if (ends_early) wait->look();
    if (known.never_ends()) {
      throw UnsupportedOperation(fmt::format("using {}", display_name()), "a kernel",
                                 "the thread that is using it waits for this kernel, and would never end");
    }
    std::this_thread::sleep_for(pause);
  }
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
  if (!pending.empty() || !unrecorded.empty() || !holds(place, range)) return false;
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

void BufferCore::Inside::record_fast_uses() noexcept {
  auto* const at = fast_lease.load(std::memory_order_relaxed);
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
    offered.busy = !detail::CurrentTask::is_in_work_of(side.storage->works_on());
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
  // Everything that was in flight keeps its memory by its tickets; what it writes is no data any more.
  pending.clear();
  unrecorded.clear();
  deferred = nullptr;
  for (auto& other : sides) other.storage.reset();
  host_writes.reset();
  host.reset();
  coherence = std::move(fresh);
  bytes = new_size;
  pinned.store(false, std::memory_order_relaxed);
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

bool BufferCore::Inside::mark(detail::AccessContext& context, BufferCore& self, Place place, ByteRange range,
                              Event event) {
  if (!ensure(context, self, place)) return false;
  mark_there(coherence.plan_mark(place, range, cost()), event);
  return true;
}

void BufferCore::Inside::mark_there(Plan plan, Event event) {
  auto const place = plan.place;
  auto const range = plan.range;
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
  // What is marked was written without an access for writing.
  storage->usage().note_host(false, place == host_place);
  storage->usage().note_device(false, place != host_place);
}

bool BufferCore::Inside::release(detail::AccessContext& context, BufferCore& self, Place place, Place to) {
  auto plan = coherence.plan_release(place, to, cost());
  spare_good_bytes(plan);
  if (!plan.copies.empty()) {
    if (!ensure(context, self, to)) return false;
    carry_out(plan);
  }
  static_cast<void>(coherence.commit(plan));
  coherence.remove_storage(place);
  if (place == host_place) {
    unrecorded.clear();
    host_writes.reset();
    host.reset();
  } else {
    side(place).storage.reset();
  }
  return true;
}

void BufferCore::Inside::release_now(BufferCore& self, Place place, Place to) {
  detail::AccessContext context{detail::AccessContext::Waiting::never};
  static_cast<void>(release(context, self, place, to));  // it has memory to save to, or throws
}

}  // namespace unimem
