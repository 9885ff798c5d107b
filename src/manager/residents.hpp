#pragma once

#include <unimem/core/byte_ranges.hpp>
#include <unimem/device/memory.hpp>
#include <unimem/manager/detail/resident.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <unordered_map>
#include <vector>

namespace unimem::detail {

/// The most that blocks for so many bytes have: residents may count the bytes they asked for, and a block is up to an
/// eighth, or 4 KiB, larger.
[[nodiscard]] constexpr std::size_t largest_block_of(std::size_t bytes) noexcept {
  constexpr std::size_t least = 4096;
  return bytes == 0 ? 0 : bytes + std::max(bytes / 8, least);
}

/// The residents of a manager, and the calls that are running into them.
///
/// Estimates are asked under the lock, since they do not block; eviction happens without it, since it copies. A
/// thread that is inside of a resident holds it (`Resident::hold`): removal would wait for that thread, and must not do
/// so on one that it waits for, such as one whose work was the resident's last owner. Two threads never evict one
/// resident at a time.
///
/// Thread-safe.
class Residents {
 public:
  /// One that could give memory back, as estimated.
  struct Candidate {
    Resident* resident = nullptr;
    Resident::Evictable evictable;
    MemoryPlace place;
  };

  /// What all residents say of some memory at one moment.
  struct Survey {
    std::vector<Candidate> candidates;  ///< those to ask, the best first
    std::size_t leased = 0;             ///< bytes that leases of users pin
    std::size_t busy = 0;               ///< bytes that may come when other threads have done with their holders
    std::size_t busy_blocks = 0;        ///< what their blocks may have at most
  };

  void add(Resident& resident);

  /// Returns when no call into the resident is running, except one that this very thread is inside of.
  void remove(Resident& resident) noexcept;

  /// How many have been removed so far.
  [[nodiscard]] std::uint64_t removals() const noexcept { return removals_.load(std::memory_order_acquire); }

  /// Its last owner is gone: from now on no call goes into it. Returns when none is running; false if one would never
  /// return meanwhile, since it is on this thread's own stack or waits for work that this thread is in the middle of.
  [[nodiscard]] bool retire(Resident& resident) noexcept;

  /// This thread's operation works with that part of it, though nothing of it is locked: until `end_use` the part
  /// stays, and to other threads all of it is busy. False for one that is not known.
  [[nodiscard]] bool begin_use(Resident& resident, ByteRange part);
  void end_use(Resident& resident) noexcept;

  /// Residents that could give memory of these places, all of one device, back: lower priorities first, and among
  /// equals those that lose least by it, which is its cost per byte, and the less the longer it will do without.
  /// Nothing is promised: by the time one is asked it may be busy, or gone.
  [[nodiscard]] Survey survey(std::span<const MemoryPlace> places);

  /// Has one give its memory at `place` back, with no lock held; 0 bytes when it is busy or gone. Throws what
  /// `Resident::evict` throws.
  std::size_t evict(Resident& resident, MemoryPlace place);

  /// Lets one move what it has to a better place, with no lock held; 0 bytes when it has not, or is gone. Throws what
  /// `try_relocate` throws.
  Resident::Relocation relocate(Resident& resident, Queue& queue, std::size_t most_bytes);

  /// All there are now, in no order: by the time one is visited it may be gone.
  [[nodiscard]] std::vector<Resident*> all() const;
  /// Lets one improve its place, with no lock held; a step of 0 bytes when it has not, is busy or gone. Throws what
  /// `try_optimize` throws.
  OptimizationStep optimize(Resident& resident, Device& device, Optimization what, OptimizationTerms const& terms);

 private:
  using Lock = std::unique_lock<std::mutex>;

  /// A thread whose operation it is an operand of, while that makes room.
  struct User {
    std::thread::id thread;
    ByteRange part;
  };
  /// The threads that work with a resident.
  struct Threads {
    std::thread::id inside;  ///< of it: none, or one
    std::vector<User> users;
    bool retired = false;

    [[nodiscard]] std::vector<ByteRange> used_by(std::thread::id thread) const;
    [[nodiscard]] std::vector<ByteRange> used_by_any() const;
    /// Whether others than that one are at it.
    [[nodiscard]] bool has_others_than(std::thread::id thread) const noexcept;
    /// Whether another thread than that is inside, or none may be any more.
    [[nodiscard]] bool is_closed_to(std::thread::id thread) const noexcept {
      return retired || (inside != std::thread::id{} && inside != thread);
    }
  };

  /// What `call(used)` returns from inside of a resident, which parts of are in use by this thread's operation, or by
  /// any where it gives memory of `place` beside them; nothing, as a value, if no thread may be there now.
  template <class Call>
  auto enter(Resident& resident, std::optional<MemoryPlace> place, Call const& call);

  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::atomic<std::uint64_t> removals_{0};
  std::unordered_map<Resident*, Threads> residents_;
};

}  // namespace unimem::detail
