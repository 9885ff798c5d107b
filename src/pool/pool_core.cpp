#include "pool/pool_core.hpp"

#include <unimem/core/log.hpp>
#include <unimem/core/size.hpp>

#include "core/stack.hpp"
#include "device/current_task.hpp"
#include "pool/allocation_recorder.hpp"
#include "pool/mutants.hpp"
#include "pool/near_exact.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <optional>
#include <string>
#include <utility>

namespace unimem::detail {
namespace {

// What a pool may hold beyond the most it ever had in use at once: a fifth of that, or this where it is more. A program
// that goes through many sizes would otherwise collect one block of each; one that is small anyway need not be kept
// tidy.
constexpr std::size_t spare_budget = std::size_t{64} << 20;

/// Throws InvalidArgument for a queue that was moved from.
std::uint64_t id_of(Queue const& queue) {
  auto const id = queue.id();
  if (id == 0) [[unlikely]]
    static_cast<void>(queue.device());
  return id;
}

/// Which part of what is reserved may stay parked in small blocks, or in large ones, while memory is taken in its
/// place. The small ones are many: bringing them back again and again would leave nothing where it is wanted next.
constexpr std::size_t flush_threshold_small = 64;
constexpr std::size_t flush_threshold_large = 128;

/// From how many pages on a limit leaves it unfelt that pages are reserved whole.
constexpr std::size_t fewest_pages = 256;

/// Asked before anything is made.
PoolOptions checked(PoolOptions options) {
  require_stacks(options.stacks);
  return options;
}

/// Throws UnsupportedOperation for pages that were asked for where there are none.
std::unique_ptr<Extents> extents_of(Device& device, Location location, PoolOptions const& options, LimitShare* share) {
  if (options.backing == PoolBacking::allocations) return nullptr;
  if (options.upstream != nullptr) {
    if (options.backing == PoolBacking::automatic) return nullptr;
    throw UnsupportedOperation("PoolBacking::pages", fmt::format("{} {}", device.id(), to_string(location)),
                               "the memory is an upstream's, which gives whole objects");
  }
  // On the host they are what all its locations are made of, but locks on pages would not move with them.
  bool const has_pages = location == Location::device || (device.reaches_host_memory() && location != Location::pinned);
  auto* const pages = has_pages ? device.pages() : nullptr;
  if (pages == nullptr) {
    if (options.backing == PoolBacking::automatic) return nullptr;
    throw UnsupportedOperation("PoolBacking::pages", fmt::format("{} {}", device.id(), to_string(location)),
                               "no pages can be mapped there");
  }
  auto limit = std::min(options.max_bytes, device.info().total_bytes);
  if (share != nullptr) limit = std::min(limit, share->whole().bytes());
  if (options.backing == PoolBacking::automatic && limit / pages->page_bytes() < fewest_pages) return nullptr;
  return std::make_unique<Extents>(device, location, *pages, options.max_bytes, options.zero_on_release, share);
}

}  // namespace

PoolCore::PoolCore(Device& device, Location location, PoolOptions options, std::shared_ptr<LimitShare> share)
    : device_(device),
      location_(location),
      options_(checked(std::move(options))),
      recorder_(AllocationRecorder::of_process()),
      share_(std::move(share)),
      extents_(extents_of(device, location, options_, share_.get())),
      objects_(device, location, options_.upstream, options_.zero_on_release, share_.get()),
      zeroer_(options_.zero_on_release ? std::make_unique<Zeroer>(device, location) : nullptr),
      max_bytes_(options_.max_bytes),
      thread_cache_(*this, use_of_thread_cache()),
      held_(HeldOverFork::Order::pool, {[this](HeldOverFork::Deadline deadline) { return hold_over_fork(deadline); },
                                        [this](bool in_child) { let_go_after_fork(in_child); }}) {}

void PoolCore::close(std::unique_ptr<PoolCore> core) noexcept {
  auto& self = *core;
  self.thread_cache_.close();
  // From here on it is its own: the last one to be in here destroys it, be that this call or a later release.
  Lock lock{self.mutex_};
  Visit const visit{self};
  self.self_ = std::move(core);
  self.give_back_withheld(lock);
  lock.unlock();
  self.trim(0);
  if (auto const counts = self.statistics(); counts.active_allocations != 0) {
    try {
      log(LogLevel::warning,
          fmt::format("the pool of {} {} is destroyed while {} in {} blocks of it are in use; they outlive it",
                      self.device_.id(), to_string(self.location_), format_size(counts.active_bytes),
                      counts.active_allocations));
    } catch (std::exception const&) {  // NOLINT(bugprone-empty-catch): no memory for the words; no harm to the blocks
    }
  }
  lock.lock();
  self.leave(lock);
}

void PoolCore::leave(Lock& lock) noexcept {
  --inside_;
  if (self_ == nullptr || later_) return;
  if (!free_.by_age().empty()) return give_back_later(lock);
  if (inside_ != 0 || !live_.empty()) return;
  auto const last = std::move(self_);
  lock.unlock();
}

// ---- Taking ----------------------------------------------------------------------------------------------------

Block& PoolCore::acquire_otherwise(std::size_t bytes, AcquireOptions const& options) {
  if (options.alignment != 0) check_alignment(options.alignment, device_.info().alignment);
  auto const queue = options.queue == nullptr ? 0 : id_of(*options.queue);
  if (recorder_ != nullptr) return acquire_recorded(bytes, queue, options);
  auto const time = now();
  auto* const parked = thread_cache_.take(bytes, queue, options.name);
  if (parked != nullptr) expose(*parked);
  auto& block = parked != nullptr ? *parked : acquire_here(bytes, queue, options, time);
  if (ages_are_due(time)) look_at_ages(time);  // an old block that fits serves first
  return block;
}

Block& PoolCore::acquire_recorded(std::size_t bytes, std::uint64_t queue, AcquireOptions const& options) {
  try {
    auto& block = acquire_here(bytes, queue, options, now());
    recorder_->allocated(block, bytes, queue);
    return block;
  } catch (OutOfMemory const&) {
    recorder_->failed(*this, bytes, queue, options.name);
    throw;
  }
}

Block& PoolCore::acquire_here(std::size_t bytes, std::uint64_t queue, AcquireOptions const& options, Time time) {
  std::string refusal;        // what the driver said when it last had no memory
  bool refused = false;       // it has said so, and nothing has changed since
  bool by_share = false;      // that was the limit which is shared
  std::uint64_t returns = 0;  // to that limit, before it was looked at
  bool rounded = true;        // asking for a near-exact class, not for the bare bytes
  bool looked = false;        // at what is parked anywhere
  auto const largest = largest_block_for(bytes);
  bool const may_wait = options.may_wait && PoolCore::may_wait();
  // A queue is ordered behind a pending block's work, so that the calling thread waits for nothing.
  bool const also_pending = may_wait || (options.may_wait && options.queue != nullptr && zeroer_ == nullptr);
  std::optional<ThreadCache::CacheFlush> seizure;
  Lock lock{mutex_};
  auto const seize = [&] {
    if (seizure.has_value()) return false;
    ++counts_.seizures;
    lock.unlock();
    seizure.emplace(thread_cache_);
    lock.lock();
    return true;
  };
  // Whether anything was changed by giving these back, or by waiting for others.
  auto const trim = [&](BlockList blocks) {
    bool const any = give_back(lock, std::move(blocks)) != 0;
    counts_.trims += any ? 1 : 0;
    return any;
  };
  auto const wait = [&](bool waited) {
    counts_.waits += waited ? 1 : 0;
    return waited;
  };
  for (;;) {
    if (auto* const cached = free_.find(bytes, largest, queue, also_pending)) {
      if (queue == 0 && await_work_of(lock, *cached)) continue;
      if (auto* const block = reuse(lock, *cached, bytes, options, time)) return *block;
      continue;
    }
    if (auto* const carved = carve(lock, bytes, options)) return *carved;
    if (!std::exchange(looked, true)) {
      // Where much is reserved, a little more is taken rather than all threads interrupted for each new block.
      auto const reserved = extents_ == nullptr ? 0 : extents_->counts().reserved;
      if (thread_cache_.bytes_beside(nullptr) > reserved / flush_threshold_large) {
        lock.unlock();
        bool const brought_back =
            thread_cache_.flush_beyond(reserved / flush_threshold_small, reserved / flush_threshold_large);
        lock.lock();
        if (brought_back) continue;
      }
    }
    give_back(lock, free_.take_cached_before(expiry(time)));
    trim_pages(lock, time);

    if (!refused) returns = returns_to_share();  // what comes back from now on may be what it is refused for
    // The ladder: from what disturbs no thread to what blocks. Each rung that changed anything starts it again.
    auto const limit = limit_beside_others();
    auto const capacity = affordable(bytes, rounded, limit);
    if (capacity == 0) {
      if (seize() || wait(await_transit(lock))) continue;
      if (limit < this->limit() && make_room_beside(lock, bytes, may_wait, returns)) continue;
      fail(lock, bytes, refusal);
    }
    if (!refused && capacity <= room(limit)) {
      if (trim(take_surplus(capacity))) continue;
      auto const refusals = share_ == nullptr ? 0 : share_->refusals();
      if (auto* const fresh = grow(lock, capacity, bytes, options, refusal)) return *fresh;
      refused = true;
      by_share = share_ != nullptr && share_->refusals() != refusals;
      continue;  // the lock was dropped: a block that fits may have come back
    }
    if (seize()) continue;
    auto const needed = refused ? capacity : capacity - room(limit);
    bool const others_in_the_way = refused ? by_share : limit < this->limit();
    if (trim(free_.take_oldest(needed, false)) || wait(await_transit(lock)) ||
        (may_wait && wait(await_oldest(lock, needed) || trim(free_.take_oldest(needed, true)))) ||
        (others_in_the_way && make_room_beside(lock, bytes, may_wait, returns))) {
      refused = false;
    } else if (refused && rounded && capacity != bytes && extents_ == nullptr) {
      rounded = refused = false;  // the last try: without the rounding it may just fit
    } else {
      fail(lock, bytes, refusal);
    }
  }
}

Block* PoolCore::acquire_cached(std::size_t bytes, Name name) {
  auto const time = now();
  if (ages_are_due(time)) look_at_ages(time);
  if (auto* const parked = thread_cache_.take(bytes, 0, name)) {
    expose(*parked);
    return parked;
  }
  AcquireOptions options;
  options.name = name;
  for (bool looked = false;; looked = true) {
    Lock lock{mutex_};
    auto* const cached = free_.find(bytes, largest_block_for(bytes), 0, false);
    if (auto* const block =
            cached != nullptr ? reuse(lock, *cached, bytes, options, time) : carve(lock, bytes, options)) {
      if (recorder_ != nullptr) recorder_->allocated(*block, bytes, 0);
      return block;
    }
    lock.unlock();
    if (looked || !thread_cache_.flush_all()) return nullptr;
  }
}

Block* PoolCore::acquire_better(Block const& block, std::size_t bytes) {
  if (extents_ == nullptr || block.pool != this || !block.origin.in_pages()) return nullptr;
  AcquireOptions options;
  options.name = block.name;
  thread_cache_.flush_all();  // the best place may be beside what a thread keeps
  Lock lock{mutex_};
  give_back(lock, free_.take_settled());
  auto const capacity = affordable(bytes, true, limit());
  if (capacity == 0) return nullptr;
  std::string refusal;
  auto* const better =
      make(lock, capacity, bytes, options, refusal, [&] { return extents_->try_take_better(block.origin); });
  if (better != nullptr && recorder_ != nullptr) recorder_->allocated(*better, bytes, 0);
  return better;
}

Block* PoolCore::reuse(Lock& lock, Block& block, std::size_t bytes, AcquireOptions const& options, Time time) {
  free_.remove(block, live_);
  block.name = options.name;
  count_in(block, bytes, From::cache);
  give_back(lock, free_.take_cached_before(expiry(time)));
  lock.unlock();

  auto* const queue = options.queue;
  if (queue == nullptr) block.wait();
  expose(block);
  bool unerased = zeroer_ != nullptr && !Zeroer::is_done(block);
  if (unerased && (queue == nullptr || !zeroer_->can_leave_to(*queue))) {
    block.wait();
    if (!zeroer_->erased(block)) {
      withdraw(lock, block, bytes);
      return nullptr;
    }
    unerased = false;
  }
  if (queue != nullptr && (unerased || !block.settled()) && !UNIMEM_MUTANT(queues_not_ordered)) {
    Event both;  // everything before this moment of the queue, the waits included: one event that stands for them
    try {
      queue->wait(block.inherited);
      queue->wait(block.last_use);
      // Where it had to wait for others, its own last ticket may have ended long ago: a wait takes none everywhere.
      both = unerased                       ? zeroer_->leave_to(*queue, block)
             : block.ready_for(queue->id()) ? queue->record()
                                            : queue->mark();
    } catch (...) {
      lock.lock();
      count_out(block);
      uncount(bytes);
      free_.add(live_, block, time);
      ++counts_.failed_allocations;
      changed();
      throw;
    }
    block.inherited = both;
    block.last_use = {};
    block.erasure = Erasure::none;  // the queue is behind it
  }
  return &block;
}

Block* PoolCore::carve(Lock& lock, std::size_t bytes, AcquireOptions const& options) {
  if (extents_ == nullptr) return nullptr;
  if (free_.bytes() != 0) give_back(lock, free_.take_settled());
  auto const capacity = affordable(bytes, true, limit());  // it grows by nothing
  if (capacity == 0) return nullptr;
  if (spare_.empty()) spare_ = descriptor();
  std::optional<Extents::Piece> piece;
  try {
    piece = extents_->try_take_at_once(bytes);
  } catch (std::bad_alloc const&) {
    return nullptr;
  }
  if (!piece.has_value()) {
    std::string refusal;
    return make(lock, capacity, bytes, options, refusal, [&] { return extents_->try_take(bytes); });
  }
  if (piece->memory.empty()) return nullptr;
  auto& block = bring_to_life(spare_, *piece, bytes, options.name);
  lock.unlock();
  expose(block);
  return &block;
}

Block* PoolCore::grow(Lock& lock, std::size_t capacity, std::size_t bytes, AcquireOptions const& options,
                      std::string& refusal) {
  auto const peak = std::max(counts_.peak_active_bytes, counts_.active_bytes + growing_ + capacity);
  return make(lock, capacity, bytes, options, refusal, [&] {
    if (extents_ != nullptr) return extents_->obtain(bytes, peak);
    return Extents::Piece{objects_.take(capacity), {}, true};
  });
}

template <class Source>
Block* PoolCore::make(Lock& lock, std::size_t capacity, std::size_t bytes, AcquireOptions const& options,
                      std::string& refusal, Source const& source) {
  auto fresh = descriptor();
  growing_ += capacity;
  auto const forks = forks_;
  lock.unlock();
  Extents::Piece piece;
  std::exception_ptr failure;
  try {
    piece = source();
  } catch (...) {
    failure = std::current_exception();
  }
  lock.lock();
  settle(growing_, capacity, forks);
  changed();

  if (piece.memory.empty()) spare_.splice(spare_.end(), fresh);
  if (failure) {
    try {
      std::rethrow_exception(failure);
    } catch (OutOfMemory const& error) {
      refusal = error.facts().reason.empty() ? error.what() : error.facts().reason;
    } catch (std::bad_alloc const& error) {
      refusal = error.what();
    } catch (...) {  // a device that is lost, a location it does not serve: no cached block given back would cure that
      ++counts_.failed_allocations;
      throw;
    }
  }
  if (piece.memory.empty()) return nullptr;

  auto& block = bring_to_life(fresh, piece, bytes, options.name);
  lock.unlock();
  expose(block);
  return &block;
}

Block& PoolCore::bring_to_life(BlockList& from, Extents::Piece const& piece, std::size_t bytes, Name name) noexcept {
  auto& block = from.front();
  block.memory = piece.memory;
  block.origin = piece.origin;
  block.erasure = Erasure::none;
  block.magazine = static_cast<std::uint32_t>(near_exact_class(piece.memory.bytes));
  block.name = name;
  live_.splice(live_.end(), from, from.begin());
  count_in(block, bytes, piece.fresh ? From::device : From::extents);
  return block;
}

std::size_t PoolCore::largest_block_for(std::size_t bytes) const noexcept {
  // Pages serve any size: nothing need be made do with.
  return extents_ == nullptr ? largest_fit(bytes) : std::max(extents_->capacity_for(bytes), close_fit(bytes));
}

std::size_t PoolCore::affordable(std::size_t bytes, bool rounded, std::size_t limit) const noexcept {
  auto const most = std::min(device_.info().max_allocation, room_beside_live(limit));
  auto const capacity = extents_ != nullptr ? extents_->capacity_for(bytes) : block_capacity(bytes);
  if (rounded && capacity <= most) return capacity;
  return bytes <= most ? bytes : 0;
}

BlockList PoolCore::take_surplus(std::size_t capacity) noexcept {
  if (extents_ != nullptr) return free_.take_oldest(everything, false);  // united they may serve
  if (UNIMEM_MUTANT(budget_ignored)) return {};
  auto const peak = std::max(counts_.peak_active_bytes, counts_.active_bytes + growing_ + capacity);
  auto const budget = peak + std::max(peak / 5, spare_budget);
  auto const reserved = counts_.active_bytes + growing_ + free_.bytes() + capacity;
  return free_.take_bulkiest(reserved > budget ? reserved - budget : 0);
}

std::size_t PoolCore::limit() const noexcept {
  return std::min(max_bytes_, device_.info().total_bytes);
}

std::size_t PoolCore::limit_beside_others() const noexcept {
  return share_ == nullptr ? limit() : std::min(limit(), share_->most());
}

std::size_t PoolCore::reserved() const noexcept {
  return extents_ != nullptr ? extents_->counts().reserved : taken() + free_.bytes();
}

std::size_t PoolCore::room_beside_live(std::size_t limit) const noexcept {
  return taken() >= limit ? 0 : limit - taken();
}

std::size_t PoolCore::room(std::size_t limit) const noexcept {
  auto const most = room_beside_live(limit);
  return free_.bytes() >= most ? 0 : most - free_.bytes();
}

std::uint64_t PoolCore::returns_to_share() const noexcept {
  return share_ == nullptr ? 0 : share_->whole().returns();
}

bool PoolCore::make_room_beside(Lock& lock, std::size_t bytes, bool may_wait, std::uint64_t returns) {
  bool const own = affordable(bytes, false, limit()) == 0;  // no other pool could help
  if (own || UNIMEM_MUTANT(others_not_asked)) return false;
  auto const wanted = counts_.active_bytes + bytes;
  auto const seen = changes_;
  lock.unlock();
  bool const asked = share_->make_room(wanted, may_wait);
  lock.lock();
  return asked && (returns_to_share() != returns || changes_ != seen);
}

BlockList PoolCore::descriptor() {
  BlockList one;
  if (!spare_.empty()) {
    one.splice(one.end(), spare_, spare_.begin());
    return one;
  }
  auto& block = one.emplace_back();
  block.pool = this;
  block.place = one.begin();
  BlockIndex index;
  block.node = index.extract(index.insert(&block).first);
  return one;
}

// ---- Time -------------------------------------------------------------------------------------------------------

PoolCore::Time PoolCore::now() const {
  if (options_.trim_interval.count() == 0) return {};
  return options_.clock ? options_.clock() : std::chrono::steady_clock::now();
}

PoolCore::Time PoolCore::expiry(Time time) const noexcept {
  return options_.trim_interval.count() == 0 ? Time::min() : time - options_.trim_interval;
}

}  // namespace unimem::detail
