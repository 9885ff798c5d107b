#include "pool/block_supply.hpp"

#include <unimem/core/error.hpp>

#include <exception>
#include <new>
#include <optional>
#include <utility>

namespace unimem::detail {

bool BlockSupply::would_wait(Block& block, BlockRequest const& request) const noexcept {
  if (block.settled()) return false;
  auto* const queue = request.options.queue;
  auto const* const zeroer = pool_.zeroer.get();
  return queue == nullptr || (zeroer != nullptr && !Zeroer::is_done(block) && !zeroer->can_leave_to(*queue));
}

Block* BlockSupply::reuse(PoolLock& lock, Block& block, BlockRequest const& request) {
  auto* const queue = request.options.queue;
  auto* const zeroer = pool_.zeroer.get();
  pool_.free.remove(block, pool_.live);
  block.name = request.options.name;
  pool_.counts.count_in(block, request.bytes, PoolCounts::From::cache);
  returns_.give_back(lock, pool_.free.take_cached_before(pool_.ages.expiry(request.time)));
  lock.unlock();

  if (queue == nullptr) block.wait();
  pool_.memory.expose(block);
  bool unerased = zeroer != nullptr && !Zeroer::is_done(block);
  if (unerased && (queue == nullptr || !zeroer->can_leave_to(*queue))) {
    block.wait();
    if (!zeroer->erased(block)) {
      lock.lock();
      returns_.withdraw(lock, block, request.bytes);
      return nullptr;
    }
    unerased = false;
  }
  if (queue != nullptr && (unerased || !block.settled())) {
    try {
      order_behind(block, *queue, unerased);
    } catch (...) {
      lock.lock();
      pool_.counts.count_out(block);
      pool_.counts.uncount_hit(request.bytes);
      pool_.free.add(block, request.time);
      pool_.counts.count_failure();
      pool_.transit.changed();
      throw;
    }
  }
  return &block;
}

void BlockSupply::order_behind(Block& block, Queue& queue, bool unerased) const {
  queue.wait(block.inherited);
  queue.wait(block.last_use);
  // Everything before this moment of the queue, the waits included: one event that stands for both. Where it had to
  // wait for others, its own last ticket may have ended long ago: a wait takes none everywhere.
  block.inherited = unerased                      ? pool_.zeroer->leave_to(queue, block)
                    : block.ready_for(queue.id()) ? queue.record()
                                                  : queue.mark();
  block.last_use = {};
  block.erasure = Erasure::none;  // the queue is behind it
}

Block* BlockSupply::carve(PoolLock& lock, BlockRequest const& request) {
  auto* const extents = pool_.memory.extents();
  if (extents == nullptr) return nullptr;
  if (pool_.free.bytes() != 0) returns_.give_back(lock, pool_.free.take_settled());
  auto const capacity = pool_.affordable(request.bytes, true, pool_.limits.own());  // it grows by nothing
  if (capacity == 0) return nullptr;
  if (pool_.spare.empty()) pool_.spare.push_back(pool_.descriptor());
  std::optional<Extents::Piece> piece;
  try {
    piece = extents->try_take_at_once(request.bytes);
  } catch (std::bad_alloc const&) {
    return nullptr;
  }
  if (!piece.has_value()) {
    std::string refusal;
    return make(lock, {.from = PoolMemory::From::free, .bytes = request.bytes, .capacity = capacity}, request, refusal);
  }
  if (piece->memory.empty()) return nullptr;
  auto& block = pool_.spare.front();
  pool_.bring_to_life(block, *piece, request);
  lock.unlock();
  pool_.memory.expose(block);
  return &block;
}

Block* BlockSupply::make(PoolLock& lock, PoolMemory::Wish const& wish, BlockRequest const& request,
                         std::string& refusal) {
  auto& block = pool_.descriptor();
  Transit::Passage passage;
  pool_.transit.begin_growing(passage, wish.capacity);
  lock.unlock();
  Extents::Piece piece;
  std::exception_ptr failure;
  try {
    piece = pool_.memory.take(wish);
  } catch (...) {
    failure = std::current_exception();
  }
  lock.lock();
  pool_.transit.end_growing(passage);
  pool_.transit.changed();

  if (piece.memory.empty()) pool_.spare.push_back(block);
  if (failure) {
    try {
      std::rethrow_exception(failure);
    } catch (OutOfMemory const& error) {
      refusal = error.facts().reason.empty() ? error.what() : error.facts().reason;
    } catch (std::bad_alloc const& error) {
      refusal = error.what();
    } catch (...) {  // a device that is lost, a location it does not serve: no cached block given back would cure that
      pool_.counts.count_failure();
      throw;
    }
  }
  if (piece.memory.empty()) return nullptr;

  pool_.bring_to_life(block, piece, request);
  lock.unlock();
  pool_.memory.expose(block);
  return &block;
}

}  // namespace unimem::detail
