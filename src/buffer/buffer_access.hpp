#pragma once

#include <unimem/coherence/intent.hpp>
#include <unimem/core/byte_ranges.hpp>
#include <unimem/device/event.hpp>
#include <unimem/device/memory.hpp>

#include "buffer/transfer_engine.hpp"
#include "coherence/coherence.hpp"

#include <functional>
#include <optional>

namespace unimem {
class Queue;
}  // namespace unimem

namespace unimem::detail {

class AccessContext;
struct BufferParts;
class Replica;

/// The steps that accesses to one buffer consist of.
///
/// For the holder of the buffer's lock. What returns false, or nothing, has changed nothing: the context says for what
/// to wait with no lock held.
class BufferAccess {
 public:
  explicit BufferAccess(BufferParts& parts) noexcept : parts_(&parts) {}

  /// Makes `range` readable or writable at `place` in `queue`'s order. Read accesses are committed, writes are not.
  [[nodiscard]] bool prepare(AccessContext& context, Place place, ByteRange range, Intent intent, Queue& queue) const;
  /// All that this is where `range` is current at `place`: `queue` comes behind what conflicts with the access.
  void order(Place place, ByteRange range, Intent intent, Queue& queue) const;
  /// Whether the host may read `range` of the replica, or `writes` there; if not, the context says for what to wait.
  [[nodiscard]] bool await_or_wait(AccessContext& context, Replica& replica, ByteRange range, bool writes) const;
  /// Starts bringing `range` up to date on the host; when it will be there.
  [[nodiscard]] std::optional<Event> fetch(AccessContext& context, ByteRange range) const;
  /// Counts `range` as written at `place`, by work that ends with `event`, if it says when.
  [[nodiscard]] bool mark(AccessContext& context, Place place, ByteRange range, Event event) const;
  /// Where the plan's place has memory. Returns as `mark`.
  [[nodiscard]] bool mark_there(AccessContext& context, Plan plan, Event event) const;
  /// Lets `submit` queue work that overwrites all of `range` on the host, behind what it conflicts with.
  [[nodiscard]] std::optional<Event> overwrite_host(AccessContext& context, ByteRange range,
                                                    std::function<Event(Queue&, DeviceMemory)> const& submit) const;
  /// Saves what only `place` holds to `to`, and lets its memory go. What is under way stands in `carried` meanwhile.
  [[nodiscard]] bool release(AccessContext& context, Place place, Place to,
                             std::optional<TransferEngine::CarriedOut>& carried) const;
  /// The same of a part of it, whose memory goes when every place over it has let it go.
  [[nodiscard]] bool release(AccessContext& context, Place place, ByteRange part, Place to,
                             std::optional<TransferEngine::CarriedOut>& carried) const;
  /// The same of that part of the host's memory, at every place that works in it.
  [[nodiscard]] bool release_in_host_memory(AccessContext& context, ByteRange part, Place to,
                                            std::optional<TransferEngine::CarriedOut>& carried) const;
  /// As `release` where `to` has all that `place` holds, so that nothing is waited for.
  void release_now(Place place, Place to) const;

 private:
  /// Carries out a plan that saves what is about to go.
  [[nodiscard]] bool save(AccessContext& context, Plan& plan, std::optional<TransferEngine::CarriedOut>& carried) const;

  BufferParts* parts_;
};

}  // namespace unimem::detail
