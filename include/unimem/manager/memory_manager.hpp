#pragma once

#include <unimem/core/export.hpp>
#include <unimem/device/device.hpp>
#include <unimem/manager/detail/resident.hpp>
#include <unimem/manager/links.hpp>
#include <unimem/manager/optimization.hpp>
#include <unimem/manager/options.hpp>
#include <unimem/manager/placement.hpp>
#include <unimem/manager/pressure.hpp>
#include <unimem/manager/usage.hpp>
#include <unimem/pool/memory_pool.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <span>
#include <string>
#include <vector>

namespace unimem {

template <class T>
class UnifiedBuffer;
class Ownership;

namespace detail {
class AccessContext;
class AdmissionQueue;
struct RoomRequest;
class SleepBook;
class SpillFiles;
struct FileTraffic;
class UsageBook;
class UseClock;
}  // namespace detail

/// What becomes of memory that buffers have not given back when their manager ends.
struct LeakOptions {
  /// Whether it is reported when the manager is destroyed, or when the process exits, for the default one; nothing is
  /// said if there is none. For the default manager `UNIMEM_LEAKS=1` sets it.
  bool report_at_end = false;
  /// Which allocations' stacks are captured, and so of which blocks and pooled buffers it is known where they were
  /// given back first if they are released once more (`PoolOptions::stacks`, BufferPool). UnsupportedOperation where
  /// the library cannot. For the default manager `UNIMEM_LEAK_STACKS=n`.
  StackOptions stacks{};
  /// Called with the report; must not throw. Empty: its text goes to the standard error output.
  std::function<void(LeakReport const&)> report{};
};

/// Where host memory of buffers goes when there is no more of it.
struct SpillOptions {
  /// An existing directory, in which a file without a name is made for each copy that is taken out of memory. IoError
  /// if none can be made there. Empty: host memory stays where it is. For the default manager `UNIMEM_SPILL=directory`.
  /// A directory that is itself in memory (tmpfs) gains nothing.
  std::string directory{};
  /// Bytes: smaller copies stay in memory, since each takes a file, of which a process may have so many open.
  std::size_t min_bytes = std::size_t{64} << 10;
};

/// How a manager behaves.
struct ManagerOptions {
  PoolOptions pools{};         ///< for every pool it makes (`zero_on_release`); limits are set with `set_limit`
  LinkOptions links{};         ///< how the ways between memories are measured
  PressureOptions pressure{};  ///< where its levels begin
  LeakOptions leaks{};         ///< what is said of memory that is never given back
  SpillOptions spill{};        ///< where host memory goes when there is no more of it
};

/// One (device, location) pair's share of a manager's memory.
struct PoolUsage {
  std::string device;
  Location location = Location::device;
  PoolStatistics pool;
};

/// All memory of one manager. Invariant: the totals are the sums over `pools`, each of which is consistent in itself;
/// pools are looked at one after the other, so what other threads do meanwhile may show in one and not yet in the next.
struct GlobalMemoryStatistics {
  std::uint64_t total_allocations = 0;
  std::uint64_t active_allocations = 0;
  std::size_t active_bytes = 0;
  std::size_t pooled_bytes = 0;
  std::size_t reserved_bytes = 0;
  std::uint64_t reclaims = 0;              ///< times a resident gave device memory back under pressure
  std::uint64_t failed_reclaims = 0;       ///< times one could not, because saving what only the device holds failed
  std::size_t reclaimed_bytes = 0;         ///< what the reclaims freed
  std::uint64_t host_reclaims = 0;         ///< times a buffer gave host memory back, since it may be spilled
  std::uint64_t failed_host_reclaims = 0;  ///< times one could not, because its bytes could not be written to a file
  std::size_t host_reclaimed_bytes = 0;    ///< what those reclaims freed
  std::uint64_t spills = 0;  ///< ranges written to files: what neither a device nor the file had when it was reclaimed
  std::size_t spilled_bytes = 0;      ///< that were written to files
  std::uint64_t restores = 0;         ///< ranges read from files, when they were needed again
  std::size_t restored_bytes = 0;     ///< that were read from files
  std::uint64_t direct_reads = 0;     ///< times bytes were read from a file to the caller's memory, which stay there
  std::size_t direct_read_bytes = 0;  ///< that were read so, since the host had no memory for their copies
  std::size_t spill_files = 0;  ///< files now: each has current bytes of a buffer, be they in memory as well or not
  std::size_t spill_file_bytes = 0;      ///< that are in files now
  std::uint64_t file_reads = 0;          ///< ranges read from files that buffers were made from
  std::uint64_t file_read_bytes = 0;     ///< that were read from them
  std::uint64_t file_direct_bytes = 0;   ///< of these, past the page cache
  std::uint64_t file_uring_bytes = 0;    ///< and of those, by io_uring; the others by threads
  std::size_t file_mapped_bytes = 0;     ///< of such files, in memory now as their own pages, beside every limit
  std::uint64_t file_writes = 0;         ///< ranges written to them
  std::uint64_t file_written_bytes = 0;  ///< that were written to them
  std::uint64_t cache_trims = 0;         ///< times other pools' caches made room
  std::uint64_t defragmentations = 0;    ///< times blocks in use were moved together to make room
  std::uint64_t waits = 0;               ///< times an operation was begun again after others that were in its way
  std::uint64_t refusals =
      0;  ///< requests that nothing of all that helped: each OutOfMemory once, and each direct read
  std::uint64_t refused_pinnings = 0;       ///< times ordinary host memory served since none could be locked
  std::uint64_t missing_unified = 0;        ///< times something else served since the device has no unified memory
  std::uint64_t pressure_calls = 0;         ///< of callbacks for memory pressure
  std::uint64_t failed_pressure_calls = 0;  ///< of these, that threw
  std::uint64_t merged_crossings = 0;       ///< that were told with others, behind a callback that was stuck
  std::vector<PoolUsage> pools;
};

/// The most that a manager may reserve at one location of a device.
struct MemoryLimit {
  std::string device;
  Location location = Location::device;
  std::size_t limit_bytes = 0;  ///< the device's capacity where nothing less is set
};

/// What a manager's memory has come to, as plain values: to be kept, compared and rendered (`to_json`, `to_text`,
/// `to_prometheus`). Its parts are looked at one after the other, each at a moment of its own.
struct MemorySnapshot {
  GlobalMemoryStatistics statistics{};
  Usage usage{};                      ///< by device, location and name
  LeakReport live{};                  ///< what buffers have not given back: leaks, once they all should have
  std::vector<MemoryLimit> limits{};  ///< of every place in `statistics.pools`
};

/// Memory of every device and location, with limits, for everything that lives on it. Makes pools on demand, and when a
/// device is full asks the cheapest residents to give their copies back before it gives up.
///
/// Thread-safe. Buffers may outlive it: they keep its pools, limits and statistics until the last of them is gone.
/// Pools and plain allocations may not. The default manager lives as long as the process. In a forked child the
/// parent's managers throw UnsupportedOperation, and the default manager is another.
class UNIMEM_API MemoryManager {
 public:
  explicit MemoryManager(ManagerOptions options = {});
  MemoryManager(MemoryManager const&) = delete;
  MemoryManager& operator=(MemoryManager const&) = delete;

