#include "manager/allocation_request.hpp"

#include <unimem/device/device.hpp>

#include <algorithm>
#include <utility>

namespace unimem::detail {

bool AllocationRequest::is_refused_by_host() const {
  return host != nullptr && facts.limit < std::min(pool.max_bytes(), pool.device().info().total_bytes);
}

std::size_t AllocationRequest::beside() const {
  return is_refused_by_host() ? host->bytes() - std::min(host->bytes(), facts.limit) : 0;
}

/// Whether the memory is there when `acquire` has been called; nothing if that comes back without any.
template <class Acquire>
std::optional<bool> AllocationRequest::granted_by(Acquire const& acquire) {
  TakenMemory::Attempt const attempt{taken, bytes};
  try {
    std::optional<Allocation> given = acquire();
    if (given && is_in_the_way_of_the_rest(*given)) {
      given->release();
      static_cast<void>(pool.trim());  // or the same block would be given again
      given = acquire();
    }
    if (!given) return std::nullopt;
    block = *std::move(given);
  } catch (OutOfMemory const& error) {
    facts = error.facts();
    return false;
  }
  if (taken != nullptr) context->taken().add(*taken, bytes);
  return true;
}

bool AllocationRequest::is_in_the_way_of_the_rest(Allocation const& given) const {
  if (outstanding <= bytes || given.capacity() <= bytes) return false;
  auto const most = std::min(pool.max_bytes(), pool.device().info().total_bytes);
  auto const in_use = pool.bytes_in_use();
  return in_use > most || outstanding - bytes > most - in_use;
}

bool AllocationRequest::granted() {
  return *granted_by([this] { return std::optional{pool.acquire(bytes, options)}; });
}

std::optional<bool> AllocationRequest::granted_without_waiting() {
  return granted_by([this] { return pool.acquire_without_waiting(bytes, options); });
}

bool AllocationRequest::outdated() const {
  if (pool.bytes_in_use() < facts.live) return true;
  return is_refused_by_host() && host->share(pool.location())->most() > facts.limit;
}

bool AllocationRequest::granted_after_all(bool hope) {
  for (bool again = hope || outdated(); again; again = outdated()) {
    if (granted()) return true;
  }
  return false;
}

bool AllocationRequest::lies_in_pieces() const {
  return facts.live <= facts.limit && bytes <= facts.limit - facts.live && pool.statistics().slack_bytes != 0;
}

bool AllocationRequest::within_reach(std::vector<Residents::Candidate> const& candidates,
                                     std::size_t others) const noexcept {
  std::size_t most = others;
  for (auto const& candidate : candidates)
    most += largest_block_of(candidate.evictable.bytes + candidate.evictable.more);
  // What residents give goes to the device's own pool first: of another's limit it says nothing.
  if (pool.location() == Location::unified) return most != 0;
  // What refused may be a container, which counts what is in no pool.
  bool const of_the_host = pool.location() != Location::device;
  if (of_the_host && facts.limit != pool.max_bytes() && !is_refused_by_host()) return most != 0;
  auto const limit = facts.limit + beside(), live = facts.live + beside();
  auto const pinned = live > most ? live - most : 0;
  return pinned <= limit && outstanding <= limit - pinned;
}

void AllocationRequest::refuse() {
  if (is_refused_by_host()) host->complete(facts, pool);
  throw OutOfMemory(std::move(facts));
}

}  // namespace unimem::detail
