#pragma once

#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/core/name.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "buffer/advice_book.hpp"
#include "buffer/fast_lease.hpp"
#include "buffer/host_writes.hpp"
#include "buffer/pending_work.hpp"
#include "buffer/stale_views.hpp"
#include "buffer/storage.hpp"
#include "buffer/written_map.hpp"
#include "coherence/coherence.hpp"
#include "manager/admission.hpp"
#include "manager/forked_locks.hpp"
#include "manager/use_history.hpp"

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace unimem {

namespace detail {

/// Which path the bytes of a copy between host and device took.
enum class CopyPath : unsigned char {
  direct,
  staged,    ///< by way of pinned blocks
  unstaged,  ///< directly, for want of pinned memory
};

}  // namespace detail

/// What a BufferCore keeps behind its lock. Its functions expect the lock to be held; the files beside this one divide
/// them by what they are about: memory on each side (side_memory.cpp), what was written and whether it has arrived
/// (resolving.cpp), moving bytes (transfers.cpp), and the rest (inside.cpp); what the lock's holders do with them is in
/// lifetime.cpp, host_access.cpp, device_work.cpp and copies.cpp.
struct BufferCore::Inside {
  /// Whether a WaitWatch may end the waiting for the lock: not for what has to be finished.
  enum class Watched : bool { no, yes };
  /// What the user has said of the next use.
  enum class NextUse : unsigned char { unsaid, soon, none };
  struct Side {
    Device* device = nullptr;
    detail::UseClock* clock = nullptr;  ///< of the device, for `history`
    std::shared_ptr<detail::Storage> storage;
    detail::UseHistory history{};
    NextUse next_use = NextUse::unsaid;
  };
  struct Counters {
    std::atomic<std::uint64_t> upload_bytes{0}, uploads{0};
    std::atomic<std::uint64_t> download_bytes{0}, downloads{0};
    std::atomic<std::uint64_t> between_bytes{0}, between{0};
    std::atomic<std::uint64_t> conflicting_marks{0}, unmarked_writes{0};
    std::atomic<std::uint64_t> staged{0}, unstaged{0};
  };

  /// What was written through a mapping of the host's memory: `parts` of `range`, or all of it where there are none.
  struct MappedWrite {
    ByteRange range;
    ByteRanges parts;
  };

  /// How long its copies took. Apart, and shared: copies may end after the buffer.
  struct Meters {
    TransferMeter uploads, downloads, between;
  };

  Inside(std::size_t bytes, BufferOptions&& options);

  static void* operator new(std::size_t /*of one*/);
  static void operator delete(void* memory) noexcept;

  [[nodiscard]] ByteRange whole() const noexcept { return {0, bytes}; }
  [[nodiscard]] Device& default_device();
  /// The default device is known, and the host has no memory yet: whose it is going to be.
  void choose_host_memory() noexcept;
  /// Whether the host's memory is the device's as well: it reaches all of it, or the host uses the device's own.
  [[nodiscard]] bool shares(Device const& with) const noexcept;
  [[nodiscard]] std::string display_name() const;

  /// Throws UnsupportedOperation in a forked child where a thread of the parent's holds it, and in the middle of work
  /// that the lock's holder waits for; WaitInterrupted where the process's WaitWatch ends it, if it may.
  void lock(Watched watched = Watched::yes) {
    if (!mutex.try_lock()) [[unlikely]]
      lock_contended(watched);
  }
  void lock_contended(Watched watched);
  [[nodiscard]] bool try_lock() noexcept { return mutex.try_lock(); }
  void unlock() noexcept { mutex.unlock(); }
  [[noreturn]] void throw_lost() const;
  [[nodiscard]] std::string place_name(Place place) const;

  [[nodiscard]] bool has_any_storage() const;
  /// Whether every byte of `range` is current at `place`.
  [[nodiscard]] bool holds(Place place, ByteRange range) const;
  /// A device that has memory of its own, is not lost and holds all of `range`, the default one first; null if none
  /// does.
  [[nodiscard]] Device* device_holding(ByteRange range) const;
  /// Whether `range` is current at `place`, with no write to it and no doubt about it pending.
  [[nodiscard]] bool is_quiet(Place place, ByteRange range) const;
  /// A device whose copy is complete, with no work pending in this buffer; null if there is none.
  [[nodiscard]] Device* quiet_device() const;

  /// BufferNotAllocated when strict and `allocate()` has not been called.
  void check_access(std::string_view operation) const;
  /// BufferNotAllocated unless some side has storage.
  void check_allocated(std::string_view operation) const;
  /// UnsupportedOperation while launches with the buffer are being captured.
  void check_not_captured() const;
  /// Throws InvalidArgument if `range` does not lie in the buffer: it may have been resized under a slice.
  void check_range(ByteRange range) const;
  /// Throws InvalidArgument if the place is leased or mapped.
  void check_not_leased(Place place) const;

  /// The place of a device, added when it is new.
  Place place_of(Device& device);
  [[nodiscard]] std::optional<Place> find_place(Device const& device) const noexcept;
  [[nodiscard]] Side& side(Place place) { return sides[place - 1]; }
  [[nodiscard]] CopyCost cost() const;
  /// Work of `place`'s device on that many bytes begins.
  void note_use(Place place, std::size_t used) noexcept;
  /// Leases that were taken without the lock were uses too.
  void record_fast_uses() noexcept;
  /// What a device has that could be had, and at what loss.
  [[nodiscard]] Reclaimable offer(Device& from) const noexcept;
  /// Publishes for lock-free readers on which devices there is memory.
  void publish_places() noexcept;

  /// The storage that host accesses work in, whichever place it came to first; null if there is none.
  [[nodiscard]] std::shared_ptr<detail::Storage> const& in_memory_of_host() const noexcept;
  /// Whether its host memory at `location` may be spilled now, as far as the buffer is concerned.
  [[nodiscard]] bool may_spill(Location location) const noexcept;
  /// What could be had of it, and at what loss.
  [[nodiscard]] Reclaimable spill_offer(Location location) const noexcept;
  /// This storage is about to be used: its bytes come back if they are away, and if it is the host's that was
  /// a use. Throws OutOfMemory and IoError, with nothing changed.
  /// Of bytes that are about to be overwritten, all of them, nothing is read.
  void ensure_resident(detail::Storage& storage, bool overwritten = false) {
    if (spill_files != nullptr && (storage.serves_host() || storage.away())) ensure_resident_slow(storage, overwritten);
  }
  void ensure_resident_slow(detail::Storage& storage, bool overwritten);

  /// The host's memory: what stands already, a sharing device's, or a new block.
  /// Null: other operations are in the way, and the context says for what to wait.
  [[nodiscard]] std::shared_ptr<detail::Storage> host_memory(detail::AccessContext& context);
  [[nodiscard]] std::shared_ptr<detail::Storage> new_host_memory(detail::AccessContext& context, std::size_t size);
  /// Memory of a pool of the host's, and the part of it that is to be used.
  struct HostBlock {
    Allocation block;
    DeviceMemory part;
  };
  [[nodiscard]] HostBlock new_host_block(std::size_t size);
  [[nodiscard]] std::shared_ptr<detail::Storage> new_device_memory(detail::AccessContext& context, BufferCore& self,
                                                                   Device& device, std::size_t size, Queue& queue);
  /// Sees to it that there is memory; false, with nothing changed: other operations are in the way, and the context
  /// says for what to wait with no lock held.
  [[nodiscard]] bool ensure_host(detail::AccessContext& context, ByteRange overwritten = {});
  /// A new block is taken in `queue`'s order.
  [[nodiscard]] bool ensure_device(detail::AccessContext& context, BufferCore& self, Place place, Queue& queue);
  [[nodiscard]] bool ensure(detail::AccessContext& context, BufferCore& self, Place place);
  /// The same for a caller that keeps its locks, so that it waits for no other operation.
  void ensure_host_now(ByteRange overwritten = {});
  [[nodiscard]] AcquireOptions named() const;
  /// How things stand in a buffer of that size with these devices and without storage.
  [[nodiscard]] Coherence fresh_coherence(std::size_t size) const;
  /// All storage goes, with the data in it. `fresh` is for that size.
  void drop_everything(Coherence fresh, std::size_t new_size) noexcept;
  /// What was said of the buffer and counted goes, for a reset or another owner.
  void forget_history() noexcept;
  /// Calls `each(Storage&)` for all memory it has.
  template <class Do>
  void for_each_storage(Do const& each);

  /// Looks at the work in flight on `range`, or waits for it. What has failed is rolled back, and its error thrown.
  /// First of all, what users wrote behind the library's back is recorded; CoherenceConflict if it has run into a
  /// device's, unless the caller is about to `decide` which of the two counts.
  void resolve_pending(ByteRange range, bool wait, bool decide = false);
  /// Of that, the work in flight alone: the first failure, which has been rolled back; null if all is well.
  [[nodiscard]] std::exception_ptr resolve_work(ByteRange range, bool wait);
  /// Waits for that work where doing so may end with an error, before anything has changed: in the middle of work, and
  /// in a watched thread.
  void await_pending(ByteRange range) const;
  /// All of it, on behalf of a thread that needs memory. Failures are the owner's to hear of: they wait for its next
  /// access.
  void resolve_for_eviction(bool wait);
  /// Whether that would wait in the middle of work of the host's, where others are not waited for.
  [[nodiscard]] bool would_wait_in_work() const;
  /// What was written through mappings comes last. Without `wait`, what a device that shares the memory is still
  /// writing is left for later.
  void collect_host_writes(bool decide, bool wait = true);
  /// Host memory is about to be mapped to be written: makes room in `unrecorded`, so that saying what was written takes
  /// no memory. Throws std::bad_alloc, changing nothing.
  void expect_mapped_write();
  /// Puts on record what was written through mappings; what goes wrong, the next access raises. Throws std::bad_alloc,
  /// and what `ensure_host` throws, with what is left to do still to be done.
  void record_mapped_writes();
  /// What was written to the host's memory is recorded now, or by the next operation where there is no memory for it.
  void try_to_record_writes();
  void record_mapped_write(MappedWrite const& write);
  /// Whether writes to the host's memory are noticed, as soon as there is any.
  [[nodiscard]] bool watches_host() const;
  /// What notices writes to host memory that serves for `size` bytes; null where only the library's own count.
  [[nodiscard]] std::unique_ptr<detail::HostWrites> watched(std::shared_ptr<detail::Storage> const& memory,
                                                            std::size_t size) const;
  /// Begins to notice what is written to the host memory that has just come.
  void watch_host();
  /// For complaints: what was declared last.
  void note(std::string_view what, ByteRange range);

  /// Failures have been dealt with: later work does not need what failed.
  void forget_ended() noexcept;

  /// Whether events are of the work they are named for and of nothing else, or of the last piece of it.
  enum class Events : unsigned char { of_all, of_the_end };
  /// Commits a plan whose work ends with `events`, or throws and has changed nothing.
  void commit(Plan plan, std::vector<Event> events, Events what = Events::of_all);
  /// A write, with all that recording it takes.
  struct PlannedWrite {
    Plan plan;
    Coherence::Undo undo;
    std::vector<Event> end;  ///< one, to be filled in
  };
  /// What may fail of committing a write, for work that is about to be submitted and cannot be called back then. Until
  /// it is committed nothing is but what is planned with it: as many writes at `place` as `together` says.
  [[nodiscard]] PlannedWrite plan_write(Place place, ByteRange range, std::size_t together = 1);
  /// The work has been submitted, and ends with `event`.
  void commit(PlannedWrite write, Event event, Events what) noexcept;
  /// Commits a plan to read whose copies end with `events`, each by itself: where one fails, what another has brought
  /// stays.
  void commit_copies(Plan const& plan, std::span<const Event> events);
  /// Commits a write at `place` that ends with `event`.
  void commit_write(Place place, ByteRange range, Event event, Events what);

  /// Throws DataLost if the plan needs bytes that are lost.
  void check_lost(Plan const& plan) const;

  /// Whether the place's memory has addresses that the host may use: the host's own, or a device's that shares it.
  [[nodiscard]] bool in_host_memory(Place place) const noexcept;
  /// The memory behind a place; null without storage, or of a buffer without bytes.
  [[nodiscard]] std::shared_ptr<detail::Storage> const& storage_at(Place place) const {
    return place == host_place ? host : sides[place - 1].storage;
  }

  /// What reading `range` at `place` needs, sparing what is good there.
  [[nodiscard]] Plan plan_read(Place place, ByteRange range);
  /// A copy goes across bytes that are current there already only if those it brings are certain (should they fail,
  /// they would have been brought over the last good copy), and if no address was given away through which code may be
  /// writing there, to declare it later.
  void spare_good_bytes(Plan& plan) const;
  /// A copy between host and device goes across bytes that are current there as the rows of a rectangle, which leave
  /// them out, where they are one and that is cheaper.
  void part_into_rows(Plan& plan) const;
  [[nodiscard]] std::vector<ByteRange> rows_in(PlannedCopy const& copy, CopyCost const& costs) const;
  /// Submits the copies of a plan, each behind the work it conflicts with: on `queue` where that is the device's, else
  /// on the device's default queue. Adds an event for each copy: copies that go as one piece of work have one for all
  /// of them.
  void start_copies(Plan const& plan, Queue* queue, std::vector<Event>& events);
  /// Submits the copies of a plan and commits it.
  void bring(Plan const& plan, Queue* queue);
  /// A plan will not be carried out, or not be on record: blocks until what has been started of it, which ends with
  /// `events`, has ended, so that nothing of it is pending.
  void give_up(Plan const& plan, std::span<const Event> events);
  /// Ranges that go from one place as one piece of work.
  struct Batch {
    Place from = host_place;
    std::vector<std::size_t> copies;  ///< of the plan, by index, ascending
    ByteRanges ranges;
  };
  [[nodiscard]] std::vector<Batch> batches_of(Plan const& plan) const;
  /// What the time of a copy from one place to another counts into.
  [[nodiscard]] SharedMeter meter(Place from, Place to);
  /// Counts one copy, or several that went as one piece of work.
  void count(Place from, Place to, std::size_t moved, detail::CopyPath way = detail::CopyPath::direct,
             std::size_t copies = 1);
  /// Submits them and waits; throws the first error when all have ended.
  void carry_out(Plan const& plan);
  void note_arrivals(Plan const& plan);

  /// Has the manager know it, on behalf of an operation in progress.
  void become_resident(BufferCore& self);

  /// Makes `range` readable or writable at `place` in `queue`'s order. Read accesses are committed, writes are not.
  [[nodiscard]] bool prepare(detail::AccessContext& context, BufferCore& self, Place place, ByteRange range,
                             Intent intent, Queue& queue);
  /// Starts bringing `range` up to date on the host; when it will be there.
  Event fetch(ByteRange range);
  /// When `range` at `place` will have arrived.
  [[nodiscard]] Event arrival(Place place, ByteRange range, Queue& queue);

  /// Starts copying `part`, which is valid at that device's place, to memory that is no buffer's.
  Event download_directly(Place place, ByteRange part, std::byte* to);

  /// Lets `submit` queue work that overwrites all of `range` on the host, behind what it conflicts with.
  Event overwrite_host(ByteRange range, std::function<Event(Queue&, DeviceMemory)> const& submit);

  /// Which of the buffer's bytes lie in the host memory named, of which a user may have an address; empty for none.
  [[nodiscard]] ByteRange in_own_host_memory(void const* pointer, std::size_t count) const noexcept;

  [[nodiscard]] bool mark(detail::AccessContext& context, BufferCore& self, Place place, ByteRange range, Event event);
  /// Where the plan's place has memory.
  void mark_there(Plan plan, Event event);

  /// Lets further read leases on `storage`, which work on `queue` has been promised, come and go without the lock as
  /// long as nothing changes.
  void offer_leases(std::shared_ptr<detail::Storage> const& storage, Queue const& queue);
  /// At the end of an operation: opens it if the storage is as its leases may expect.
  void open_fast_lease() noexcept;

  // What optimizing does (optimizing.cpp); the bytes it was done to.
  std::size_t pin_host(OptimizationTerms const& terms, OptimizationStep& step);
  std::size_t release_idle(BufferCore& self, Place place, OptimizationTerms const& terms);
  std::size_t place_ahead(BufferCore& self, Place place, OptimizationTerms const& terms, OptimizationStep& step);

  /// Saves what only `place` holds to `to`, and lets its storage go.
  [[nodiscard]] bool release(detail::AccessContext& context, BufferCore& self, Place place, Place to);
  /// The same for a caller that keeps its locks, so that it waits for no other operation.
  void release_now(BufferCore& self, Place place, Place to);

  std::size_t bytes;
  BufferOptions options;
  std::shared_ptr<MemoryManager> manager;  ///< goes after all memory that came from it
  detail::SpillFiles* spill_files;         ///< of the manager; null: host memory stays where it is
  /// When the host's memory was used, where it may go to files.
  struct HostUses {
    detail::UseClock& clock;
    detail::UseHistory history{};
  };
  std::unique_ptr<HostUses> host_uses;
  Device* device = nullptr;   ///< decided at first use: looking for drivers takes time
  Device* unified = nullptr;  ///< whose unified memory serves the host; null: the host has its own
  Name name;
  Name key;  ///< what its use is known by: its name, or where it was made
  std::uint64_t id;
  mutable detail::LastingMutex mutex;
  std::atomic<detail::FastLease*> fast_lease{nullptr};  ///< once made, for the life of the buffer
  std::atomic<unsigned> pins{0};  ///< operations in progress: their buffer must not be reclaimed, nor its lock tried
  std::atomic<bool> counts_pins{false};   ///< from when the manager may know it on: before, it is not asked
  std::atomic<unsigned> keepers{1};       ///< its owners together, and each reclaiming thread: the last one ends it
  std::atomic<std::thread::id> holder{};  ///< of the lock, if it is held for an operation; a thread knows its own
  std::atomic<int> priority{0};
  std::atomic<Device const*> only_on{nullptr};  ///< the one device that there is memory on, if there is one
  std::atomic<bool> on_several{false};
  std::atomic<std::size_t> published_bytes{0};  ///< `bytes`, for lock-free readers
  std::atomic<std::size_t> spillable_bytes{0};  ///< of host memory that might be spilled, likewise
  Coherence coherence;
  std::shared_ptr<detail::Storage> host;
  detail::AdviceBook advice;       ///< for the storage there is, and for what comes
  std::atomic<Tracking> tracking;  ///< what serves: small buffers and shared storage are not worth tracking by page
  std::string last_marks;          ///< empty: nothing was declared before
  bool collected = false;  ///< in this operation: only then does what is remembered at its end hold no user's write
  std::unique_ptr<detail::HostWrites> host_writes;  ///< null: only what goes through the library counts
  std::shared_ptr<detail::WrittenMap> written_map;  ///< of what has been written at all; null unless UNIMEM_CHECK=2
  std::shared_ptr<detail::StaleViews> stale_views;  ///< likewise; accesses to host bytes that a device has newer
  std::vector<MappedWrite> unrecorded;              ///< to `host`, without the memory to record it
  std::size_t mapped_writes = 0;  ///< mappings that may yet say what they have written, each with room for it there
  std::vector<Side> sides;        ///< by place, less one
  detail::PendingWork pending;
  Counters counters;
  std::shared_ptr<Meters> meters;        ///< made for the first copy; another after a reset: late copies count nowhere
  mutable detail::SpinLock meters_lock;  ///< of `meters`, which statistics read without the buffer's lock
  std::vector<LinkStatistics> links;     ///< between which places how much moved
  std::string last_failure;              ///< why bytes are lost: nothing else loses any
  std::exception_ptr deferred;           ///< a failure that could not be told: the next access raises it
  bool allocated = false;                ///< by `allocate()`
  std::atomic<bool> pinned{false};
  bool pin_next = false;  ///< the next host memory is to be locked, unasked: it was found to pay
  bool resident = false;  ///< known to the manager
  bool captured = false;  ///< launches with it are being captured: its bytes stand as they are until that is done
  Inside* kept_before = nullptr;     ///< of those that outlive their buffers, as the process ends
  std::shared_ptr<void const> life;  ///< made when its end is first asked for
};

namespace detail {

/// The device whose memory is the host's.
[[nodiscard]] Device& host_device();

/// What no address space holds is a negative count that lost its sign on the way: InvalidArgument.
void check_size(std::size_t bytes);

[[nodiscard]] inline void* host_address(DeviceMemory memory) noexcept {
  return reinterpret_cast<void*>(memory.object + memory.offset);
}

struct Transfer {
  Event event;
  CopyPath way = CopyPath::direct;
};

/// Submits one copy between two pieces of memory, wherever they are, behind the work it conflicts with, and records it
/// with both. `queue`, if given and of the device that carries the copy out, is the queue. `meter` counts the time of
/// what goes over a link. Where the two `overlap`, `aside` is a block of as many bytes, by way of which they go.
/// Whatever it throws, nothing that it has submitted is under way any more.
Transfer transfer(MemoryManager& manager, AcquireOptions const& staging, Storage& from, ByteRange source, Storage& to,
                  ByteRange target, Queue* queue, SharedMeter const& meter, Allocation aside = {});
[[nodiscard]] bool overlap(Storage const& from, ByteRange source, Storage const& to, ByteRange target) noexcept;

/// The same for several ranges, at the same offsets on both sides, as one piece of work. For what
/// `gains_from_batching`.
Transfer transfer(MemoryManager& manager, AcquireOptions const& staging, Storage& from, Storage& to,
                  ByteRanges const& ranges, Queue* queue, SharedMeter const& meter);

}  // namespace detail

/// Pins a buffer, then locks it; publishes its summary before it lets go.
class BufferCore::Guard {
 public:
  explicit Guard(BufferCore& core, Inside::Watched watched = Inside::Watched::yes);
  /// The lock is held already.
  Guard(BufferCore& core, std::adopt_lock_t adopt) noexcept;
  Guard(Guard const&) = delete;
  Guard& operator=(Guard const&) = delete;
  ~Guard();
  void unlock() noexcept;

  [[nodiscard]] Inside* operator->() const noexcept { return core_.inside_.get(); }
  [[nodiscard]] Inside& operator*() const noexcept { return *core_.inside_; }

 private:
  void entered() noexcept;

  BufferCore& core_;
  bool locked_ = true;
};

}  // namespace unimem
