#pragma once

#include <unimem/buffer/options.hpp>
#include <unimem/device/device.hpp>
#include <unimem/pool/allocation.hpp>
#include <unimem/pool/memory_pool.hpp>

#include "buffer/advice_book.hpp"
#include "buffer/hazards.hpp"
#include "manager/spill_files.hpp"
#include "manager/usage_book.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace unimem::detail {

class FastLease;

/// The memory behind one side of a buffer, and the work that may still touch it. A new piece of work first waits for
/// those it conflicts with, on its own queue, so that no caller has to.
///
/// Shared by the buffer, by leases and by mappings: the memory returns to its pool when the last of them lets go and
/// the last work has ended. The buffer's lock guards everything but the lease count.
class Storage {
 public:
  Storage(Device& device, Allocation allocation);
  /// For the host, of host memory, of which only `part` is used.
  Storage(Device& host_device, Allocation allocation, DeviceMemory part);

  /// For the host, of unified memory of a device, which has it in its own terms.
  [[nodiscard]] static std::shared_ptr<Storage> unified(Device& device, Allocation allocation);

  /// Host memory that exists already, pageable or pinned: its owner's until `own`.
  Storage(Device& host_device, void* pointer, std::size_t bytes, Location location);

  Storage(Storage const&) = delete;
  Storage& operator=(Storage const&) = delete;

  /// Hands the memory back with the ticket of its last work, without waiting for it. Memory that was only borrowed is
  /// its owner's again when this returns, so its work is waited for; but not in the middle of work, which may be the
  /// one: then the deleter is called when the work has ended, on a thread of the library's.
  ~Storage();

  [[nodiscard]] DeviceMemory memory() const noexcept { return memory_; }
  /// The part of it that holds `range` of the buffer.
  [[nodiscard]] DeviceMemory window(ByteRange range) const noexcept {
    return memory_.window(range.begin, range.size());
  }
  [[nodiscard]] Device& device() const noexcept { return *device_; }
  /// How memory that exists already is let go of in the end.
  void own(Ownership ownership) noexcept { ownership_ = std::move(ownership); }

  /// Whether it is the host's, by addresses, whatever else it is.
  [[nodiscard]] bool serves_host() const noexcept { return !by_address_.empty(); }
  /// The part of it that holds `range`, for work of the host: `object` is an address.
  [[nodiscard]] DeviceMemory host_window(ByteRange range) const noexcept {
    return by_address_.window(range.begin, range.size());
  }
  [[nodiscard]] void* host_address() const noexcept {
    return reinterpret_cast<void*>(by_address_.object + by_address_.offset);
  }
  /// For work of `device`: as it is known there, if it is the device's own, or else by address.
  [[nodiscard]] DeviceMemory window_on(Device const& device, ByteRange range) const noexcept {
    return &device == device_ ? window(range) : host_window(range);
  }
  /// The address of what one of these windows stands for; null where there is none.
  [[nodiscard]] void* address_of(DeviceMemory window) const;
  [[nodiscard]] std::size_t capacity() const noexcept { return allocation_ ? allocation_.capacity() : memory_.bytes; }
  /// Whether it came from a pool: what the library did not allocate it does not move either.
  [[nodiscard]] bool pooled() const noexcept { return allocation_ || away(); }

  /// Whether its bytes are in a file: there is no memory then, and no holder of a share in it may look for any.
  [[nodiscard]] bool away() const noexcept { return spilled_.size() != 0; }
  /// Whether it may go there, if no address of it was given away: it was not asked to stay, nor to be wiped out.
  [[nodiscard]] bool may_go_away() const noexcept { return allocation_ && serves_host() && !locked_ && !zero_at_end_; }
  /// Gives memory that is at rest back to its pool; `spilled` has all its bytes.
  void spill(SpilledBytes spilled) noexcept;
  /// Takes new memory, of which `part` is used, and reads the bytes back if they are `wanted`. Throws IoError, and is
  /// still away.
  void reload(Allocation allocation, DeviceMemory part, bool wanted);
  /// Copies bytes from `offset` on, wherever they are, to memory of `target`'s size. Throws IoError.
  void read_into(std::span<std::byte> target, std::size_t offset);
  /// The host has been given an address that it may keep, and write through if it is `for_writing`.
  void mark_exported(bool for_writing) noexcept {
    exported_ = true;
    exported_for_writing_ = exported_for_writing_ || for_writing;
  }
  [[nodiscard]] bool exported() const noexcept { return exported_; }
  [[nodiscard]] bool exported_for_writing() const noexcept { return exported_for_writing_; }

