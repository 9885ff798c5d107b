#include <unimem/buffer/buffer_core.hpp>

#include "buffer/inside.hpp"
#include "buffer/mutants.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

// A buffer that changes owners: what of the old one must not be seen by the new one.

namespace unimem {

void BufferCore::Inside::forget_history(std::shared_ptr<Meters> fresh) noexcept {
  allocated = false;
  advice.clear();
  links.clear();
  last_failure.clear();
  for (auto* const counter : {&counters.upload_bytes, &counters.uploads, &counters.download_bytes, &counters.downloads,
                              &counters.between_bytes, &counters.between, &counters.conflicting_marks,
                              &counters.unmarked_writes, &counters.staged, &counters.unstaged}) {
    counter->store(0, std::memory_order_relaxed);
  }
  meters = std::move(fresh);
  priority.store(options.priority, std::memory_order_relaxed);
  for (auto& one : sides) {
    one.history = {};
    one.next_use = NextUse::unsaid;
  }
}

std::shared_ptr<BufferCore::Inside::Meters> BufferCore::Inside::fresh_meters() const {
  auto const untouched = [](TransferMeter const& one) { return one.nanoseconds() == 0 && one.untimed() == 0; };
  bool const fresh = meters.use_count() == 1 && untouched(meters->uploads) && untouched(meters->downloads) &&
                     untouched(meters->between);
  return fresh ? meters : std::make_shared<Meters>();
}

void BufferCore::Inside::zero_storage() {
  constexpr std::array<std::byte, 1> zero{};
  auto const zero_out = [&](detail::Storage& storage, Queue& queue, bool by_address) {
    ByteRange const all_of_it{0, storage.memory().bytes};
    storage.order_write(queue, all_of_it);
    auto const memory = by_address ? storage.host_window(all_of_it) : storage.window(all_of_it);
    storage.hazards().written_by(all_of_it, queue.fill(memory, zero));
  };
  if (host) zero_out(*host, detail::host_device().default_queue(), true);
  for (auto const& other : sides) {
    bool const apart = other.storage && other.storage != host;
    if (apart && !UNIMEM_MUTANT(zeros_on_the_host_alone))
      zero_out(*other.storage, other.device->default_queue(), false);
  }
}

bool BufferCore::recycle(bool zero) {
  Guard inside(*this);
  inside->check_not_captured();
  auto meters = inside->fresh_meters();
  if (zero) inside->zero_storage();
  auto const in_other_hands = [](std::shared_ptr<detail::Storage> const& storage) {
    if (UNIMEM_MUTANT(recycled_though_held)) return false;
    return storage && (storage->leased() || !storage->pooled());
  };
  bool const kept = !in_other_hands(inside->host) &&
                    std::ranges::none_of(inside->sides, [&](auto const& side) { return in_other_hands(side.storage); });
  if (kept) {
    if (!UNIMEM_MUTANT(recycled_failures_kept)) inside->pending.clear();
    inside->deferred = nullptr;
    inside->host_writes.reset();
    inside->life.reset();
    if (!UNIMEM_MUTANT(recycled_dirty)) inside->coherence.discard();
  } else {
    inside->drop_everything(bytes_);
  }
  inside->forget_history(std::move(meters));
  if (!kept) return false;
  for (Place place = host_place; place < inside->coherence.place_count(); ++place) {
    auto const& storage = inside->storage_at(place);
    if (!storage) continue;
    storage->hand_over();
    storage->heed(inside->advice);
  }
  if (inside->host) inside->watch_host();
  return true;
}

}  // namespace unimem
