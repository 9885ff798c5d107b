#include "pool/block_returns.hpp"

#include "device/current_task.hpp"

#include <utility>

namespace unimem::detail {

std::size_t BlockReturns::give_back(PoolLock& lock, BlockList victims) noexcept {
  if (victims.empty()) return 0;
  std::size_t bytes = 0;
  bool behind_work = false;
  for (auto& block : victims) {
    bytes += block.capacity();
    behind_work = behind_work || !block.settled();
    pool_.counts.count_returned(block);
  }
  // Once the pool has ended, only its own upstream could use it again.
  bool const last = ended_ && !pool_.memory.has_upstream();
  Transit::Passage passage;
  pool_.transit.begin_returning(passage, bytes, behind_work ? Transit::Comes::behind_work : Transit::Comes::soon);
  lock.unlock();
  for (auto& block : victims) {
    block.wait();
    pool_.memory.expose(block);
  }
  auto unerased = pool_.zeroer == nullptr || last ? BlockList{} : take_unerased(victims);
  pool_.memory.give(victims);
  lock.lock();
  pool_.transit.end_returning(passage);
  pool_.spare.splice(pool_.spare.end(), victims);
  if (!unerased.empty()) bytes -= keep_out_of_use(std::move(unerased));
  if (ended_) give_back_withheld(lock);  // meanwhile
  pool_.transit.changed();
  return bytes;
}

BlockList BlockReturns::take_unerased(BlockList& victims) const noexcept {
  BlockList unerased;
  for (auto it = victims.begin(); it != victims.end();) {
    auto& block = *it++;
    if (!pool_.zeroer->erased(block) && block.origin.in_pages()) move_to(unerased, block);
  }
  return unerased;
}

std::size_t BlockReturns::keep_out_of_use(BlockList blocks) noexcept {
  std::size_t bytes = 0;
  for (auto& block : blocks) {
    block.name = {};
    bytes += block.capacity();
  }
  pool_.counts.count_withheld(blocks);
  pool_.withheld.splice(pool_.withheld.end(), blocks);
  return bytes;
}

void BlockReturns::withdraw(PoolLock& lock, Block& block, std::size_t bytes) noexcept {
  pool_.counts.count_out(block);
  pool_.counts.uncount_hit(bytes);
  BlockList one;
  move_to(one, block);
  give_back(lock, std::move(one));
}

void BlockReturns::end(PoolLock& lock) noexcept {
  ended_ = true;
  give_back_withheld(lock);
}

void BlockReturns::give_back_withheld(PoolLock& lock) noexcept {
  for (auto& block : pool_.withheld) pool_.counts.count_out(block);
  give_back(lock, std::exchange(pool_.withheld, {}));
}

bool BlockReturns::may_wait() noexcept {
  return CurrentTask::may_wait_for_any();
}

}  // namespace unimem::detail
