#include "pool/cold_acquire.hpp"

#include <unimem/core/error.hpp>

#include "device/watched_wait.hpp"

#include <algorithm>

namespace unimem::detail {
namespace {

/// What a pool may hold beyond the most it ever had in use at once: a fifth of that, or this where it is more. A
/// program that goes through many sizes would otherwise collect one block of each; one that is small anyway need not be
/// kept tidy.
constexpr std::size_t spare_budget = std::size_t{64} << 20;

/// Which part of what is reserved may stay parked in small blocks, or in large ones, while memory is taken in its
/// place. The small ones are many: bringing them back again and again would leave nothing where it is wanted next.
constexpr std::size_t flush_threshold_small = 64;
constexpr std::size_t flush_threshold_large = 128;

void add_pending(Block const& block, std::vector<Event>& events) {
  for (auto const event : {block.inherited, block.last_use}) {
    if (!event.ready()) events.push_back(event);
  }
}

}  // namespace

Block* ColdAcquire::run() {
  for (;;) {
    switch (climb()) {
      case Step::granted:
        return block_;
      case Step::would_wait:
        return nullptr;
      case Step::changed:
        break;
      case Step::nothing:
        pool_.counts.count_failure();
        throw OutOfMemory(reports_.shortage(lock_, request_.bytes, refusal_));
    }
  }
}

template <auto... steps>
ColdAcquire::Step ColdAcquire::first_of() {
  auto came_of_it = Step::nothing;
  static_cast<void>((((came_of_it = (this->*steps)()) != Step::nothing) || ...));
  return came_of_it;
}

ColdAcquire::Step ColdAcquire::climb() {
  return first_of<&ColdAcquire::reuse_cached,       // a block that fits, waiting for its work if need be
                  &ColdAcquire::carve_free,         // free parts of pages
                  &ColdAcquire::flush_much_parked,  // what threads keep, once, where that is much
                  &ColdAcquire::give_old_back,      // by age
                  &ColdAcquire::measure,            // what may be taken
                  &ColdAcquire::give_surplus_back,  // where there is room: these two come to a block or a refusal
                  &ColdAcquire::grow,
                  &ColdAcquire::flush_all_parked,   // all that threads keep, and they keep nothing until this is over
                  &ColdAcquire::give_settled_back,  // cached blocks that no work is pending on
                  &ColdAcquire::await_transit,      // memory of other threads on its way
                  &ColdAcquire::stop_at_pending,    // where work is not to be waited for: the next two would
                  &ColdAcquire::await_oldest,       // work, where a wait can be interrupted
                  &ColdAcquire::give_pending_back,  // work, as it comes
                  &ColdAcquire::ask_sharing_pools,  // what they have only cached
                  &ColdAcquire::drop_rounding>();   // the last try
}

ColdAcquire::Step ColdAcquire::reuse_cached() {
  auto* const cached = pool_.free.find(request_.bytes, largest_, request_.queue, pending_will_do_);
  if (cached == nullptr) return Step::nothing;
  if (stops_at_work() && supply_.would_wait(*cached, request_)) return Step::would_wait;
  if (request_.queue == 0 && is_watched()) {
    std::vector<Event> pending;
    add_pending(*cached, pending);
    if (await_watched(pending)) return Step::changed;
  }
  return grant(supply_.reuse(lock_, *cached, request_), Step::changed);
}

ColdAcquire::Step ColdAcquire::carve_free() {
  return grant(supply_.carve(lock_, request_), Step::nothing);
}

ColdAcquire::Step ColdAcquire::flush_much_parked() {
  if (parked_ != Parked::unseen) return Step::nothing;
  parked_ = Parked::seen;
  // Where much is reserved, a little more is taken rather than all threads interrupted for each new block.
  auto const* const extents = pool_.memory.extents();
  auto const reserved = extents == nullptr ? 0 : extents->counts().reserved;
  if (pool_.thread_cache.bytes_beside(nullptr) <= reserved / flush_threshold_large) return Step::nothing;
  lock_.unlock();
  bool const any = pool_.thread_cache.flush_beyond(reserved / flush_threshold_small, reserved / flush_threshold_large);
  lock_.lock();
  return any ? Step::changed : Step::nothing;
}

ColdAcquire::Step ColdAcquire::give_old_back() {
  trimmer_.trim_by_age(lock_, request_.time);
  return Step::nothing;
}

ColdAcquire::Step ColdAcquire::measure() {
  bool const may_grow = growth_ == Growth::untried;
  if (may_grow) returns_to_share_ = pool_.limits.returns();
  limit_ = pool_.limits.beside_others();
  capacity_ = pool_.affordable(request_.bytes, size_ == Size::rounded, limit_);
  needed_ = may_grow ? capacity_ - std::min(capacity_, pool_.room(limit_)) : capacity_;
  return Step::nothing;
}

ColdAcquire::Step ColdAcquire::give_surplus_back() {
  return has_room() && give_back(take_surplus()) ? Step::changed : Step::nothing;
}

ColdAcquire::Step ColdAcquire::grow() {
  if (!has_room()) return Step::nothing;
  auto const peak =
      std::max(pool_.counts.all().peak_active_bytes, pool_.counts.active_bytes() + pool_.transit.growing() + capacity_);
  auto const refusals = pool_.limits.refusals();
  auto* const fresh =
      supply_.make(lock_, {.bytes = request_.bytes, .capacity = capacity_, .peak = peak}, request_, refusal_);
  growth_ = pool_.limits.refusals() != refusals ? Growth::refused_by_share : Growth::refused;
  return grant(fresh, Step::changed);  // the lock was dropped: a block that fits may have come back
}

ColdAcquire::Step ColdAcquire::flush_all_parked() {
  if (parked_ == Parked::flushed) return Step::nothing;
  parked_ = Parked::flushed;
  pool_.counts.count_flush();
  lock_.unlock();
  flush_.emplace(pool_.thread_cache);
  lock_.lock();
  return Step::changed;
}

ColdAcquire::Step ColdAcquire::give_settled_back() {
  return freed(give_back(pool_.free.take_oldest(needed_, false)));
}

ColdAcquire::Step ColdAcquire::await_transit() {
  if (stops_at_work()) return pool_.transit.is_empty() ? Step::nothing : Step::would_wait;
  if (!request_.options.may_wait && pool_.transit.is_behind_work()) return Step::nothing;
  bool const waited = pool_.transit.await(lock_);
  if (waited) pool_.counts.count_wait();
  return freed(waited);
}

ColdAcquire::Step ColdAcquire::stop_at_pending() {
  bool const would_wait = stops_at_work() && may_wait_ && needed_ != 0 && !pool_.free.by_age().empty();
  return would_wait ? Step::would_wait : Step::nothing;
}

ColdAcquire::Step ColdAcquire::await_oldest() {
  if (!may_wait_ || !is_watched()) return Step::nothing;
  std::vector<Event> pending;
  std::size_t found = 0;
  for (auto const& block : pool_.free.by_age()) {
    if (found >= needed_) break;
    found += block.capacity();
    add_pending(block, pending);
  }
  bool const waited = await_watched(pending);
  if (waited) pool_.counts.count_wait();
  return freed(waited);
}

ColdAcquire::Step ColdAcquire::give_pending_back() {
  bool const any = may_wait_ && give_back(pool_.free.take_oldest(needed_, true));
  if (any) pool_.counts.count_wait();
  return freed(any);
}

ColdAcquire::Step ColdAcquire::ask_sharing_pools() {
  bool const refused = capacity_ != 0 && growth_ != Growth::untried;
  bool const in_the_way = refused ? growth_ == Growth::refused_by_share : limit_ < pool_.limits.own();
  bool const could_help = pool_.affordable(request_.bytes, false, pool_.limits.own()) != 0;
  if (!in_the_way || !could_help) return Step::nothing;
  auto const wanted = pool_.counts.active_bytes() + request_.bytes;
  auto const changes = pool_.transit.changes();
  lock_.unlock();
  bool const asked = pool_.share->make_room(wanted, may_wait_ && !stops_at_work());
  lock_.lock();
  bool const any = asked && (pool_.limits.returns() != returns_to_share_ || pool_.transit.changes() != changes);
  // They leave room, and have given nothing: what they have cached is behind work.
  if (stops_at_work() && may_wait_ && asked && !any) return Step::would_wait;
  return freed(any);
}

ColdAcquire::Step ColdAcquire::drop_rounding() {
  bool const rounded = size_ == Size::rounded && capacity_ > request_.bytes && pool_.memory.extents() == nullptr;
  if (!rounded || growth_ == Growth::untried) return Step::nothing;
  size_ = Size::exact;  // it may just fit
  return freed(true);
}

ColdAcquire::Step ColdAcquire::grant(Block* block, Step otherwise) noexcept {
  block_ = block;
  return block != nullptr ? Step::granted : otherwise;
}

ColdAcquire::Step ColdAcquire::freed(bool any) noexcept {
  if (!any) return Step::nothing;
  growth_ = Growth::untried;
  return Step::changed;
}

bool ColdAcquire::has_room() const noexcept {
  return capacity_ != 0 && needed_ == 0 && growth_ == Growth::untried;
}

BlockList ColdAcquire::take_surplus() noexcept {
  if (pool_.memory.extents() != nullptr) return pool_.free.take_oldest(everything, false);  // united they may serve
  auto const in_use = pool_.counts.active_bytes() + pool_.transit.growing() + capacity_;
  auto const peak = std::max(pool_.counts.all().peak_active_bytes, in_use);
  auto const budget = peak + std::max(peak / 5, spare_budget);
  auto const reserved = in_use + pool_.free.bytes();
  return pool_.free.take_bulkiest(reserved > budget ? reserved - budget : 0);
}

bool ColdAcquire::give_back(BlockList&& blocks) noexcept {
  bool const any = returns_.give_back(lock_, std::move(blocks)) != 0;
  if (any) pool_.counts.count_trim();
  return any;
}

bool ColdAcquire::await_watched(std::vector<Event> const& pending) {
  if (pending.empty()) return false;
  lock_.unlock();
  for (auto const event : pending) wait_watched(event);
  lock_.lock();
  return true;
}

}  // namespace unimem::detail
