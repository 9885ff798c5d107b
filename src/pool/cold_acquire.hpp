#pragma once

#include "pool/block_returns.hpp"
#include "pool/block_supply.hpp"
#include "pool/pool_reports.hpp"
#include "pool/pool_state.hpp"
#include "pool/pool_trimmer.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace unimem::detail {

/// One acquire that nothing parked has served: a ladder of steps, from what disturbs no other thread to what blocks.
/// Each step grants a block, or has changed something, after which the ladder begins again, or has nothing to offer; if
/// no step has, there is no memory.
///
/// Every step is taken with the pool's lock, may drop it meanwhile, and has it again unless it grants a block or
/// throws.
class ColdAcquire {
 public:
  ColdAcquire(PoolState& pool, BlockReturns& returns, BlockSupply& supply, PoolTrimmer& trimmer,
              PoolReports const& reports, BlockRequest const& request)
      : pool_(pool),
        returns_(returns),
        supply_(supply),
        trimmer_(trimmer),
        reports_(reports),
        request_(request),
        may_wait_(request.options.may_wait && BlockReturns::may_wait()),
        // A queue is ordered behind a pending block's work, so that the calling thread waits for nothing.
        pending_will_do_(may_wait_ ||
                         (request.options.may_wait && request.options.queue != nullptr && pool.zeroer == nullptr)),
        largest_(pool.memory.largest_block_for(request.bytes)),
        lock_(pool.mutex) {}

  /// A live block of at least the bytes asked for; null where a request that may not wait for work would. Throws as
  /// `MemoryPool::acquire`.
  [[nodiscard]] Block* run();

 private:
  enum class Step : std::uint8_t { nothing, changed, granted, would_wait };
  /// What became of the last try to take memory from the device, while nothing has changed since.
  enum class Growth : std::uint8_t { untried, refused, refused_by_share };
  /// What threads keep: how far it has been brought back.
  enum class Parked : std::uint8_t { unseen, seen, flushed };
  enum class Size : std::uint8_t { rounded, exact };

  [[nodiscard]] Step climb();
  /// What came of the first of these steps that had anything to offer.
  template <auto... steps>
  [[nodiscard]] Step first_of();

  // The steps, in their order. Two of them only prepare what follows: they always come to nothing.
  [[nodiscard]] Step reuse_cached();
  [[nodiscard]] Step carve_free();
  [[nodiscard]] Step flush_much_parked();
  [[nodiscard]] Step give_old_back();
  [[nodiscard]] Step measure();
  [[nodiscard]] Step give_surplus_back();
  [[nodiscard]] Step grow();
  [[nodiscard]] Step flush_all_parked();
  [[nodiscard]] Step give_settled_back();
  [[nodiscard]] Step await_transit();
  [[nodiscard]] Step stop_at_pending();
  [[nodiscard]] Step await_oldest();
  [[nodiscard]] Step give_pending_back();
  [[nodiscard]] Step ask_sharing_pools();
  [[nodiscard]] Step drop_rounding();

  /// Whether it comes back rather than wait for work.
  [[nodiscard]] bool stops_at_work() const noexcept { return request_.waits == WaitsForWork::no; }
  [[nodiscard]] Step grant(Block* block, Step otherwise) noexcept;
  /// After a step that may have freed memory, and did if `any`: the device may be asked again.
  [[nodiscard]] Step freed(bool any) noexcept;
  /// Whether `measure` has found room for a new block, and the device has not refused one.
  [[nodiscard]] bool has_room() const noexcept;
  /// The cached blocks that should go before a new one is added, for the cache to stay within its budget.
  [[nodiscard]] BlockList take_surplus() noexcept;
  /// Whether giving these back has changed anything.
  [[nodiscard]] bool give_back(BlockList&& blocks) noexcept;
  /// In a watched thread: waits for this work. Whether there was any: the lock was dropped then.
  [[nodiscard]] bool await_watched(std::vector<Event> const& pending);

  PoolState& pool_;
  BlockReturns& returns_;
  BlockSupply& supply_;
  PoolTrimmer& trimmer_;
  PoolReports const& reports_;
  BlockRequest const& request_;
  bool const may_wait_;         ///< for pending work
  bool const pending_will_do_;  ///< a cached block may have work pending
  std::size_t const largest_;   ///< cached block that serves
  std::optional<ThreadCache::CacheFlush> flush_;
  PoolLock lock_;
  Block* block_ = nullptr;

  Growth growth_ = Growth::untried;
  Parked parked_ = Parked::unseen;
  Size size_ = Size::rounded;
  std::string refusal_;  ///< what the driver said when it last had no memory

  // As `measure` has found it.
  std::uint64_t returns_to_share_ = 0;  ///< before the device was last asked
  std::size_t limit_ = 0;
  std::size_t capacity_ = 0;  ///< of a new block; 0 if live memory leaves no room for any
  std::size_t needed_ = 0;    ///< what has to go before there is room for it
};

}  // namespace unimem::detail
