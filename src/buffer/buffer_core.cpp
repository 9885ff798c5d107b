#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/core/error.hpp>
#include <unimem/core/log.hpp>
#include <unimem/device/wait_watch.hpp>

#include "buffer/inside.hpp"
#include "buffer/mutants.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <utility>
namespace unimem {

std::string_view BufferCore::name() const noexcept {
  return inside_->name.view();
}

Device& BufferCore::find_default_device() const {
  std::lock_guard const lock{*inside_};
  auto& device = inside_->default_device();
  default_device_.store(&device, std::memory_order_release);
  return device;
}

std::shared_ptr<detail::WrittenMap> const& BufferCore::written_map() const noexcept {
  return inside_->written_map;
}

std::shared_ptr<detail::StaleViews> const& BufferCore::stale_views() const noexcept {
  return inside_->stale_views;
}

MemoryManager& BufferCore::manager() const noexcept {
  return *inside_->manager;
}

BufferOptions const& BufferCore::options() const noexcept {
  return inside_->options;
}

bool BufferCore::is_pinned() const noexcept {
  return inside_->pinned.load(std::memory_order_relaxed);
}

Location BufferCore::location() const {
  std::lock_guard const lock{*inside_};
  auto const& inside = *inside_;
  bool const refused = inside.host && !inside.pinned.load(std::memory_order_relaxed);
  return inside.options.location == Location::pinned && refused ? Location::host : inside.options.location;
}

bool BufferCore::is_allocated() const {
  std::lock_guard const lock{*inside_};
  return inside_->has_any_storage();
}

bool BufferCore::valid_on_host() const {
  std::lock_guard const lock{*inside_};
  return inside_->holds(host_place, inside_->whole());
}

bool BufferCore::valid_on(Device& device) const {
  std::lock_guard const lock{*inside_};
  auto const place = inside_->find_place(device);
  return place && inside_->holds(*place, inside_->whole());
}

std::size_t BufferCore::missing_on(Device& device, ByteRange range) const {
  std::lock_guard const lock{*inside_};
  inside_->check_range(range);
  auto const& coherence = inside_->coherence;
  if (!coherence.has_data()) return 0;
  ByteRanges missing{range};
  if (auto const place = inside_->find_place(device)) missing.remove(coherence.valid(*place));
  if (inside_->shares(device)) missing.remove(coherence.valid(host_place));
  return missing.size_bytes();
}

std::vector<Device*> BufferCore::devices_with_memory() const {
  std::lock_guard const lock{*inside_};
  std::vector<Device*> found;
  for (std::size_t i = 0; i < inside_->sides.size(); ++i) {
    if (inside_->coherence.has_storage(static_cast<Place>(i + 1))) found.push_back(inside_->sides[i].device);
  }
  return found;
}

BufferState BufferCore::state_by_looking() const noexcept {
  if (inside_->mutex.is_lost()) return state_of(summary_.load(std::memory_order_acquire));
  try {
    // Asking changes what is known, and nothing else that can be seen.
    Guard inside(const_cast<BufferCore&>(*this));
    try {
      inside->collect_host_writes(true, false);
    } catch (std::exception const& failure) {
      // The next access finds it out again, and can raise it.
      log(LogLevel::debug, failure.what());
    }
    return inside->coherence.state();
  } catch (std::exception const&) {  // in a kernel that the lock's holder waits for: as it was when that began
    return state_of(summary_.load(std::memory_order_acquire));
  }
}

Tracking BufferCore::tracking() const noexcept {
  return inside_->tracking.load(std::memory_order_relaxed);
}

std::vector<LinkStatistics> BufferCore::links() const {
  std::lock_guard const lock{*inside_};
  return inside_->links;
}

BufferStatistics BufferCore::statistics() const noexcept {
  auto const& counters = inside_->counters;
  static Inside::Meters const none;
  std::shared_ptr<Inside::Meters const> seen;
  if (detail::SpinGuard const held{inside_->meters_lock}) seen = inside_->meters;  // a reset may take them away
  auto const& meters = seen == nullptr ? none : *seen;
  constexpr auto relaxed = std::memory_order_relaxed;  // counts alone: nothing else is published through them
  return {counters.upload_bytes.load(relaxed),
          counters.uploads.load(relaxed),
          counters.download_bytes.load(relaxed),
          counters.downloads.load(relaxed),
          counters.between_bytes.load(relaxed),
          counters.between.load(relaxed),
          counters.conflicting_marks.load(relaxed),
          counters.unmarked_writes.load(relaxed),
          counters.staged.load(relaxed),
          counters.unstaged.load(relaxed),
          meters.uploads.nanoseconds(),
          meters.downloads.nanoseconds(),
          meters.between.nanoseconds(),
          meters.uploads.untimed() + meters.downloads.untimed() + meters.between.untimed()};
}

void BufferCore::fail_later(std::exception_ptr failure) noexcept {
  if (inside_->mutex.is_lost()) return;  // every access to it fails
  try {
    Guard inside(*this, Inside::Watched::no);
    if (!inside->deferred) inside->deferred = std::move(failure);
  } catch (std::exception const& error) {  // in a kernel that the lock's holder waits for
    log(LogLevel::error, "a failure that no access to the buffer will tell:");
    log(LogLevel::error, error.what());
  }
}

void BufferCore::resolve_known(ByteRange range, std::exception_ptr const& known) noexcept {
  if (inside_->mutex.is_lost()) return;
  try {
    Guard inside(*this, Inside::Watched::no);
    try {
      inside->resolve_pending(range, true);
    } catch (WaitInterrupted const&) {  // NOLINT(bugprone-empty-catch): the next access resolves it
    } catch (...) {
      auto failure = std::current_exception();
      if (failure != known && !inside->deferred) inside->deferred = std::move(failure);
    }
  } catch (std::exception const&) {  // NOLINT(bugprone-empty-catch): in such a kernel; the next access resolves it
  }
}

void BufferCore::allocate(bool host, bool device) {
  detail::run_admitted([&](detail::AccessContext& context) {
    Guard inside(*this);
    if (host && !inside->ensure_host(context)) return false;
    if (device && !inside->ensure(context, *this, inside->place_of(inside->default_device()))) return false;
    inside->allocated = true;
    return true;
  });
}

void BufferCore::free() {
  Guard inside(*this);
  inside->check_not_captured();
  inside->drop_everything(inside->fresh_coherence(inside->bytes), inside->bytes);
  if (inside->written_map) inside->written_map->forget(inside->bytes);
  inside->allocated = false;
}

void BufferCore::reset() {
  Guard inside(*this);
  inside->check_not_captured();
  inside->drop_everything(inside->fresh_coherence(inside->bytes), inside->bytes);
  if (inside->written_map) inside->written_map->forget(inside->bytes);
  inside->forget_history();
}

void BufferCore::resize(std::size_t bytes) {
  detail::check_size(bytes);
  detail::run_admitted([&](detail::AccessContext& context) { return resize_once(context, bytes); });
}

bool BufferCore::resize_once(detail::AccessContext& context, std::size_t bytes) {
  Guard inside(*this);
  auto const before = inside->bytes;
  if (bytes == before) return true;
  inside->resolve_pending(inside->whole(), true);
  for (Place place = host_place; place < inside->coherence.place_count(); ++place) inside->check_not_leased(place);
  if (inside->host && !inside->host->pooled()) {
    throw UnsupportedOperation("resize", inside->display_name(), "it stands on memory that was wrapped");
  }
  ByteRange const kept{0, std::min(bytes, before)};
  // What is kept stays where it is current; what is current nowhere as a whole is first brought to the host.
  auto* on = inside->holds(host_place, kept) ? nullptr : inside->device_holding(kept);
  bool const has_data = inside->coherence.has_data() && !kept.empty();
  bool const was_pinned = inside->pinned.load(std::memory_order_relaxed);
  bool done = false;
  // New host memory says whether it could be locked, while the old may yet stay.
  auto const say_again = [&](void*) {
    if (!done) inside->pinned.store(was_pinned, std::memory_order_relaxed);
  };
  std::unique_ptr<Inside, decltype(say_again)> const unless_done{&*inside, say_again};
  std::shared_ptr<detail::Storage> storage;
  if (has_data && on != nullptr) {
    auto& queue = on->default_queue();
    storage = inside->new_device_memory(context, *this, *on, bytes, queue);
    if (!storage) return false;
    detail::transfer(*inside->manager, inside->named(), *inside->storage_at(inside->place_of(*on)), kept, *storage,
                     kept, &queue, {})
        .event.wait();
  } else if (has_data) {
    if (!inside->ensure_host(context)) return false;
    auto plan = inside->plan_read(host_place, kept);
    inside->check_lost(plan);
    inside->carry_out(plan);
    inside->commit(std::move(plan), {});
    storage = inside->new_host_memory(context, bytes);
    if (!storage) return false;
    inside->host->wait_to_read(kept);
    std::memcpy(storage->host_address(), inside->host->host_address(), kept.size());
  }
  auto const place = on == nullptr ? host_place : inside->place_of(*on);
  auto advice = inside->advice;
  advice.resize(before, bytes);
  auto coherence = inside->fresh_coherence(bytes);
  std::unique_ptr<detail::HostWrites> host_writes;
  if (storage) {
    storage->apply_advice(advice);
    if (on == nullptr) host_writes = inside->watched(storage, bytes);
    coherence.add_storage(place);
    auto const kept_as_it_is = coherence.plan_access(place, {0, bytes}, Intent::read, inside->cost());
    static_cast<void>(coherence.commit(kept_as_it_is));
  }
  // All that can fail has been done: until here the buffer is as it was.
  done = true;
  bool const pinned = storage && on == nullptr && inside->pinned.load(std::memory_order_relaxed);
  inside->drop_everything(std::move(coherence), bytes);
  bytes_.store(bytes, std::memory_order_relaxed);
  if (inside->written_map) inside->written_map->resize(before, bytes);
  inside->advice = std::move(advice);
  if (!storage) return true;
  (on == nullptr ? inside->host : inside->side(place).storage) = std::move(storage);
  inside->host_writes = std::move(host_writes);
  inside->collected = true;  // no address of this memory was given away
  inside->pinned.store(pinned, std::memory_order_relaxed);
  return true;
}

void BufferCore::release_device(Device* device) {
  Guard inside(*this);
  inside->resolve_pending(inside->whole(), true);
  for (std::size_t i = 0; i < inside->sides.size(); ++i) {
    auto const place = static_cast<Place>(i + 1);
    if (device != nullptr && inside->sides[i].device != device) continue;
    if (!inside->coherence.has_storage(place)) continue;
    inside->check_not_leased(place);
    inside->release_now(*this, place, host_place);
  }
}

void BufferCore::release_host() {
  detail::run_admitted([&](detail::AccessContext& context) {
    Guard inside(*this);
    inside->resolve_pending(inside->whole(), true);
    if (!inside->coherence.has_storage(host_place)) return true;
    inside->check_not_leased(host_place);
    return inside->release(context, *this, host_place, inside->place_of(inside->default_device()));
  });
}

void BufferCore::discard() {
  Guard inside(*this);
  inside->resolve_pending(inside->whole(), true, true);
  inside->coherence.discard();
  if (inside->written_map) inside->written_map->forget(inside->bytes);
}

void BufferCore::hint_next_use(Device& device, bool use) {
  Guard inside(*this);
  auto const next = use ? Inside::NextUse::soon : Inside::NextUse::none;
  inside->side(inside->place_of(device)).next_use = next;
}

int BufferCore::priority() const noexcept {
  return inside_->priority.load(std::memory_order_relaxed);
}

void BufferCore::set_priority(int priority) noexcept {
  inside_->priority.store(priority, std::memory_order_relaxed);
}

void BufferCore::advise(ByteRange range, Advice advice, Device* place, bool holds) {
  if (advice > Advice::accessed_by) {
    throw InvalidArgument("advice", fmt::format("{}", static_cast<unsigned>(advice)),
                          "read_mostly, preferred_location or accessed_by");
  }
  if (advice == Advice::read_mostly) place = nullptr;
  if (advice != Advice::read_mostly && place == nullptr) place = &default_device();
  Guard inside(*this);
  inside->check_range(range);
  AdvisedRange const advised{advice, place, range};
  holds ? inside->advice.give(advised) : inside->advice.take_back(advised);
  if (inside->host) inside->host->apply_advice(inside->advice);
  for (auto const& side : inside->sides) {
    if (side.storage) side.storage->apply_advice(inside->advice);
  }
}

std::vector<AdvisedRange> BufferCore::advice() const {
  std::lock_guard const lock{*inside_};
  return inside_->advice.list();
}

void BufferCore::validate() const {
  std::lock_guard const lock{*inside_};
  auto const& coherence = inside_->coherence;
  coherence.validate();
  for (std::size_t i = 0; i < inside_->sides.size(); ++i) {
    bool const has_memory = inside_->sides[i].storage != nullptr;
    if (inside_->bytes != 0 && has_memory != coherence.has_storage(static_cast<Place>(i + 1))) {
      throw std::logic_error("BufferCore: coherence and memory disagree on " +
                             std::string(inside_->sides[i].device->id()));
    }
  }
  if (inside_->bytes != 0 && (inside_->host != nullptr) != coherence.has_storage(host_place)) {
    throw std::logic_error("BufferCore: coherence and memory disagree on the host");
  }
}

BufferCore::Reclaimable BufferCore::reclaimable(Device& device) noexcept {
  auto& inside = *inside_;
  // An operation in progress may be this very thread's: trying a lock that one holds is undefined.
  std::unique_lock lock{inside, std::defer_lock};
  if (inside.pins.load(std::memory_order_acquire) == 0 && lock.try_lock()) {
    inside.record_fast_uses();
    return inside.offer(device);
  }
  Reclaimable in_use;
  bool const there =
      inside.on_several.load(std::memory_order_relaxed) || inside.only_on.load(std::memory_order_relaxed) == &device;
  in_use.busy = inside.holder.load(std::memory_order_relaxed) != std::this_thread::get_id();
  if (in_use.busy && there) in_use.bytes = inside.published_bytes.load(std::memory_order_relaxed);
  return in_use;
}

std::size_t BufferCore::try_reclaim(Device& device) {
  if (inside_->pins.load(std::memory_order_acquire) != 0) return 0;
  std::unique_lock lock{*inside_, std::try_to_lock};
  if (!lock.owns_lock() || inside_->shares(device)) return 0;
  lock.release();
  Guard inside(*this, std::adopt_lock);
  for (std::size_t i = 0; i < inside->sides.size(); ++i) {
    auto const& side = inside->sides[i];
    if (side.device != &device || !side.storage || side.storage->leased() || inside->captured) continue;
    inside->collect_host_writes(false);
    if (inside->would_wait_in_work()) return 0;
    inside->resolve_for_eviction(true);
    if (side.storage->is_read_by_work()) return 0;
    auto const bytes = side.storage->capacity();
    if (UNIMEM_MUTANT(evicted_unsaved)) inside->coherence.discard();
    inside->release_now(*this, static_cast<Place>(i + 1), host_place);
    return bytes;
  }
  return 0;
}

}  // namespace unimem
