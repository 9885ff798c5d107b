#include "pool/block_intake.hpp"

#include <algorithm>
#include <utility>

namespace unimem::detail {

void BlockIntake::take(Block& block, PoolAges::Time now) noexcept {
  auto* const own = pool_.thread_cache.own();
  pool_.counts.note_peak(own);
  pool_.counts.count_out(block);
  if (own != nullptr) pool_.free.catch_up(own->releases());
  pool_.free.catch_up(PoolAges::number_at(now));
  auto returning = uniting();
  if (!returning.has_value() || !unite(block, *returning)) pool_.free.add(block, now);
  if (own != nullptr) own->catch_up(pool_.free.releases());
  pool_.transit.changed();
}

BlockIntake::Returning BlockIntake::uniting() noexcept {
  auto* const extents = pool_.memory.extents();
  return extents != nullptr ? extents->returning_at_once() : std::nullopt;
}

bool BlockIntake::unite(Block& block, Extents::Returning& returning) noexcept {
  if (!block.origin.in_pages() || !block.settled() || !Zeroer::is_done(block)) return false;
  pool_.memory.hide(block);
  pool_.counts.count_returned(block);
  returning.give(std::exchange(block.memory, {}), std::exchange(block.origin, {}));
  block.place.unlink();
  pool_.spare.push_front(block);  // the next to be used, while it is in the caches
  return true;
}

void BlockIntake::take_back(Block& block, Returning& returning) noexcept {
  block.parked = false;
  pool_.counts.count_out(block);
  if (!returning.has_value() || !unite(block, *returning)) pool_.free.add_released_earlier(block);
}

void BlockIntake::take_back(std::span<Block* const> blocks) noexcept {
  if (blocks.empty()) return;
  std::size_t bytes = 0;
  for (auto const* const block : blocks) bytes += block->capacity();
  auto const lock = this->lock();
  auto* const own = pool_.thread_cache.own();
  // They are parked nowhere any more, and still counted as in use.
  pool_.counts.note_peak(own, pool_.thread_cache.bytes_beside(own) + bytes);
  auto returning = uniting();
  for (auto* const block : blocks) take_back(*block, returning);
  pool_.transit.changed();
}

template <class Take>
void BlockIntake::take_back_by(Magazines* of_peak, Take const& take) noexcept {
  auto const lock = this->lock();
  pool_.counts.note_peak(of_peak);
  auto returning = uniting();
  take([&](Block& block) { take_back(block, returning); });
  pool_.transit.changed();
}

void BlockIntake::take_back(Magazines& magazines) noexcept {
  take_back_by(&magazines, [&](auto const& each) {
    magazines.take_all(each);
    magazines.catch_up(pool_.free.releases());
  });
}

void BlockIntake::take_back(Depots& depots) noexcept {
  take_back_by(pool_.thread_cache.own(), [&](auto const& each) { depots.take_all(each); });
}

void BlockIntake::take_back_large(Magazines& magazines) noexcept {
  if (magazines.large_bytes() == 0) return;
  take_back_by(&magazines, [&](auto const& each) {
    magazines.take_all_large(each);
    magazines.catch_up(pool_.free.releases());
  });
}

void BlockIntake::take_back_large(Depots& depots) noexcept {
  if (depots.large_bytes() == 0) return;
  take_back_by(pool_.thread_cache.own(), [&](auto const& each) { depots.take_all_large(each); });
}

void BlockIntake::count_hits_of(Magazines const& magazines) noexcept {
  auto const lock = this->lock();
  pool_.counts.add_hits(magazines);
}

}  // namespace unimem::detail
