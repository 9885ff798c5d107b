#pragma once

#include <unimem/buffer/detail/published_state.hpp>
#include <unimem/core/byte_ranges.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "buffer/advice_book.hpp"
#include "buffer/buffer_counters.hpp"
#include "buffer/buffer_lock.hpp"
#include "buffer/buffer_terms.hpp"
#include "buffer/fast_lease.hpp"
#include "buffer/host_watch.hpp"
#include "buffer/replica_map.hpp"
#include "core/fork.hpp"
#include "manager/use_history.hpp"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

namespace unimem {
class Resident;
}  // namespace unimem

namespace unimem::detail {

class BackingFile;
class SharedMemory;

/// What a BufferCore is made of. Terms, lock, counters and what is published look after themselves; the rest is guarded
/// by the lock, which the functions here expect to be held (BufferGuard).
///
/// What operations do with the parts is in classes of their own, which stand on these: ReplicaAllocator (memory for a
/// place), TransferEngine (moving bytes), Commits (what is recorded of work), Reconciler (what comes before every
/// operation), BufferAccess (the steps of an access) and Residency (giving memory back).
struct BufferParts {
  BufferParts(std::size_t bytes, BufferOptions&& options, Resident& buffer, PublishedState& to_publish);
  BufferParts(BufferParts const&) = delete;
  BufferParts& operator=(BufferParts const&) = delete;
  ~BufferParts() = default;

  static void* operator new(std::size_t /*of one*/);
  static void operator delete(void* memory) noexcept;

  /// BufferNotAllocated when strict and `allocate()` has not been called.
  void check_access(std::string_view operation) const;
  /// BufferNotAllocated unless there is memory at some place.
  void check_allocated(std::string_view operation) const;
  /// UnsupportedOperation where the buffer is made from a file that it may not change.
  void check_writable(std::string_view operation) const {
    if (file != nullptr) [[unlikely]]
      check_file_writable(operation);
  }
  /// IoError where the host's memory is a file's own pages, and those of `range` are not all there any more.
  void check_intact(ByteRange range) const {
    if (file != nullptr) [[unlikely]]
      check_pages(range);
  }
  /// Whether the host looks at the pages of the file that it was made from.
  [[nodiscard]] bool is_mapped() const noexcept { return file != nullptr && file_is_mapped(); }
  /// UnsupportedOperation while launches with the buffer are being captured.
  void check_not_captured() const;
  /// Throws InvalidArgument if `range` does not lie in the buffer: it may have been resized under a slice.
  void check_range(ByteRange range) const {
    if (range.begin > range.end || range.end > replicas.bytes()) [[unlikely]]
      refuse(range);
  }
  /// Throws InvalidArgument if the place is leased or mapped.
  void check_not_leased(Place place) const;
  /// Throws DataLost if the plan needs bytes that are lost.
  void check_lost(Plan const& plan) const;

  [[nodiscard]] Place place_of(Device& device) { return replicas.place_of(device, *terms.manager); }
  /// Whether `range` is current at `place`, with no write to it and no doubt about it pending.
  [[nodiscard]] bool is_quiet(Place place, ByteRange range) const {
    return watch.unrecorded().empty() && replicas.is_quiet(place, range);
  }
  /// Whether nothing has to be recorded, raised or taken back before an operation.
  [[nodiscard]] bool is_settled() const noexcept { return replicas.pending.is_settled() && is_undisturbed(); }
  /// The same, but for work that is pending.
  [[nodiscard]] bool is_undisturbed() const noexcept {
    return watch.writes() == nullptr && watch.unrecorded().empty() && !deferred && !captured && shared == nullptr;
  }
  /// Which of the buffer's bytes lie in the host memory named, of which a user may have an address; empty for none.
  [[nodiscard]] ByteRange in_own_host_memory(void const* pointer, std::size_t count) const noexcept;

  /// Has the manager know it, on behalf of an operation in progress.
  void become_resident();
  /// Its file has all of its bytes, as when it was made: what was written and not flushed is gone.
  void begin_in_file();
  /// The data is gone: of a buffer that was made from a file, all of it is there again.
  void begin_anew() {
    if (file != nullptr) begin_in_file();
  }
  /// All memory goes, with the data in it. `fresh` is for that size.
  void drop_everything(Coherence fresh, std::size_t new_size) noexcept;
  /// The same, and the buffer keeps its size: nothing of it counts as written.
  void drop_everything();
  /// What was said of the buffer and counted goes, for a reset or another owner.
  void forget_history() noexcept;

  /// Lets further read leases on `replica`, which work on `queue` has been promised, come and go without the lock as
  /// long as nothing changes.
  void offer_leases(std::shared_ptr<Replica> const& replica, Queue const& queue);
  /// An operation begins: no lease is taken without the lock, and those that were count as uses.
  void close_fast_lease() noexcept;
  void record_fast_uses() noexcept;
  /// An operation has ended: opens it again if the replica is as its leases may expect.
  void open_fast_lease() noexcept;

