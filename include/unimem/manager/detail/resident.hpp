#pragma once

#include <unimem/core/byte_ranges.hpp>
#include <unimem/core/export.hpp>
#include <unimem/device/memory.hpp>
#include <unimem/manager/optimization.hpp>

#include <cstddef>
#include <memory>
#include <span>

namespace unimem {

class Device;
class Queue;

/// Memory that can be short: a device's own, or the host's at one location, of a device that reaches it.
struct MemoryPlace {
  Device* device = nullptr;
  Location location = Location::device;

  friend bool operator==(MemoryPlace, MemoryPlace) = default;
};

/// Something that holds memory of a device, or of the host, and can give it back: what the manager sees of a buffer,
/// which stands one floor up.
class UNIMEM_API Resident {
 public:
  /// What could be had, and what it would cost.
  struct Evictable {
    std::size_t bytes = 0;    ///< that would become free; 0 when leased, in use or not there
    double cost_seconds = 0;  ///< write-back now plus the cost of bringing it back
    double wait = 1;          ///< how long it will do without, by its own estimate; 0: it is about to be used. The unit
                              ///< is the owner's, the same for all that are compared
    int priority = 0;         ///< those of lower priority give first, whatever it costs
    std::size_t leased = 0;   ///< bytes that leases of users pin
    bool busy = false;        ///< some other thread works with it just now: `bytes` it may give later
    std::size_t more = 0;     ///< what it could give after `bytes`, part by part

    /// What taking a byte from it costs, spread over the time until it is wanted again.
    [[nodiscard]] double loss() const noexcept {
      return cost_seconds == 0 ? 0 : cost_seconds / static_cast<double>(bytes) / wait;
    }
  };

  /// What came of moving it.
  struct Relocation {
    std::size_t copied = 0;  ///< bytes
    bool moved = false;      ///< not if it was used while it was copied: then the copy was in vain
  };

  Resident() = default;
  Resident(Resident const&) = delete;
  Resident& operator=(Resident const&) = delete;
  virtual ~Resident();

  /// What keeps it alive as long as it is held; null if it is ending already. Called under the manager's lock before
  /// each of the calls below, and let go of when that has returned, outside of the lock: what a call waits for may be
  /// the last to own the resident. What does not override it is kept by its owner, which removes it before it ends.
  [[nodiscard]] virtual std::shared_ptr<void> hold() noexcept;

  /// Whether it may give of the memory at `place` while other threads use it: parts that none of them uses, which are
  /// then told to it as the caller's are. Thread-safe.
  [[nodiscard]] virtual bool gives_beside_users(MemoryPlace /*place*/) const noexcept { return false; }

  /// What it could give of the memory at `place`: an estimate, without blocking; 0 bytes, and busy, while another
  /// thread works with it. The operation that room is made for uses those parts of it, which stay. Called under the
  /// manager's lock.
  [[nodiscard]] virtual Evictable evictable(MemoryPlace place, std::span<const ByteRange> used) noexcept = 0;

  /// Gives that memory back to its pool, once what only it holds is saved: to the host, to a device or to a file; of
  /// one that has it in parts, the part that it offers first beside those used. Returns how many bytes that were; 0
  /// when it is busy or leased now, or an address of it was given out. Called with no lock held; must not wait for a
  /// lock of another resident. Throws when saving fails, with nothing lost.
  virtual std::size_t evict(MemoryPlace place, std::span<const ByteRange> used) = 0;

  /// Moves what it holds in the memory of `queue`'s device to a better place in the same pool
  /// (`MemoryPool::acquire_better`), if there is one, it is at most `most_bytes` large, its address was not given out
  /// and no work on it is pending. Waits for the copy, which goes by `queue`, and for nothing else. Called with no lock
  /// held; must not wait for a lock of another resident. Throws when the copy fails, with nothing changed. What does
  /// not override it never moves.
  virtual Relocation try_relocate(Queue& queue, std::size_t most_bytes);

  /// Does one thing for its use on `device`, if it finds reason to by its own record: no bytes if it does not, or is
  /// busy. What the host may have the address of stays where it is. Called with no lock held; must not wait for a lock
  /// of another resident. Throws what taking memory and copying throw, with nothing lost. What does not override it
  /// does nothing.
  virtual OptimizationStep try_optimize(Device& device, Optimization what, OptimizationTerms const& terms);
};

}  // namespace unimem
