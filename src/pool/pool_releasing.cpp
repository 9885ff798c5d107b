#include "pool/pool_core.hpp"

#include "pool/allocation_recorder.hpp"
#include "pool/mutants.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

// What becomes of blocks that their owners, or the threads that kept them, have given back to a pool.

namespace unimem::detail {
namespace {

/// Where ages matter releases are numbered by their time: what threads that know nothing of each other have numbered is
/// in order then.
std::uint64_t number_at(std::chrono::steady_clock::time_point time) noexcept {
  return static_cast<std::uint64_t>(std::max<std::chrono::nanoseconds>(time.time_since_epoch(), {}).count());
}

}  // namespace

void PoolCore::release_otherwise(Block& block, Event last_use) noexcept {
  if (recorder_ != nullptr) recorder_->released(block, last_use);
  if (UNIMEM_MUTANT(earlier_work_forgotten)) block.inherited = {};
  block.used_until(last_use);
  if (zeroer_ != nullptr) zeroer_->begin(block);
  block.parked_for = UNIMEM_MUTANT(parked_for_anybody) ? 0 : block.only_queue();
  if (block.parked_for == 0) hide(block);
  auto const time = now();
  if (ages_are_due(time)) look_at_ages(time);  // while the block is in use and keeps the core alive
  block.cached_since = time;
  if (block.parked_for == Block::no_queue || !thread_cache_.keep(block, number_at(time))) release_here(block, time);
}

void PoolCore::release_here(Block& block, Time time) noexcept {
  if (block.settled()) hide(block);
  ++block.generation;

  Lock lock{mutex_};
  Visit const visit{*this};
  auto* const own = thread_cache_.own();
  note_peak(own);
  count_out(block);
  if (own != nullptr) free_.catch_up(own->releases());
  free_.catch_up(number_at(time));
  if (auto returning = uniting(); !unite(block, returning)) free_.add(live_, block, time);
  if (own != nullptr) own->catch_up(free_.releases());
  changed();
  if (self_ != nullptr) {
    shrink(lock, 0);
    leave(lock);
    return;
  }
  auto victims = free_.take_cached_before(expiry(time));
  if (free_.bytes() > options_.release_threshold) {
    victims.splice(victims.end(), free_.take_oldest(free_.bytes() - options_.release_threshold, false));
  }
  give_back(lock, std::move(victims));
  trim_pages(lock, time);
  if (self_ != nullptr) shrink(lock, 0);  // the pool has ended meanwhile
  leave(lock);
}

bool PoolCore::unite(Block& block, std::optional<Extents::Returning>& returning) noexcept {
  if (!returning.has_value() || !block.origin.in_pages() || !block.settled() || !Zeroer::is_done(block)) return false;
  hide(block);
  counts_.size_classes[size_class(block.capacity())].pooled_bytes -= block.capacity();
  returning->give(std::exchange(block.memory, {}), std::exchange(block.origin, {}));
  spare_.splice(spare_.begin(), live_, block.place);  // the next to be used, while it is in the caches
  return true;
}

std::optional<Extents::Returning> PoolCore::uniting() noexcept {
  return extents_ != nullptr ? extents_->returning_at_once() : std::nullopt;
}

void PoolCore::take_back(Block& block, std::optional<Extents::Returning>& returning) noexcept {
  block.parked = false;
  count_out(block);
  if (!unite(block, returning)) free_.add_released_earlier(live_, block);
}

void PoolCore::take_back(std::span<Block* const> blocks) noexcept {
  if (blocks.empty()) return;
  std::size_t bytes = 0;
  for (auto const* const block : blocks) bytes += block->capacity();
  Lock const lock{mutex_};
  auto* const own = thread_cache_.own();
  // They are parked nowhere any more, and still counted as in use.
  note_peak(own, thread_cache_.bytes_beside(own) + (UNIMEM_MUTANT(peaks_miscounted) ? 0 : bytes));
  auto returning = uniting();
  for (auto* const block : blocks) take_back(*block, returning);
  changed();
}

template <class Take>
void PoolCore::take_back_by(Magazines* of_peak, Take const& take) noexcept {
  Lock const lock{mutex_};
  note_peak(of_peak);
  auto returning = uniting();
  take([&](Block& block) { take_back(block, returning); });
  changed();
}

void PoolCore::take_back(Magazines& magazines) noexcept {
  take_back_by(&magazines, [&](auto const& each) {
    magazines.take_all(each);
    magazines.catch_up(free_.releases());
  });
}

void PoolCore::take_back(Depots& depots) noexcept {
  take_back_by(thread_cache_.own(), [&](auto const& each) { depots.take_all(each); });
}

void PoolCore::take_back_large(Magazines& magazines) noexcept {
  if (magazines.large_bytes() == 0) return;
  take_back_by(&magazines, [&](auto const& each) {
    magazines.take_all_large(each);
    magazines.catch_up(free_.releases());
  });
}

void PoolCore::take_back_large(Depots& depots) noexcept {
  if (depots.large_bytes() == 0) return;
  take_back_by(thread_cache_.own(), [&](auto const& each) { depots.take_all_large(each); });
}

std::size_t PoolCore::give_back(Lock& lock, BlockList victims) noexcept {
  if (victims.empty()) return 0;
  std::size_t bytes = 0;
  for (auto const& block : victims) {
    bytes += block.capacity();
    counts_.size_classes[size_class(block.capacity())].pooled_bytes -= block.capacity();
  }
  returning_ += bytes;
  auto const forks = forks_;
  // Once the pool has ended, only its own upstream could use it again.
  bool const last = self_ != nullptr && !objects_.has_upstream();
  Settlers::One settler;
  settlers_.enter(settler);
  lock.unlock();
  for (auto& block : victims) {
    if (!UNIMEM_MUTANT(returned_at_once)) block.wait();
    expose(block);
  }
  auto unerased = zeroer_ == nullptr || last ? BlockList{} : take_unerased(victims);
  if (extents_ != nullptr) {
    auto returning = extents_->returning();
    for (auto& block : victims) {
      if (block.origin.in_pages()) hide(block);  // they stay the pool's
      returning.give(std::exchange(block.memory, {}), std::exchange(block.origin, {}));
    }
  } else {
    for (auto& block : victims) objects_.give(std::exchange(block.memory, {}));
  }
  lock.lock();
  settlers_.leave(settler);
  settle(returning_, bytes, forks);
  spare_.splice(spare_.end(), victims);
  bytes -= keep_out_of_use(std::move(unerased));
  if (self_ != nullptr) give_back_withheld(lock);  // the pool has ended meanwhile
  changed();
  return bytes;
}

BlockList PoolCore::take_unerased(BlockList& victims) noexcept {
  BlockList unerased;
  for (auto it = victims.begin(); it != victims.end();) {
    auto& block = *it++;
    if (!zeroer_->erased(block) && block.origin.in_pages()) unerased.splice(unerased.end(), victims, block.place);
  }
  return unerased;
}

std::size_t PoolCore::keep_out_of_use(BlockList blocks) noexcept {
  std::size_t bytes = 0;
  auto* const own = thread_cache_.own();
  note_peak(own);
  for (auto& block : blocks) {
    block.name = {};
    bytes += block.capacity();
    ++counts_.active_allocations;
    counts_.size_classes[size_class(block.capacity())].active_bytes += block.capacity();
  }
  counts_.active_bytes += bytes;
  note_marks();
  note_peak(own);
  withheld_.splice(withheld_.end(), blocks);
  return bytes;
}

void PoolCore::withdraw(Lock& lock, Block& block, std::size_t bytes) noexcept {
  lock.lock();
  count_out(block);
  uncount(bytes);
  BlockList one;
  one.splice(one.end(), live_, block.place);
  give_back(lock, std::move(one));
}

void PoolCore::give_back_withheld(Lock& lock) noexcept {
  for (auto& block : withheld_) count_out(block);
  give_back(lock, std::exchange(withheld_, {}));
}

void PoolCore::settle(std::size_t& in_transit, std::size_t bytes, unsigned forks) noexcept {
  if (forks == forks_) in_transit -= bytes;
}

void PoolCore::changed() noexcept {
  ++changes_;
  if (waiting_ != 0) changed_.notify_all();
}

void PoolCore::hide(Block const& block) noexcept {
  if (!poisons || !host_memory()) return;
  if (auto* const address = device_.address(block.memory)) poison(address, block.capacity());
}

void PoolCore::expose(Block const& block) noexcept {
  if (!poisons || !host_memory()) return;
  if (auto* const address = device_.address(block.memory)) unpoison(address, block.capacity());
}

bool PoolCore::host_memory() const noexcept {
  return location_ != Location::device || device_.shares_storage_with_host();
}

}  // namespace unimem::detail
