#pragma once

#include <unimem/core/error.hpp>
#include <unimem/pool/allocation.hpp>
#include <unimem/pool/memory_pool.hpp>

#include "manager/access_context.hpp"
#include "manager/host_limit.hpp"
#include "manager/residents.hpp"

#include <cstddef>
#include <optional>
#include <vector>

namespace unimem::detail {

/// One request, tried as often as memory may have come back.
struct AllocationRequest {
  MemoryPool& pool;
  std::size_t bytes;
  AcquireOptions const& options;
  std::size_t outstanding;  ///< what its operation has yet to take, this included
  Allocation block{};
  OutOfMemory::Facts facts{};  ///< of the last refusal
  AccessContext* context = nullptr;
  TakenMemory* taken = nullptr;     ///< where it is counted as the operation's once it is granted; null: nowhere
  HostLimit const* host = nullptr;  ///< the limit that its pool shares with others, if it shares one

  /// Whether `block` now holds the memory.
  [[nodiscard]] bool granted();
  /// The same; nothing where that would wait for work.
  [[nodiscard]] std::optional<bool> granted_without_waiting();
  /// Whether it is granted in the end: once more if there is `hope`, and as often as memory has come back since.
  [[nodiscard]] bool granted_after_all(bool hope);

  /// Whether it was the shared limit that refused it: the pool may have less than its own leaves it.
  [[nodiscard]] bool is_refused_by_host() const;
  /// What others had of that limit when it refused.
  [[nodiscard]] std::size_t beside() const;
  /// Whether memory has come back since it was refused without having been asked for: of a buffer that ended or was
  /// freed meanwhile, which nothing else need tell.
  [[nodiscard]] bool outdated() const;
  /// Whether there is as much free as it takes, but beside blocks in use.
  [[nodiscard]] bool lies_in_pieces() const;
  /// Whether all that its operation needs could be granted if all candidates gave what they have, and others so many
  /// bytes besides.
  [[nodiscard]] bool within_reach(std::vector<Residents::Candidate> const& candidates,
                                  std::size_t others = 0) const noexcept;

  /// Throws OutOfMemory with what is known of the last refusal: of a limit that is shared, of all that share it.
  [[noreturn]] void refuse();

 private:
  template <class Acquire>
  [[nodiscard]] std::optional<bool> granted_by(Acquire const& acquire);
  /// Whether the block, which was cached, is larger than was asked for while its operation lacks room for the rest.
  [[nodiscard]] bool is_in_the_way_of_the_rest(Allocation const& given) const;
};

}  // namespace unimem::detail
