#pragma once

#include <unimem/core/name.hpp>
#include <unimem/device/memory.hpp>
#include <unimem/manager/placement.hpp>
#include <unimem/manager/usage.hpp>

#include "core/fork.hpp"
#include "core/stack.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace unimem {
class Device;
}

namespace unimem::detail {

class UsageBook;
struct UsageSlot;
struct UsageShard;

/// What one line of the book is about.
struct UsageKey {
  Device const* device = nullptr;
  Location location = Location::device;
  Name name{};
  friend bool operator==(UsageKey const&, UsageKey const&) = default;
};

/// One allocation, as the book has it: part of whatever holds the memory, and off the book when that goes. Nothing
/// until it is entered.
///
/// Uses and copies are noted by one thread at a time, the holder of the buffer's lock, and read by any: so they are
/// atomic and cost no read-modify-write.
class UsageEntry {
 public:
  // Defaulted it would write the uses, too.
  UsageEntry() noexcept {}  // NOLINT(modernize-use-equals-default,cppcoreguidelines-pro-type-member-init)
  UsageEntry(UsageEntry const&) = delete;
  UsageEntry& operator=(UsageEntry const&) = delete;
  ~UsageEntry() {
    if (slot_ != nullptr) leave();
  }

  void note_host(bool reads, bool writes) noexcept {
    if (reads) add(host_reads, 1);
    if (writes) add(host_writes, 1);
  }
  void note_device(bool reads, bool writes) noexcept {
    if (reads) add(device_reads, 1);
    if (writes) add(device_writes, 1);
  }
  void note_copies_in(std::size_t copies, std::size_t bytes) noexcept {
    add(copies_in, copies);
    add(bytes_in, bytes);
  }
  void note_copies_out(std::size_t copies, std::size_t bytes) noexcept {
    add(copies_out, copies);
    add(bytes_out, bytes);
  }

 private:
  friend class UsageBook;
  friend struct UsageSlot;
  enum Use : std::uint8_t {
    host_reads,
    host_writes,
    device_reads,
    device_writes,
    copies_in,
    bytes_in,
    copies_out,
    bytes_out,
    use_count
  };

  void add(Use use, std::uint64_t more) noexcept {
    // Relaxed: numbers that nothing else depends on, with one writer at a time.
    if (!used_.load(std::memory_order_relaxed)) {
      for (auto& count : uses_) std::atomic_ref(count).store(0, std::memory_order_relaxed);
      used_.store(true, std::memory_order_release);  // a thread that sees it sees the zeros
    }
    std::atomic_ref const count(uses_[use]);
    count.store(count.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  }
  void leave() noexcept;
  void add_uses_to(UsageCounts& counts) const noexcept;

  UsageSlot* slot_ = nullptr;  ///< null: not on the book
  UsageEntry* next_ = nullptr;
  UsageEntry* previous_ = nullptr;
  std::size_t bytes_ = 0;
  std::uint64_t buffer_ = 0;
  std::int64_t since_ = 0;  ///< by the book's clock
  std::unique_ptr<std::vector<std::uintptr_t>> stack_;
  std::atomic<bool> used_{false};
  /// Zero when it is first used: most of what is made and gone within nanoseconds never is.
  mutable std::array<std::uint64_t, use_count> uses_;
};

/// Bytes that are live in several shards together, and the most there ever were. A shard keeps small changes to itself
/// and hands them over when they have come to `slack`: so a thread alone has exact peaks, and several do not share a
/// word for every allocation.
class UsageGauge {
 public:
  static constexpr std::int64_t slack = std::int64_t{64} << 10;

  /// `kept`: what the caller's shard has kept back so far; under its lock.
  void grow(std::int64_t& kept, std::size_t bytes) noexcept {
    kept += static_cast<std::int64_t>(bytes);
    // Relaxed: numbers alone.
    raise(live_.load(std::memory_order_relaxed) + kept);
    if (kept > slack) hand_over(kept);
  }
  void shrink(std::int64_t& kept, std::size_t bytes) noexcept {
    kept -= static_cast<std::int64_t>(bytes);
    if (kept < -slack) hand_over(kept);
  }
  /// The most, which is at least `live` now.
  [[nodiscard]] std::size_t peak(std::size_t live) noexcept {
    raise(static_cast<std::int64_t>(live));
    return static_cast<std::size_t>(peak_.load(std::memory_order_relaxed));
  }

