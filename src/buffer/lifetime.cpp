#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>

#include "buffer/inside.hpp"
#include "buffer/mutants.hpp"
#include "core/spare_memory.hpp"
#include "device/current_task.hpp"

#include <fmt/format.h>

#include <atomic>
#include <cstddef>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

// How buffers begin and end, what keeps them alive, and what holding a buffer's lock comes with.

namespace unimem {

void detail::check_size(std::size_t bytes) {
  if (bytes <= static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max())) return;
  throw InvalidArgument("count", fmt::format("{} bytes", bytes), "at most 2^63 - 1 bytes");
}

BufferCore::Guard::Guard(BufferCore& core, Inside::Watched watched) : core_(core) {
  auto& inside = *core_.inside_;
  bool const pinned = inside.counts_pins.load(std::memory_order_relaxed);
  if (pinned) inside.pins.fetch_add(1, std::memory_order_relaxed);
  try {
    inside.lock(watched);
  } catch (...) {
    if (pinned) inside.pins.fetch_sub(1, std::memory_order_relaxed);
    throw;
  }
  // It may have become known to the manager while this waited.
  if (!pinned && inside.counts_pins.load(std::memory_order_relaxed)) {
    inside.pins.fetch_add(1, std::memory_order_relaxed);
  }
  entered();
}

BufferCore::Guard::Guard(BufferCore& core, std::adopt_lock_t /*adopt*/) noexcept : core_(core) {
  core_.inside_->counts_pins.store(true, std::memory_order_relaxed);  // for the manager, which knows it, or a test
  core_.inside_->pins.fetch_add(1, std::memory_order_relaxed);
  entered();
}

void BufferCore::Guard::entered() noexcept {
  core_.inside_->holder.store(std::this_thread::get_id(), std::memory_order_relaxed);
  auto* const fast_lease = core_.inside_->fast_lease.load(std::memory_order_relaxed);
  if (fast_lease == nullptr) return;
  if (!UNIMEM_MUTANT(doors_left_open)) fast_lease->close();
  core_.inside_->record_fast_uses();
}

BufferCore::Guard::~Guard() {
  unlock();
}

void BufferCore::Guard::unlock() noexcept {
  if (!std::exchange(locked_, false)) return;
  auto& inside = *core_.inside_;
  try {
    if (inside.host_writes && std::exchange(inside.collected, false)) inside.host_writes->remember(inside.coherence);
  } catch (...) {
    if (!inside.deferred) inside.deferred = std::current_exception();
  }
  auto const whole = inside.whole();
  // Only when it is another: readers whose side has not changed look at it without the lock.
  if (auto* const address = inside.host ? inside.host->host_address() : nullptr; core_.host_address_ != address) {
    core_.host_address_ = address;
  }
  auto summary = static_cast<std::uint32_t>(inside.coherence.state());
  bool const has_to_look = inside.tracking == Tracking::pages && inside.host_writes;
  if (has_to_look || !inside.unrecorded.empty()) summary |= by_looking;
  if (inside.host && inside.host->exported_for_writing()) summary |= host_exposed;
  bool const arrived = !inside.host || inside.host->arrived(whole);
  bool const told_at_once = arrived && !inside.deferred && !inside.captured;
  // Lock-free readers are not recorded, so the address is published only once it has been exported anyway.
  bool const may_be_given = inside.spill_files == nullptr || (inside.host && inside.host->exported());
  bool const all_written = !inside.written_map || inside.written_map->complete();  // or a read may have to be reported
  if (told_at_once && may_be_given && all_written && inside.holds(host_place, whole)) {
    summary |= host_current;
    bool const quiet = inside.pending.empty() && (!inside.host || inside.host->idle());
    if (quiet && !whole.empty() && inside.coherence.written(host_place).contains(whole)) summary |= host_exclusive;
  }
  auto* const current = inside.host_writes || inside.deferred || inside.captured ? nullptr : inside.quiet_device();
  core_.current_on_.store(current, std::memory_order_release);
  // Release: a thread that sees the summary also sees the address, and the bytes that were copied to it.
  core_.summary_.store(summary, std::memory_order_release);
  inside.open_fast_lease();
  inside.publish_places();
  bool const pinned = inside.counts_pins.load(std::memory_order_relaxed);
  inside.holder.store({}, std::memory_order_relaxed);
  inside.unlock();
  if (pinned) inside.pins.fetch_sub(1, std::memory_order_relaxed);
}

void BufferCore::Inside::become_resident(BufferCore& self) {
  if (resident) return;
  // Before others know it: they ask whether a thread works with it, and let go of it by what they find here.
  if (!counts_pins.exchange(true, std::memory_order_relaxed)) pins.fetch_add(1, std::memory_order_relaxed);
  resident = true;
  try {
    manager->add_resident(self);
  } catch (...) {
    resident = false;
    throw;
  }
}

