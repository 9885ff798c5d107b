#pragma once

#include <unimem/core/export.hpp>
#include <unimem/core/name.hpp>
#include <unimem/device/event.hpp>
#include <unimem/pool/memory_pool.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace unimem {

class Queue;

/// What an adaptor that deals in bare addresses has handed out, and what it was given back by mistake.
struct AddressStatistics {
  std::size_t live_allocations = 0;
  std::size_t live_bytes = 0;  ///< as asked for
  /// Addresses given back a second time, or that were never handed out, or with another size or alignment. Each was
  /// reported to the log, and changed nothing.
  std::uint64_t refused_deallocations = 0;
};

namespace detail {

/// Which block of a pool an address belongs to: what interfaces need that give memory back by its address, as
/// `Allocation` does not. A hash table in shards, each with a lock of its own, so that threads seldom meet; an entry is
/// found by one multiplication and a short walk.
///
/// Giving back cannot fail usefully: most callers are destructors. What does not fit what was handed out is reported to
/// the log as an error, counted, and changes nothing, so that a block is never handed out twice by a mistake of its
/// user. (An address that has been handed out again meanwhile cannot be told from its earlier use, unless size or
/// alignment differ: that takes handles.)
///
/// Where the pool captures stacks (`PoolOptions::stacks`) the report goes on with the stacks of taking the memory, of
/// giving it back first, and of the refused call, as far as that is known: of what each shard has taken back the last
/// 32 are remembered.
///
/// Thread-safe. The pool must outlive it.
class UNIMEM_API AddressBook {
 public:
  /// Whether small blocks share pages of the pool, where it neither captures stacks nor overwrites what comes back.
  enum class Small : bool { alone, in_pages };
  /// `what` is the adaptor's name in reports, a literal. Blocks in pages are taken without a queue, and given back with
  /// no work pending.
  AddressBook(MemoryPool& pool, char const* what, Name name, Small small = Small::alone);
  AddressBook(AddressBook const&) = delete;
  AddressBook& operator=(AddressBook const&) = delete;

  /// Gives back what is still out, after a warning that tells how much that is.
  ~AddressBook();

  /// Memory at an address aligned to `alignment`; never null, and an address of its own even for 0 bytes. What
  /// `MemoryPool::acquire` throws, and UnsupportedOperation where the pool's memory has no address.
  [[nodiscard]] void* acquire(std::size_t bytes, std::size_t alignment, Queue* queue);

  /// Gives the block at `address` back to the pool. `last_use` as in `Allocation::release`.
  void release(void* address, std::size_t bytes, std::size_t alignment, Event last_use = {}) noexcept;

  /// Counts and reports what could not be given back, though it was this book's; it stays handed out.
  void refuse(void const* address, std::size_t bytes, std::size_t alignment, char const* why) noexcept;

  [[nodiscard]] MemoryPool& pool() const noexcept;
  /// Looks at one shard after the other: exact when no other thread is in a call.
  [[nodiscard]] AddressStatistics statistics() const;
  /// Throws std::logic_error unless every entry is where it is looked for. A walk; for tests.
  void validate() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace detail
}  // namespace unimem