  /// Memory that buffers have not given back is reported if that was asked for. Such buffers go on working, under the
  /// same limits, and may take more memory; what was cached is given back now, and callbacks for memory pressure are
  /// not called any more. No other thread may be inside a call to this object.
  ~MemoryManager();

  /// A buffer of `count` elements, contents undefined, with memory where it was asked for: at a location, or where a
  /// placement comes to, which `place` decides if it is automatic. What was given is told by the buffer's `location()`
  /// and `placement()`. Locked memory that is refused is replaced by ordinary host memory, unified memory that a
  /// placement asks for and the device does not have by locked; both are counted in `statistics()`. Throws
  /// InvalidArgument if placement and location contradict each other, UnsupportedOperation for a location that is not
  /// served. Defined in <unimem/buffer/unified_buffer.hpp>.
  /// `site`: where it is made, by which its use is recorded if it has no name.
  template <class T>
  [[nodiscard]] UnifiedBuffer<T> allocate(std::size_t count, AllocationOptions const& options = {},
                                          std::source_location const& site = std::source_location::current());

  /// A buffer holding a copy of `data`.
  template <class T>
  [[nodiscard]] UnifiedBuffer<T> allocate(std::span<const T> data, AllocationOptions const& options = {},
                                          std::source_location const& site = std::source_location::current());

