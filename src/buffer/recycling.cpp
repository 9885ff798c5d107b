#include <unimem/buffer/detail/buffer_core.hpp>

#include "buffer/inside.hpp"
#include "buffer/mutants.hpp"

#include <memory>
#include <utility>

// A buffer that changes owners: what of the old one must not be seen by the new one.

namespace unimem {

void BufferCore::Inside::forget_history() noexcept {
  allocated = false;
  pin_next = false;
  advice.clear();
  links.clear();
  last_failure.clear();
  for (auto* const counter : {&counters.upload_bytes, &counters.uploads, &counters.download_bytes, &counters.downloads,
                              &counters.between_bytes, &counters.between, &counters.conflicting_marks,
                              &counters.unmarked_writes, &counters.staged, &counters.unstaged}) {
    counter->store(0, std::memory_order_relaxed);
  }
  {
    detail::SpinGuard const held{meters_lock};
    meters.reset();
  }
  priority.store(options.priority, std::memory_order_relaxed);
  for (auto& one : sides) {
    one.history = {};
    one.next_use = NextUse::unsaid;
  }
}

template <class Do>
void BufferCore::Inside::for_each_storage(Do const& each) {
  if (host) each(*host);
  for (auto const& other : sides) {
    bool const apart = other.storage && other.storage != host;
    if (apart && !UNIMEM_MUTANT(zeros_on_the_host_alone)) each(*other.storage);
  }
}

bool BufferCore::recycle(bool zero) {
  Guard inside(*this);
  inside->check_not_captured();
  bool kept = true;
  inside->host_writes.reset();  // first of all: zeroing touches what is stale
  inside->for_each_storage([&](detail::Storage& storage) {
    bool const held = (storage.leased() || !storage.pooled() || storage.away()) && !UNIMEM_MUTANT(recycled_though_held);
    if (held) kept = false;
    if (zero) held ? storage.zero_at_end() : storage.zero();
  });
  if (kept) {
    if (!UNIMEM_MUTANT(recycled_failures_kept)) inside->pending.clear();
    inside->unrecorded.clear();
    inside->deferred = nullptr;
    inside->life.reset();
    if (!UNIMEM_MUTANT(recycled_dirty)) inside->coherence.discard();
  } else {
    inside->drop_everything(inside->fresh_coherence(inside->bytes), inside->bytes);
  }
  inside->forget_history();
  if (inside->written_map) inside->written_map->forget(inside->bytes);
  if (!kept) return false;
  for (Place place = host_place; place < inside->coherence.place_count(); ++place) {
    auto const& storage = inside->storage_at(place);
    if (!storage) continue;
    storage->hand_over();
    storage->apply_advice(inside->advice);
  }
  if (inside->host) inside->watch_host();
  return true;
}

void BufferCore::zero_at_end() {
  Guard inside(*this);
  inside->for_each_storage([](detail::Storage& storage) { storage.zero_at_end(); });
}

}  // namespace unimem
