#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/core/error.hpp>
#include <unimem/core/log.hpp>
#include <unimem/device/discovery.hpp>

#include "buffer/buffer_parts.hpp"
#include "buffer/host_device.hpp"
#include "buffer/replica.hpp"
#include "buffer/replica_allocator.hpp"
#include "buffer/replica_memory.hpp"
#include "core/spare_memory.hpp"
#include "device/current_task.hpp"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

// How buffers begin and end, and what keeps them alive.

namespace unimem {

using detail::BackingFile;
using detail::BufferParts;
using detail::Replica;
using detail::ReplicaAllocator;
using detail::ReplicaMemory;

std::shared_ptr<BufferCore> BufferCore::make(std::size_t bytes, BufferOptions&& options) {
  bool const has_name = !options.name.empty();
  auto core = make(bytes, std::move(options), std::shared_ptr<BackingFile>{});
  if (has_name) core->become_listed();
  return core;
}

std::shared_ptr<BufferCore> BufferCore::make(std::size_t bytes, BufferOptions&& options,
                                             std::shared_ptr<BackingFile> file) {
  auto* const memory = detail::SpareMemory<BufferCore>::take();
  BufferCore* core = nullptr;
  try {
    core = new (memory) BufferCore(bytes, std::move(options), std::move(file));
  } catch (...) {
    detail::SpareMemory<BufferCore>::give(memory);
    throw;
  }
  // Not with its count in one piece: a reclaiming thread may keep it when its owners are gone.
  return {core, [](BufferCore* kept) { kept->end_ownership(); }, detail::SpareAllocator<BufferCore>{}};
}

std::shared_ptr<BufferCore> BufferCore::make(std::size_t bytes, BufferOptions&& options,
                                             std::source_location const& site) {
  if (options.name.empty() && options.site.empty()) options.site = Name::of(site);
  return make(bytes, std::move(options));
}

std::shared_ptr<BufferCore> BufferCore::make(std::size_t bytes, BufferOptions&& options, Wrapped wrapped) {
  auto core = make(bytes, std::move(options), std::shared_ptr<BackingFile>{});
  if (core->tracking() == Tracking::pages) {
    throw UnsupportedOperation(
        "Tracking::pages", "memory that somebody else allocated",
        "its pages may hold other things, too; a buffer of its own, filled by copy_from, can be tracked");
  }
  core->move_onto(std::move(wrapped));
  core->become_listed();
  return core;
}

BufferCore::BufferCore(std::size_t bytes, BufferOptions&& options, std::shared_ptr<BackingFile> file)
    : parts_(std::make_unique<BufferParts>(bytes, std::move(options), *this, published_)) {
  detail::check_size(bytes);
  parts_->file = std::move(file);
  if (parts_->terms.spill_files == nullptr && parts_->file == nullptr) return;
  parts_->lock.count_operations_to_come();
  parts_->resident = true;
  parts_->terms.manager->add_resident(*this);  // also the host's memory may be asked for
}

void BufferCore::become_listed() {
  auto const& options = parts_->terms.options;
  if (options.name.empty() || options.name_use == NameUse::reports) return;
  parts_->listed = true;
  try {
    parts_->terms.manager->add_named(*this);
  } catch (...) {
    parts_->listed = false;
    throw;
  }
}

std::shared_ptr<void> BufferCore::hold() noexcept {
  auto& keepers = parts_->keepers;
  // Relaxed: who holds it already, or the manager that lists it, has ordered its making before this.
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

void BufferCore::end_ownership() noexcept {
  if (parts_->made.inherited()) return;
  if (parts_->listed) parts_->terms.manager->remove_named(*this);
  // The owner of borrowed memory may free it now: no other thread may still be evicting into it, nor hold the buffer.
  if (parts_->borrows && (parts_->listed || parts_->resident)) {
    if (!parts_->resident || parts_->terms.manager->retire_resident(*this)) {
      await_keepers();
    } else {
      log(LogLevel::error,
          "a buffer over borrowed memory ends in the middle of work that an eviction of it waits for:");
      log(LogLevel::error, "the memory is its owner's again when that eviction has ended, and not when the work has");
    }
  }
  let_go();
}

void BufferCore::await_keepers() const noexcept {
  constexpr std::chrono::milliseconds step{1};
  constexpr int soon = 1000;
  for (int tries = 0; parts_->keepers.load(std::memory_order_acquire) != 1; ++tries) {
    // An eviction ends soon; a file that it is saved to may take its time.
    tries < soon ? std::this_thread::yield() : std::this_thread::sleep_for(step);
  }
}

void BufferCore::let_go() noexcept {
  if (parts_->made.inherited()) return;
  // What the manager does not know has no other keeper. Acquire and release: the thread that ends it comes behind all
  // others.
  bool const has_other_keepers =
      parts_->listed.load(std::memory_order_relaxed) || parts_->resident.load(std::memory_order_relaxed);
  if (has_other_keepers && parts_->keepers.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  write_back_at_end();
  std::destroy_at(this);
  detail::SpareMemory<BufferCore>::give(this);
}

void BufferCore::move_onto(Wrapped wrapped) {
  auto const bytes = size_bytes();
  parts_->borrows = !wrapped.ownership.deleter();
  auto replica =
      std::make_shared<Replica>(ReplicaMemory(detail::host_device(), wrapped.pointer, bytes, wrapped.location));
  Guard parts(*parts_);
  if (bytes != 0) {  // or it is given back when the buffer's lock is let go of
    replica->holds().mark_exported(true);
    parts->replicas.put(host_place, replica);
    parts->pinned.store(wrapped.location == Location::pinned, std::memory_order_relaxed);
    ReplicaAllocator(*parts).watch_host();
  }
  parts->replicas.places.host_has_its_own();
  parts->watch.wrote(ByteRange{0, bytes});
  parts->allocated = true;
  parts->replicas.coherence.add_storage(host_place);
  auto const plan =
      parts->replicas.coherence.plan_access(host_place, {0, bytes}, Intent::read, parts->replicas.places.cost());
  parts->replicas.coherence.commit_certain(plan);
  replica->own(std::move(wrapped.ownership));  // last: what is refused stays its owner's
}

BufferCore::~BufferCore() {
  bool const held_by_work = detail::CurrentTask::is_ending() && parts_->lock.holder() != std::thread::id{};
  if (held_by_work) {
    // Work has called `exit` that an operation on this static buffer was waiting for: the lock is held for good.
    static std::atomic<BufferParts*> kept{nullptr};  // reachable, for leak checkers
    if (parts_->resident) parts_->terms.manager->remove_resident(*this);
    auto* const stays = parts_.release();
    stays->kept_before = kept.exchange(stays);
    return;
  }
  if (auto* const fast_lease = parts_->fast_lease.load(std::memory_order_relaxed)) fast_lease->abandon();
  if (!parts_->resident) return;
  {
    // Before it is unknown: a thread that needs memory just now would see it taken without a holder, and give up.
    parts_->lock.lock(parts_->terms, detail::Watched::no);
    std::lock_guard const lock{parts_->lock, std::adopt_lock};
    for (Place place = host_place; place < parts_->replicas.places.count(); ++place) parts_->replicas.drop(place);
  }
  parts_->terms.manager->remove_resident(*this);
}

}  // namespace unimem