  /// A buffer over `count` elements of existing host memory (`Location::host` or `Location::pinned`), without copying;
  /// its contents are current. `pinned` says that the caller has page-locked it, so that devices copy from it directly.
  /// Of no elements nothing is ever used, and memory that is taken goes back at once. Throws InvalidArgument for null
  /// or misaligned memory, UnsupportedOperation for other locations. Defined in <unimem/buffer/unified_buffer.hpp>.
  template <class T>
  [[nodiscard]] UnifiedBuffer<T> wrap(T* pointer, std::size_t count, Location location, Ownership ownership);

  /// The pool that serves a location of a device. Host and pinned memory of every device come from the cpu device's
  /// pools.
  [[nodiscard]] MemoryPool& pool(Device& device, Location location);

  /// Memory from that pool. If it is full, the device's other pools give their caches back, and if it is device memory,
  /// blocks of residents are moved together where there is enough between them, as `defragment` does; then residents
  /// are asked to make room, those that lose least by it first, until it fits; none is asked if all of them
  /// could not make enough. For host memory, pageable or pinned, they are asked if there is a directory to spill to:
  /// those of whose host memory no address was given out. Where what is missing is in use by operations of other
  /// threads, those are waited for: ten seconds at most for device memory, and a fifth of a second for host memory,
  /// some of which is taken with a buffer's lock held that they may be waiting for in turn. Then throws OutOfMemory
  /// with the largest holders, what leases pin, and why a resident could not give back, if one failed to.
  [[nodiscard]] Allocation acquire(Device& device, Location location, std::size_t bytes,
                                   AcquireOptions const& options = {});

  /// Bytes that could still be allocated on a device: its limit (or capacity) less what is live there from this
  /// manager; cached blocks count as free.
  [[nodiscard]] std::size_t available_memory(Device& device) const;
  /// The limit, or the device's capacity if none is set or it is smaller.
  [[nodiscard]] std::size_t total_memory(Device& device) const;
  /// Bounds the memory this manager reserves at Location::device of a device; of the cpu device all of the host's
  /// memory together, pinned memory included. Cached blocks are given back if need be. Throws InvalidArgument, and
  /// changes nothing, if it is below what is live. `UNIMEM_LIMITS` in the environment, such as
  /// `sim:0=1GiB;cpu/pinned=256MiB`, limits every manager from its beginning on, and no limit set here goes beyond.
  void set_limit(Device& device, std::size_t bytes);
  /// The same for one location: pageable and pinned memory are the host's, whatever device is named, and the limit of
  /// either holds within that of all of the host's memory.
  void set_limit(Device& device, Location location, std::size_t bytes);
  /// The least of what bounds a location of a device, however that was set: its own limit, of the host's memory that of
  /// all of it, the device's capacity.
  [[nodiscard]] std::size_t limit(Device& device, Location location) const;

  /// Which allocations' stacks it captures, as it was made with.
  [[nodiscard]] StackOptions const& stacks() const noexcept;

  [[nodiscard]] GlobalMemoryStatistics statistics() const;

  /// The statistics, `usage`, `leak_report` and the limits in one. O(live allocations).
  [[nodiscard]] MemorySnapshot snapshot() const;