  [[nodiscard]] Location location() const noexcept { return allocation_ ? allocation_.location() : wrapped_at_; }

  /// Whether it is host memory that the system may move while the driver looks.
  [[nodiscard]] bool pageable() const noexcept { return location() == Location::host && !locked_; }

  /// Whether it is ordinary host memory of a pool that shares no page with anything else.
  [[nodiscard]] bool can_be_locked() const noexcept;
  /// Locks such memory where it stands, until it goes back to its pool, which then waits for the work on it. Why it was
  /// refused, or empty.
  [[nodiscard]] std::string lock_in_place();

  /// Tells the device which advice holds for the memory, as far as it has not been told: a hint, until the memory goes.
  void apply_advice(AdviceBook const& advice) {
    bool const nothing = advice.empty() && heeded_.empty();
    if (!nothing && !away()) heed_slow(advice);
  }

  [[nodiscard]] Hazards& hazards() noexcept { return hazards_; }
  [[nodiscard]] Hazards const& hazards() const noexcept { return hazards_; }

  /// Orders `queue` behind the work that conflicts with reading or writing `range`.
  void order_read(Queue& queue, ByteRange range);
  void order_write(Queue& queue, ByteRange range);
  void order_read(Queue& queue, ByteRanges const& ranges);
  void order_write(Queue& queue, ByteRanges const& ranges);

  /// Blocks until the host may read or write `range`. Errors of that work stick to its tickets.
  void wait_to_read(ByteRange range);
  void wait_to_write(ByteRange range);

  /// Code outside of the library may be working on this memory: on `queue` if there is one, else anywhere on `device`.
  /// Throws std::bad_alloc, with nothing noted.
  void used_by_others(Device& device, Queue const* queue);

  /// Another owner's from now on, who is ordered behind the work that is pending here, and needs nothing of what it
  /// does.
  void hand_over();

  /// Overwrites all of it with zeros, behind the work that is pending. Throws what the device's default queue throws.
  void zero();
  /// Has that done when the last share in it has gone, if it is a pool's.
  void zero_at_end() noexcept { zero_at_end_ = true; }

  /// Whether `range` holds what was written there last: no write is pending or left a failure, and no other code may be
  /// writing.
  [[nodiscard]] bool arrived(ByteRange range) const noexcept {
    return others_on_ == nullptr && hazards_.writes_ended_well(range);
  }

  /// Whether all others are at work on this queue of this device.
  [[nodiscard]] bool used_by_others_on(Device const& device, std::uint64_t queue_id) const noexcept {
    return others_on_ == &device && also_on_.empty() && others_queue_ == queue_id;
  }

  /// Whether no recorded work is pending and no other code works here.
  [[nodiscard]] bool idle() const noexcept { return others_on_ == nullptr && hazards_.idle(); }

  /// The same after a look at what others have submitted by now.
  [[nodiscard]] bool at_rest() {
    note_others();
    return idle();
  }

  /// Puts it on the usage book, until it goes: under the name of its buffer, which `made_by` has made (see
  /// BufferOptions). Throws std::bad_alloc.
  void count_in(UsageBook& book, Name name, std::uint64_t buffer, std::vector<std::uintptr_t> const* made_by) {
    book.enter(usage_, {device_, location(), name}, memory_.bytes, buffer, made_by);
  }
  /// Where uses and copies are noted, with the buffer's lock held.
  [[nodiscard]] UsageEntry& usage() noexcept { return usage_; }

