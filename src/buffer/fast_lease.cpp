#include "buffer/fast_lease.hpp"

namespace unimem::detail {

FastLease::~FastLease() {
  if (replica_) drop_replica();
}

// Acquire and release, all on one word: what a lease's holder did comes before whoever sees the count fall, drops the
// storage or ends this; and nothing that follows `close` comes before it.
void FastLease::leave() noexcept {
  auto word = word_.load(std::memory_order_relaxed);
  for (;;) {
    bool const last = (word & count) == 1;
    if (last && (word & let_go) != 0) {
      // Still counted, so that this stays meanwhile.
      if (!word_.compare_exchange_weak(word, (word & ~let_go) | letting_go, std::memory_order_acq_rel)) continue;
      drop_replica();
      word = word_.fetch_sub(letting_go, std::memory_order_release) - letting_go;
    } else if (word_.compare_exchange_weak(word, word - 1, std::memory_order_acq_rel)) {
      if (last && (word & abandoned) != 0) delete this;
      return;
    }
  }
}

void FastLease::stand_before(std::shared_ptr<Replica> const& replica, std::size_t bytes,
                             std::uint64_t queue_id) noexcept {
  // A lease that is counted may be reading both.
  if ((word_.load(std::memory_order_acquire) & ~abandoned) != 0) return;
  if (replica_ != replica) {
    if (replica_) drop_replica();
    replica_ = replica;
    replica_->holds().set_fast_lease(this);
  }
  bytes_ = bytes;
  queue_id_ = queue_id;
}

void FastLease::detach() noexcept {
  auto word = word_.load(std::memory_order_relaxed);
  for (;;) {
    bool const free = (word & count) == 0;
    if (!word_.compare_exchange_weak(word, word | (free ? letting_go : let_go), std::memory_order_acq_rel)) continue;
    if (!free) return;
    drop_replica();
    word_.fetch_sub(letting_go, std::memory_order_release);
    return;
  }
}

void FastLease::abandon() noexcept {
  close();
  if ((word_.fetch_or(abandoned, std::memory_order_acq_rel) & count) == 0) delete this;
}

void FastLease::drop_replica() noexcept {
  replica_->holds().set_fast_lease(nullptr);
  replica_.reset();
}

}  // namespace unimem::detail