 private:
  void raise(std::int64_t live) noexcept {
    auto peak = peak_.load(std::memory_order_relaxed);
    while (live > peak && !peak_.compare_exchange_weak(peak, live, std::memory_order_relaxed)) {
    }
  }
  void hand_over(std::int64_t& kept) noexcept {
    live_.fetch_add(kept, std::memory_order_relaxed);
    kept = 0;
  }

  std::atomic<std::int64_t> live_{0};
  std::atomic<std::int64_t> peak_{0};
};

/// Which holders have how much memory, by device, location and name, and what it was used for: every allocation of a
/// manager's buffers, from its taking to its release, in a list that can be walked at any time.
///
/// Threads have shards of their own, each behind a lock that is taken for a few instructions at entry and at leaving,
/// wherever that happens. A walk holds all of them: others wait for it.
///
/// Thread-safe. Entries may outlive it: its owner calls `retire`. In a forked child entries do not
/// leave it.
class UsageBook {
 public:
  /// Nanoseconds of a clock that never goes back. The default is the system's coarse one, which costs a few nanoseconds
  /// and goes in steps of a few milliseconds.
  using Clock = std::int64_t (*)() noexcept;

  explicit UsageBook(StackOptions const& stacks = {}, Clock clock = nullptr);
  UsageBook(UsageBook const&) = delete;
  UsageBook& operator=(UsageBook const&) = delete;
  ~UsageBook();

  /// Destroyed now, or when the last entry has left.
  static void retire(std::unique_ptr<UsageBook> book) noexcept;

  /// Puts an allocation on the book. Throws std::bad_alloc, with nothing entered, the first time that a thread enters
  /// something of this key or where a stack is captured; otherwise allocates nothing. `made_by`: calls of another
  /// language that go before the stack, which is captured if there are any, and not if there are none; null: every how
  /// many-th is.
  void enter(UsageEntry& entry, UsageKey const& key, std::size_t bytes, std::uint64_t buffer,
             std::vector<std::uintptr_t> const* made_by = nullptr);

  [[nodiscard]] Usage usage() const;
  /// In no order. O(live).
  [[nodiscard]] std::vector<LiveAllocation> live() const;
  /// What buffers of one name were used for, wherever they were: those that are gone, and of those that live a few of
  /// each shard.
  [[nodiscard]] RecordedUse use_of(Name name) const;
  /// The same for all names, by the mean size of their allocations.
  [[nodiscard]] UseBySize use_by_size() const;

 private:
  friend class UsageEntry;
  friend struct UsageSlot;
  friend struct UsageShard;
  struct Place;
  struct Line;
  class AllShards;

  struct Sums {
    std::vector<UsageCounts> of_lines;   ///< by their index
    std::vector<UsageCounts> of_places;  ///< likewise
    UsageCounts total{};
  };

  [[nodiscard]] Line& line_of(UsageKey const& key);
  [[nodiscard]] UsageShard& shard_of_this_thread() const noexcept;
  [[nodiscard]] std::int64_t now() const noexcept;
  void add(UsageShard& shard, UsageSlot& slot, UsageEntry& entry, std::size_t bytes, std::uint64_t buffer) noexcept;
  /// All of one moment, the peaks included. The mutex is held.
  [[nodiscard]] Sums sums() const;
  /// Of those that a retired book is kept for, one is done with it.
  void leave() noexcept;

  MadeHere const made_{};
  Clock const clock_;
  StackOptions const stacks_;
  StackSampler sampler_;
  std::unique_ptr<UsageShard[]> shards_;  // NOLINT(modernize-avoid-c-arrays): of a fixed number, and never moved

  /// Guards the lines and places, which are there until the end. Never taken while a shard is held.
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Line>> lines_;
  std::vector<std::unique_ptr<Place>> places_;
  std::unordered_map<Name, std::vector<Line*>> by_name_;
  mutable UsageGauge total_;

  std::atomic<bool> retired_{false};
  std::atomic<std::uint64_t> left_{0};  ///< once retired: entries that have not left, and the retiring thread
};

}  // namespace unimem::detail