  /// A better place for all of it in the pool it is from; empty if there is none, or it is from no pool.
  [[nodiscard]] Allocation better_place(MemoryPool& pool) const { return pool.acquire_better(allocation_); }

  void add_lease() noexcept { leases_.fetch_add(1, std::memory_order_relaxed); }
  /// Release: what the lease's holder did is visible to a thread that sees the count fall.
  void end_lease() noexcept { leases_.fetch_sub(1, std::memory_order_release); }
  [[nodiscard]] bool leased() const noexcept;

  /// Work that may keep its address runs on this thread.
  void begin_work() noexcept {
    works_on_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    works_.fetch_add(1, std::memory_order_relaxed);
  }
  void end_work() noexcept { works_.fetch_sub(1, std::memory_order_release); }
  /// Whether work looks at it that saving what is here does not wait for: it writes nothing.
  [[nodiscard]] bool is_read_by_work() const noexcept {
    return works_.load(std::memory_order_acquire) != 0 && hazards_.writes_ended_well(whole());
  }
  /// The thread of the latest such work.
  [[nodiscard]] std::thread::id works_on() const noexcept { return works_on_.load(std::memory_order_relaxed); }

  /// Whether code may be writing here, by an address, to bytes that are current elsewhere, too.
  [[nodiscard]] bool may_be_written_by_address() const noexcept { return exported_for_writing_ || leased(); }
  /// Where leases come in without the lock, if there is such a place.
  void set_fast_lease(FastLease const* fast_lease) noexcept {
    fast_lease_.store(fast_lease, std::memory_order_release);
  }

 private:
  [[nodiscard]] ByteRange whole() const noexcept { return {0, memory_.bytes}; }
  void heed_slow(AdviceBook const& advice);
  /// What others have submitted by now, recorded as ours.
  void note_others();
  [[nodiscard]] Event last_work() noexcept;
  /// Waits for what was submitted where that may end with an error: in the middle of work with UnsupportedOperation if
  /// it would never end, in a watched thread with WaitInterrupted.
  void refuse_endless_wait(ByteRange range, bool readers_too) const;

  /// What is left to do when the last work with memory has ended, which was wrapped, or was locked in place.
  struct Remains {
    Allocation allocation;
    Ownership ownership;
    void* pointer = nullptr;  ///< of wrapped memory
    void* locked = nullptr;   ///< where it is to be unlocked
    /// `last` may be pending only where the memory goes back to a pool.
    void let_go(Event last) noexcept;
  };
  static void let_go_later(Remains remains, Event last) noexcept;

  Device* device_;
  Allocation allocation_;
  Ownership ownership_;
  bool zero_at_end_ = false;
  bool exported_ = false;
  bool exported_for_writing_ = false;
  SpilledBytes spilled_;                  ///< empty: the bytes are in memory
  Location wrapped_at_ = Location::host;  ///< where memory is that came from no pool
  DeviceMemory memory_;
  DeviceMemory by_address_;  ///< the same for the host; empty if the host does not reach it
  AdviceBook heeded_;        ///< what the device has been told
  Hazards hazards_;
  UsageEntry usage_;  ///< leaves the book after the memory has gone: nothing is counted out too early
  Device* others_on_ = nullptr;
  std::uint64_t others_queue_ = 0;                     ///< 0: on any queue, or on none of ours
  std::vector<Device*> also_on_;                       ///< further devices that others work on, on any queue
  std::atomic<FastLease const*> fast_lease_{nullptr};  ///< a lease that ends may take it away
  bool locked_ = false;                                ///< in place
  std::atomic<unsigned> leases_{0};                    ///< but for those of the fast lease
  std::atomic<unsigned> works_{0};                     ///< that run, and may keep the address
  std::atomic<std::thread::id> works_on_{};
};

}  // namespace unimem::detail