  /// Where a buffer of that many bytes should be at home, and why: by the table, by what buffers of its name, or for
  /// those without one from the same place in the program (`Name::of`), were used for so far, and by what is free on
  /// the device now. Links are asked, and the first time measured, only if such buffers have been copied.
  [[nodiscard]] PlacementDecision place(Device& device, PlacementQuestion const& question, Name name = {});

  /// What new buffers on this device should ask for, by the rows of the table, from what all buffers were used for,
  /// those of one name, or of one place in the program, taken together. Its hints say also what is short and what has
  /// been refused.
  [[nodiscard]] PlacementRecommendations recommendations(Device& device);

  /// The memory of buffers by device, location and name, at one moment: those that are made and destroyed meanwhile
  /// wait. O(live allocations). Memory that was wrapped, and what is acquired without a buffer, is in none of it.
  [[nodiscard]] Usage usage() const;

  /// Every piece of memory that a buffer of this manager has, likewise.
  [[nodiscard]] std::vector<LiveAllocation> live() const;

  /// The same as what has not been given back: the largest first.
  [[nodiscard]] LeakReport leak_report() const;

  /// Acts on what is known of the use of buffers. Locks the host memory of those that are copied to and fro so often
  /// that locked pages would have been faster, where that stands in pages of its own; else when it is next taken; none
  /// where it may be spilled. Gives back devices' copies that are not about to be used and that the host has as well,
  /// and what pools have cached. Brings evicted copies back that are about to be used, as far as there is room, without
  /// waiting for them. Contents, and addresses that were given out, stay as they are. Looks only at buffers that have
  /// been on a device; those that are busy or leased stay as they are. One that cannot be improved, for want of memory
  /// say, is passed over and told to the log. Links are measured if they are not known yet.
  OptimizationReport optimize(OptimizationLimits const& limits = {});

  /// Gives all cached blocks back; returns the bytes. Never touches live memory.
  std::size_t cleanup();

  /// Brings the memory of a device together, as `MemoryPool::defragment` does, and moves blocks in use as well: those
  /// of residents of which no address was given out and no work is pending, each if it leaves more pages free as a
  /// whole, or emptier slabs, the smallest first. They are copied within the device, one after the other, waiting for
  /// each; leased, mapped and busy ones stay. Each block moves once at most, so that this ends whatever others do
  /// meanwhile. Afterwards free pages are there to be trimmed. Where blocks are allocations there is nothing to do.
  /// Throws what the device throws; what had been moved until then stays moved, and nothing is lost.
  PoolDefragmentation defragment(Device& device, DefragmentationLimits const& limits = {});

  /// How full a location of a device is, exactly and now, by what is live there from this manager. `none` where it has
  /// taken nothing yet.
  [[nodiscard]] PressureLevel pressure(Device& device, Location location);

  /// Calls `callback` for every crossing from now on, of every device and location, as long as the subscription lives:
  /// once a crossing, upwards and downwards, the latter only `hysteresis` further down. It is noticed where this
  /// manager is asked for memory, a limit, its pressure or a cleanup; what was released meanwhile shows then. While
  /// more than a thousand crossings wait for callbacks that do not return, later ones of a device and location are told
  /// as one, which goes from where the first began to where the last ended, and counted (`merged_crossings`).
  ///
  /// Callbacks run on a thread of the manager's, one after the other in the order of the crossings, under no lock: they
  /// may allocate, release, clean up and set limits here, and hear of what they cross by that when they have returned.
  /// What one throws is logged and counted, and it is called again next time. They must not destroy the manager. While
  /// the process ends no callback is called. Throws InvalidArgument for an empty function, and what starting a thread
  /// throws.
  [[nodiscard]] PressureSubscription on_pressure(PressureCallback callback);

  /// Returns when callbacks have been told all that was noticed before the call, but not what they have caused by that;
  /// at once within one, and while the process ends.
  void settle_pressure();

  /// How fast bytes travel between the host and devices, found out when first asked.
  [[nodiscard]] Links& links() noexcept;

