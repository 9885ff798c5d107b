#include <unimem/core/error.hpp>
#include <unimem/device/device.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "buffer/inside.hpp"
#include "buffer/mutants.hpp"
#include "buffer/storage.hpp"
#include "manager/spill_files.hpp"

#include <memory>
#include <mutex>
#include <utility>

// How a buffer's host memory goes to a file while no address of it is given away, and comes back. Of all this coherence
// knows nothing: the host holds what it held, wherever that is.

namespace unimem {
namespace {

/// What disks do, to be compared with one another alone: what a device has as well costs nothing to give.
constexpr double file_bytes_per_second = 1e9;

}  // namespace

std::shared_ptr<detail::Storage> const& BufferCore::Inside::in_memory_of_host() const noexcept {
  if (host) return host;
  // A device that shares storage with the host may have come first.
  for (auto const& one : sides) {
    if (one.storage && shares(*one.device)) return one.storage;
  }
  return host;
}

bool BufferCore::Inside::may_spill(Location location) const noexcept {
  if (spill_files == nullptr || bytes < spill_files->min_bytes() || bytes == 0 || captured || host_writes) return false;
  auto const& storage = in_memory_of_host();
  if (storage == nullptr || (storage->exported() && !UNIMEM_MUTANT(spilled_though_exposed))) return false;
  return storage->may_go_away() && storage->location() == location && coherence.has_data();
}

BufferCore::Reclaimable BufferCore::Inside::spill_offer(Location location) const noexcept {
  Reclaimable offered;
  auto const& storage = in_memory_of_host();
  if (storage == nullptr || storage->away() || storage->location() != location) return offered;
  if (storage->leased() || storage->exported()) {
    offered.leased = storage->capacity();
    return offered;
  }
  if (!may_spill(location)) return offered;
  offered.bytes = storage->capacity();
  offered.priority = priority.load(std::memory_order_relaxed);
  bool const elsewhere = device_holding(whole()) != nullptr;
  offered.cost_seconds = elsewhere ? 0 : 2 * static_cast<double>(bytes) / file_bytes_per_second;
  offered.wait = host_uses ? host_uses->history.expected_wait(host_uses->clock) : 1;
  return offered;
}

void BufferCore::Inside::ensure_resident_slow(detail::Storage& storage, bool overwritten) {
  if (!host_uses) host_uses = std::make_unique<HostUses>(HostUses{manager->use_clock(detail::host_device())});
  host_uses->history.used(host_uses->clock, bytes);
  if (!storage.away()) return;
  auto [block, part] = new_host_block(bytes);
  storage.reload(std::move(block), part, !overwritten && !UNIMEM_MUTANT(spilled_and_not_read));
  storage.count_in(manager->usage_book(), key, id, options.made_by.get());
  storage.apply_advice(advice);
}

BufferCore::Reclaimable BufferCore::spillable(Location location) noexcept {
  auto& inside = *inside_;
  std::unique_lock lock{inside, std::defer_lock};
  if (inside.pins.load(std::memory_order_acquire) == 0 && lock.try_lock()) return inside.spill_offer(location);
  Reclaimable in_use;
  // Whether there is anything to be had only the lock's holder knows: that it is not this very thread is all we know.
  in_use.busy = inside.holder.load(std::memory_order_relaxed) != std::this_thread::get_id();
  if (in_use.busy) in_use.bytes = inside.spillable_bytes.load(std::memory_order_relaxed);
  return in_use;
}

std::size_t BufferCore::try_spill(Location location) {
  if (inside_->pins.load(std::memory_order_acquire) != 0) return 0;
  std::unique_lock lock{*inside_, std::try_to_lock};
  if (!lock.owns_lock()) return 0;
  lock.release();
  Guard inside(*this, std::adopt_lock);
  auto* const storage = inside->in_memory_of_host().get();
  bool const leased = storage != nullptr && storage->leased() && !UNIMEM_MUTANT(spilled_though_leased);
  if (leased || !inside->may_spill(location)) return 0;
  bool const waits = !UNIMEM_MUTANT(spilled_under_work);
  if (inside->would_wait_in_work()) return 0;
  inside->resolve_for_eviction(waits);
  if (waits) storage->wait_to_write(inside->whole());
  if (!inside->may_spill(location) || (waits && !storage->at_rest())) return 0;

  auto const given = storage->capacity();
  if (auto* const device = inside->device_holding(inside->whole())) {
    auto const place = *inside->find_place(*device);
    bool const nobody_shares = inside->host && inside->host.use_count() == 1;
    auto const plan = inside->coherence.plan_release(host_place, place, inside->cost());
    if (nobody_shares && plan.copies.empty() && inside->is_quiet(place, inside->whole())) {
      inside->release_now(*this, host_place, place);
      return given;
    }
  }
  auto const* const bytes = static_cast<std::byte const*>(storage->host_address());
  auto spilled = inside->spill_files->keep({bytes, inside->bytes});
  storage->apply_advice({});
  storage->spill(std::move(spilled));
  return given;
}

}  // namespace unimem
