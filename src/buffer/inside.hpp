#pragma once

#include <unimem/buffer/buffer_core.hpp>
#include <unimem/coherence/coherence.hpp>
#include <unimem/core/name.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "buffer/storage.hpp"

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace unimem {

/// What a BufferCore keeps behind its lock. Its functions expect the lock to be held; the files beside this one divide
/// them by what they are about: storage and settling here, host accesses, device work.
struct BufferCore::Inside {
  /// A plan that has been committed while its work was still running, with everything that work depends on.
  struct Pending {
    std::vector<Event> events;
    Coherence::Undo undo;
  };
  struct Side {
    Device* device = nullptr;
    std::shared_ptr<detail::Storage> storage;
  };
  struct Counters {
    std::atomic<std::uint64_t> upload_bytes{0}, uploads{0};
    std::atomic<std::uint64_t> download_bytes{0}, downloads{0};
    std::atomic<std::uint64_t> between_bytes{0}, between{0};
    std::atomic<std::uint64_t> conflicting_marks{0};
  };

  Inside(std::size_t bytes, BufferOptions options);

  [[nodiscard]] Device& default_device();
  [[nodiscard]] std::string display_name() const;
  [[nodiscard]] std::string place_name(Place place) const;

  /// BufferNotAllocated when strict and `allocate()` has not been called.
  void check_access(std::string_view operation) const;
  /// BufferNotAllocated unless some side has storage.
  void check_allocated(std::string_view operation) const;

  /// The place of a device, added when it is new.
  Place place_of(Device& device);
  [[nodiscard]] Side& side(Place place) { return sides[place - 1]; }
  [[nodiscard]] CopyCost cost() const;

  /// The host's memory: what stands already, a sharing device's, or a new block.
  [[nodiscard]] std::shared_ptr<detail::Storage> host_memory();
  void ensure_host();
  /// A new block is taken in `queue`'s order.
  void ensure_device(BufferCore& self, Place place, Queue& queue);
  void ensure(BufferCore& self, Place place);
  [[nodiscard]] AcquireOptions named() const;

  /// Drops finished work from `pending`. Failed work and everything committed after it is rolled back, and its error
  /// thrown.
  void settle(bool wait);
  /// The events of `pending` that have not ended.
  void add_unfinished(std::vector<Event>& events) const;
  void remember(std::vector<Event> events, Coherence::Undo undo);

  /// Throws DataLost if the plan needs bytes that are lost.
  void check_lost(Plan const& plan) const;

  /// Whether the place's memory has addresses that the host may use: the host's own, or a device's that shares it.
  [[nodiscard]] bool in_host_memory(Place place) const;
  [[nodiscard]] detail::Storage& storage_at(Place place) { return place == host_place ? *host : *side(place).storage; }

  /// Submits the copies of a plan, each behind the work it conflicts with: on `queue` where that is the device's, else
  /// on the device's default queue. Adds their events.
  void start_copies(Plan const& plan, Queue* queue, std::vector<Event>& events);
  /// Submits them and waits; throws the first error when all have ended.
  void carry_out(Plan const& plan);

  /// Makes `range` readable or writable at `place` in `queue`'s order. Read accesses are committed, writes are not.
  void prepare(BufferCore& self, Place place, ByteRange range, Intent intent, Queue& queue, std::vector<Event>& events);
  /// Commits a write at `place` that ends with `events`.
  void commit_write(Place place, ByteRange range, std::vector<Event> events);

  void mark(BufferCore& self, Place place, ByteRange range, Event event);

  /// Saves what only `place` holds to `to`, and lets its storage go.
  void release(BufferCore& self, Place place, Place to);

  std::size_t bytes;
  BufferOptions options;
  MemoryManager* manager;
  Device* device = nullptr;  ///< decided at first use: looking for drivers takes time
  Name name;
  std::uint64_t id;
  std::mutex mutex;
  std::atomic<unsigned> pins{0};  ///< operations in progress: their buffer must not be reclaimed, nor its lock tried
  Coherence coherence;
  std::shared_ptr<detail::Storage> host;
  std::vector<Side> sides;  ///< by place, less one
  std::deque<Pending> pending;
  Counters counters;
  std::string last_failure;
  bool allocated = false;  ///< by `allocate()`
  std::atomic<bool> pinned{false};
  bool resident = false;  ///< known to the manager
};

/// Pins a buffer, then locks it; publishes its summary before it lets go.
class BufferCore::Guard {
 public:
  explicit Guard(BufferCore& core);
  /// The lock is held already.
  Guard(BufferCore& core, std::adopt_lock_t adopt) noexcept;
  Guard(Guard const&) = delete;
  Guard& operator=(Guard const&) = delete;
  ~Guard();

  [[nodiscard]] Inside* operator->() const noexcept { return core_.inside_.get(); }

 private:
  BufferCore& core_;
};

}  // namespace unimem