  /// For residents: known to the manager between the two calls. `remove` returns only when no call into the resident is
  /// running, but for one on the calling thread's own stack: a resident may remove itself while it is being reclaimed.
  void add_resident(Resident& resident);
  void remove_resident(Resident& resident) noexcept;
  /// Between the two: its last owner is gone, and no further call goes into it. Returns when none is running; false if
  /// one would never return meanwhile: it is on the caller's own stack, or waits for work that the caller is in.
  [[nodiscard]] bool retire_resident(Resident& resident) noexcept;

  /// For residents with a name: found by `named` between the two calls, whether they have memory or not.
  void add_named(Resident& resident);
  void remove_named(Resident& resident) noexcept;
  /// All there are now, each held as by `Resident::hold`. O(all of them).
  [[nodiscard]] std::vector<std::shared_ptr<Resident>> named() const;
  /// Which of them sleep. Lives as long as the manager.
  [[nodiscard]] detail::SleepBook& sleep_book();

  /// For operations on residents: memory, as `acquire` gives it to others. Nothing: room has to be made, or other
  /// operations are in the way, and the context says what is to come before another try, with no resident locked.
  [[nodiscard]] std::optional<Allocation> acquire(detail::AccessContext& context, Device& device, Location location,
                                                  std::size_t bytes, AcquireOptions const& options);
  /// Makes that room, with no resident locked; a refusal does not count yet. Nothing: other operations are in the way.
  [[nodiscard]] std::optional<Allocation> make_room(detail::AccessContext& context, detail::RoomRequest const& wanted);
  /// While it is made, the parts of residents that this thread's operation works with stay: between the two calls.
  /// False for one that is not known.
  [[nodiscard]] bool begin_use(Resident& resident, ByteRange part);
  void end_use(Resident& resident) noexcept;

  /// For operations that others are in the way of: where they wait for their turn to make room on `device`. Counts the
  /// wait.
  [[nodiscard]] detail::AdmissionQueue& queue_to_wait_in(Device& device);

  /// For buffers: this manager for as long as it is held, which may be longer than this object lives.
  [[nodiscard]] std::shared_ptr<MemoryManager> share() const;

  /// For buffers: where their memory is entered. Lives as long as the manager, and for what is entered then still.
  [[nodiscard]] detail::UsageBook& usage_book() noexcept;
  /// For buffers: pinned host memory, or ordinary if there is none, which its location tells. Nothing, as `acquire`.
  /// Throws OutOfMemory if there is neither.
  [[nodiscard]] std::optional<Allocation> acquire_pinned_or_not(detail::AccessContext& context, std::size_t bytes,
                                                                AcquireOptions const& options);
  /// For buffers: ordinary memory serves, since the system locks none.
  void note_refused_pinning() noexcept;
  /// For buffers: where their host memory may go; null if it stays where it is. Lives as long as the manager.
  [[nodiscard]] detail::SpillFiles* spill_files() noexcept;
  /// For buffers that are made from files: what those move counts into.
  [[nodiscard]] std::shared_ptr<detail::FileTraffic> file_traffic() noexcept;
  /// For placements: something else serves, since the device has no unified memory.
  void note_missing_unified() noexcept;

  /// For residents: what their uses on a device are timed by. Lives as long as the manager.
  [[nodiscard]] detail::UseClock& use_clock(Device& device);

  struct State;  ///< what the manager's own sources see of it

 private:
  friend UNIMEM_API MemoryManager& default_manager();
  [[nodiscard]] std::optional<Allocation> acquire_on_host(detail::AccessContext& context, Device& device,
                                                          Location location, std::size_t bytes,
                                                          AcquireOptions const& options);
  /// Another way to that state, which does not own it: what the state hands out.
  explicit MemoryManager(State& shared) noexcept;
  /// Throws UnsupportedOperation in a forked child whose parent made this.
  [[nodiscard]] State& state() const;

  std::shared_ptr<State> state_;
};

/// The manager used when none is named. Lives as long as the process.
[[nodiscard]] UNIMEM_API MemoryManager& default_manager();

}  // namespace unimem