std::shared_ptr<BufferCore> BufferCore::make(std::size_t bytes, BufferOptions&& options) {
  auto* const memory = detail::SpareMemory<BufferCore>::take();
  BufferCore* core = nullptr;
  try {
    core = new (memory) BufferCore(bytes, std::move(options));
  } catch (...) {
    detail::SpareMemory<BufferCore>::give(memory);
    throw;
  }
  // Not with its count in one piece: a reclaiming thread may keep it when its owners are gone.
  return {core, [](BufferCore* kept) { kept->let_go(); }, detail::SpareAllocator<BufferCore>{}};
}

std::shared_ptr<BufferCore> BufferCore::make(std::size_t bytes, BufferOptions&& options,
                                             std::source_location const& site) {
  if (options.name.empty() && options.site.empty()) options.site = Name::of(site);
  return make(bytes, std::move(options));
}

std::shared_ptr<BufferCore> BufferCore::make(std::size_t bytes, BufferOptions&& options, Wrapped wrapped) {
  auto core = make(bytes, std::move(options));
  if (core->tracking() == Tracking::pages) {
    throw UnsupportedOperation(
        "Tracking::pages", "memory that somebody else allocated",
        "its pages may hold other things, too; a buffer of its own, filled by copy_from, can be tracked");
  }
  core->move_onto(std::move(wrapped));
  return core;
}

BufferCore::BufferCore(std::size_t bytes, BufferOptions&& options)
    : bytes_(bytes), inside_(std::make_unique<Inside>(bytes, std::move(options))) {
  detail::check_size(bytes);
  if (inside_->spill_files == nullptr) return;
  inside_->counts_pins.store(true, std::memory_order_relaxed);
  inside_->resident = true;
  inside_->manager->add_resident(*this);  // also the host's memory may be asked for
}

std::shared_ptr<void> BufferCore::hold() noexcept {
  auto& keepers = inside_->keepers;
  auto known = keepers.load(std::memory_order_relaxed);
  do {
    if (known == 0) return nullptr;
  } while (!keepers.compare_exchange_weak(known, known + 1, std::memory_order_relaxed));
  try {
    return {static_cast<void*>(this), [](void* kept) { static_cast<BufferCore*>(kept)->let_go(); }};
  } catch (std::bad_alloc const&) {  // it has been let go of again
    return nullptr;
  }
}

void BufferCore::let_go() noexcept {
  // What the manager does not know has no other keeper. Acquire and release: the thread that ends it comes behind all
  // others.
  if (inside_->resident && inside_->keepers.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  std::destroy_at(this);
  detail::SpareMemory<BufferCore>::give(this);
}

void BufferCore::move_onto(Wrapped wrapped) {
  auto const bytes = size_bytes();
  auto storage = std::make_shared<detail::Storage>(unimem::device("cpu"), wrapped.pointer, bytes, wrapped.location);
  Guard inside(*this);
  if (bytes != 0) {  // or it is given back when the buffer's lock is let go of
    inside->host = storage;
    inside->host->mark_exported(true);
    inside->pinned.store(wrapped.location == Location::pinned, std::memory_order_relaxed);
    inside->watch_host();
  }
  inside->unified = nullptr;  // its memory is what it is
  if (inside->written_map) inside->written_map->wrote({0, bytes});
  inside->allocated = true;
  inside->coherence.add_storage(host_place);
  auto const plan = inside->coherence.plan_access(host_place, {0, bytes}, Intent::read, inside->cost());
  static_cast<void>(inside->coherence.commit(plan));
  storage->own(std::move(wrapped.ownership));  // last: what is refused stays its owner's
}

BufferCore::~BufferCore() {
  bool const held_by_work =
      detail::CurrentTask::is_ending() && inside_->holder.load(std::memory_order_relaxed) != std::thread::id{};
  if (held_by_work || inside_->mutex.is_lost()) {
    // Work has called `exit` that an operation on this static buffer was waiting for, or this is a forked child and a
    // thread of its parent was in the middle of an operation: the lock is held for good.
    static std::atomic<Inside*> kept{nullptr};  // reachable, for leak checkers
    if (inside_->resident) inside_->manager->remove_resident(*this);
    auto* const stays = inside_.release();
    stays->kept_before = kept.exchange(stays);
    return;
  }
  if (auto* const fast_lease = inside_->fast_lease.load(std::memory_order_relaxed)) fast_lease->abandon();
  if (!inside_->resident) return;
  {
    // Before it is unknown: a thread that needs memory just now would see it taken without a holder, and give up.
    inside_->lock(Inside::Watched::no);
    std::lock_guard const lock{*inside_, std::adopt_lock};
    for (auto& side : inside_->sides) side.storage.reset();
    inside_->host.reset();
  }
  inside_->manager->remove_resident(*this);
}

}  // namespace unimem