  /// Tells threads that read without the lock how the buffer stands.
  void publish() noexcept { published.publish(facts()); }

  MadeHere const made{};
  BufferTerms terms;
  BufferLock lock;
  Resident& self;             ///< as the manager knows it
  PublishedState& published;  ///< in the buffer itself, where reading it is quickest
  BufferCounters counters;
  std::atomic<FastLease*> fast_lease{nullptr};  ///< once made, for the life of the buffer
  std::atomic<unsigned> keepers{1};             ///< its owners together, and each evicting thread: the last one ends it
  // Relaxed: words alone.
  std::atomic<int> priority{0};
  std::atomic<bool> pinned{false};
  bool allocated = false;  ///< by `allocate()`
  bool pin_next = false;   ///< the next host memory is to be locked, unasked: it was found to pay
  bool captured = false;   ///< launches with it are being captured: its bytes stand as they are until that is done

  ReplicaMap replicas;
  HostWatch watch;
  AdviceBook advice;                     ///< for the memory there is, and for what comes
  std::shared_ptr<BackingFile> file;     ///< of the user's that it was made from; null: of none
  std::shared_ptr<SharedMemory> shared;  ///< the host's memory, which other processes may have too; null: they do not
  /// When the host's memory was used, where it may go to files.
  struct HostUses {
    UseClock& clock;
    UseHistory history{};
  };
  std::unique_ptr<HostUses> host_uses;
  std::exception_ptr deferred;  ///< a failure that could not be told: the next access raises it
  // Relaxed: the last owner comes behind whatever made it known.
  std::atomic<bool> resident{false};  ///< known to the manager
  std::atomic<bool> listed{false};    ///< with the manager, by its name: from before others hold it by that name
  bool borrows = false;          ///< the host's memory, which is its owner's again once the buffer's owners are gone
  std::uint64_t operations = 0;  ///< begun so far, and host writes found: another number tells of possible changes
  BufferParts* kept_before = nullptr;  ///< of those that outlive their buffers, as the process ends
  std::shared_ptr<void const> life;    ///< made when its end is first asked for

 private:
  [[noreturn]] void refuse(ByteRange range) const;
  void check_file_writable(std::string_view operation) const;
  void check_pages(ByteRange range) const;
  [[nodiscard]] bool file_is_mapped() const noexcept;
  [[nodiscard]] PublishedState::Facts facts() const noexcept;
};

/// What no address space holds is a negative count that lost its sign on the way: InvalidArgument.
void check_size(std::size_t bytes);

/// Holds the lock of a buffer for an operation. What the operation leaves is published before the lock is let go.
class BufferGuard {
 public:
  /// For an operation that goes on where it has left off to wait: nothing holds the lock for long, but looks at the
  /// buffer that follow each other closely leave it free for short moments only.
  static constexpr std::chrono::milliseconds to_go_on{50};
  static constexpr std::chrono::milliseconds at_once{0};

  explicit BufferGuard(BufferParts& parts, Watched watched = Watched::yes);
  /// For a look that puts on record what it finds: no operation, so that those that ask often keep no eviction away.
  struct Look {};
  BufferGuard(BufferParts& parts, Look look);
  /// Of a buffer that no operation is in progress on, if its lock is free or comes free in time: the guard holds it
  /// then, and else nothing.
  BufferGuard(BufferParts& parts, std::chrono::milliseconds patience) noexcept;
  BufferGuard(BufferGuard&& other) noexcept
      : parts_(other.parts_), locked_(std::exchange(other.locked_, false)), leaves_(other.leaves_) {}
  BufferGuard& operator=(BufferGuard&&) = delete;
  ~BufferGuard() { unlock(); }
  void unlock() noexcept;
  /// What the operation leaves, for all that is published.
  enum class Leaves : unsigned char {
    what_was,   ///< as if it had not been
    a_rewrite,  ///< work that writes again what its device alone has, and nothing else
    anything,
  };
  /// Until this is said, anything.
  void leaves(Leaves what) noexcept { leaves_ = what; }
  [[nodiscard]] Leaves leaves() const noexcept { return leaves_; }

  [[nodiscard]] explicit operator bool() const noexcept { return locked_; }
  [[nodiscard]] BufferParts* operator->() const noexcept { return &parts_; }
  [[nodiscard]] BufferParts& operator*() const noexcept { return parts_; }

 private:
  void entered() noexcept;

  BufferParts& parts_;
  bool locked_ = true;
  Leaves leaves_ = Leaves::anything;
};

}  // namespace unimem::detail
