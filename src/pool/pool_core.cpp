#include "pool/pool_core.hpp"

#include <unimem/core/log.hpp>
#include <unimem/core/size.hpp>

#include "device/call_after.hpp"
#include "pool/allocation_recorder.hpp"
#include "pool/cold_acquire.hpp"

#include <fmt/format.h>

#include <exception>
#include <limits>
#include <utility>
#include <vector>

namespace unimem::detail {
namespace {

/// Throws InvalidArgument for a queue that was moved from.
std::uint64_t id_of(Queue const& queue) {
  auto const id = queue.id();
  if (id == 0) [[unlikely]]
    static_cast<void>(queue.device());
  return id;
}

}  // namespace

PoolCore::PoolCore(Device& device, Location location, PoolOptions options, std::shared_ptr<LimitShare> share)
    : recorder_(AllocationRecorder::of_process()),
      state_(*this, intake_, device, location, std::move(options), std::move(share)) {}

// ---- Its end ----------------------------------------------------------------------------------------------------

void PoolCore::close(std::unique_ptr<PoolCore> core) noexcept {
  auto& self = *core;
  if (self.inherited()) return static_cast<void>(core.release());  // NOLINT(bugprone-unused-return-value): stays
  self.state_.thread_cache.close();
  // From here on it is its own: the last one to be in here destroys it, be that this call or a later release.
  auto lock = self.lock();
  self.enter();
  self.self_ = std::move(core);
  self.returns_.end(lock);
  lock.unlock();
  self.trimmer_.trim(0);
  if (auto const counts = self.reports_.statistics(); counts.active_allocations != 0) {
    try {
      log(LogLevel::warning,
          fmt::format("the pool of {} is destroyed while {} in {} blocks of it are in use; they outlive it",
                      self.state_.memory.where(), format_size(counts.active_bytes), counts.active_allocations));
    } catch (std::exception const&) {  // NOLINT(bugprone-empty-catch): no memory for the words; no harm to the blocks
    }
  }
  lock.lock();
  self.leave(lock);
}

void PoolCore::leave(PoolLock& lock) noexcept {
  --inside_;
  if (self_ == nullptr || later_) return;
  if (!state_.free.by_age().empty()) return give_back_later(lock);
  if (inside_ != 0 || !state_.live.empty()) return;
  auto const last = std::move(self_);
  lock.unlock();
}

void PoolCore::give_back_later(PoolLock& lock) noexcept {
  later_ = true;
  try {
    std::vector<Event> pending;
    for (auto const& block : state_.free.by_age()) {
      pending.push_back(block.inherited);
      pending.push_back(block.last_use);
    }
    lock.unlock();
    call_after(std::move(pending), [this] {
      auto again = this->lock();
      enter();
      trimmer_.shrink(again, 0);
      later_ = false;
      leave(again);  // what has been released meanwhile may be pending in its turn
    });
  } catch (std::exception const& error) {
    if (lock.owns_lock()) lock.unlock();
    log(LogLevel::error, "memory of a pool that has ended stays with the process, as its work could not be awaited:");
    log(LogLevel::error, error.what());
  }
}

// ---- Taking -----------------------------------------------------------------------------------------------------

std::size_t PoolCore::room_to_align(std::size_t alignment) const {
  constexpr auto largest = std::size_t{1} << (std::numeric_limits<std::size_t>::digits - 1);
  auto const own = device().info().alignment;
  check_alignment(alignment, state_.memory.has_addresses() ? largest : own);
  return alignment > own ? alignment - own : 0;
}

Block* PoolCore::acquire_otherwise(std::size_t bytes, AcquireOptions const& options, WaitsForWork waits) {
  made_.require("allocating from a memory pool");
  if (options.alignment != 0) bytes = checked_add(bytes, room_to_align(options.alignment), "bytes");
  auto const queue = options.queue == nullptr ? 0 : id_of(*options.queue);
  BlockRequest const request{
      .bytes = bytes, .queue = queue, .options = options, .time = state_.ages.now(), .waits = waits};
  if (recorder_ != nullptr) return acquire_recorded(request);
  auto* const parked = state_.thread_cache.take(bytes, queue, options.name);
  if (parked != nullptr) state_.memory.expose(*parked);
  auto* const block = parked != nullptr ? parked : acquire_here(request);
  if (trimmer_.ages_are_due(request.time)) trimmer_.look_at_ages(request.time);  // an old block that fits serves first
  return block;
}

Block* PoolCore::acquire_recorded(BlockRequest const& request) {
  try {
    auto* const block = acquire_here(request);
    if (block != nullptr) recorder_->allocated(*block, request.bytes, request.queue);
    return block;
  } catch (OutOfMemory const&) {
    recorder_->failed(*this, request.bytes, request.queue, request.options.name);
    throw;
  }
}

Block* PoolCore::acquire_here(BlockRequest const& request) {
  return ColdAcquire{state_, returns_, supply_, trimmer_, reports_, request}.run();
}

Block* PoolCore::acquire_cached(std::size_t bytes, Name name) {
  AcquireOptions options;
  options.name = name;
  BlockRequest const request{.bytes = bytes, .options = options, .time = state_.ages.now()};
  if (trimmer_.ages_are_due(request.time)) trimmer_.look_at_ages(request.time);
  if (auto* const parked = state_.thread_cache.take(bytes, 0, name)) {
    state_.memory.expose(*parked);
    return parked;
  }
  for (bool looked = false;; looked = true) {
    auto lock = this->lock();
    auto* const cached = state_.free.find(bytes, state_.memory.largest_block_for(bytes), 0, false);
    auto* const block = cached != nullptr ? supply_.reuse(lock, *cached, request) : supply_.carve(lock, request);
    if (block != nullptr) {
      if (recorder_ != nullptr) recorder_->allocated(*block, bytes, 0);
      return block;
    }
    lock.unlock();
    if (looked || !state_.thread_cache.flush_all()) return nullptr;
  }
}

Block* PoolCore::acquire_better(Block const& block, std::size_t bytes) {
  if (state_.memory.extents() == nullptr || block.pool != this || !block.origin.in_pages()) return nullptr;
  AcquireOptions options;
  options.name = block.name;
  state_.thread_cache.flush_all();  // the best place may be beside what a thread keeps
  auto lock = this->lock();
  returns_.give_back(lock, state_.free.take_settled());
  auto const capacity = state_.affordable(bytes, true, state_.limits.own());
  if (capacity == 0) return nullptr;
  std::string refusal;
  auto* const better = supply_.make(
      lock, {.from = PoolMemory::From::better, .bytes = bytes, .capacity = capacity, .than = &block.origin},
      {.bytes = bytes, .options = options}, refusal);
  if (better != nullptr && recorder_ != nullptr) recorder_->allocated(*better, bytes, 0);
  return better;
}

// ---- Coming back --------------------------------------------------------------------------------------------------

void PoolCore::release_otherwise(Block& block, Event last_use) noexcept {
  if (inherited()) return;
  if (recorder_ != nullptr) recorder_->released(block, last_use);
  block.used_until(last_use);
  if (state_.zeroer != nullptr) state_.zeroer->begin(block);
  block.parked_for = block.only_queue();
  if (block.parked_for == 0) state_.memory.hide(block);
  auto const now = state_.ages.now();
  if (trimmer_.ages_are_due(now)) trimmer_.look_at_ages(now);  // while the block is in use and keeps the core alive
  block.cached_since = now;
  bool const keeps = block.parked_for != Block::no_queue && state_.thread_cache.keep(block, PoolAges::number_at(now));
  if (!keeps) release_here(block, now);
}

void PoolCore::release_here(Block& block, PoolAges::Time now) noexcept {
  if (block.settled()) state_.memory.hide(block);
  ++block.generation;

  auto lock = this->lock();
  enter();
  intake_.take(block, now);
  if (self_ == nullptr) trimmer_.trim_after_release(lock, now);
  if (self_ != nullptr) trimmer_.shrink(lock, 0);  // the pool has ended, be it meanwhile
  leave(lock);
}

}  // namespace unimem::detail
