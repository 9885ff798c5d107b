#pragma once

#include <unimem/core/export.hpp>
#include <unimem/core/name.hpp>
#include <unimem/pool/detail/address_book.hpp>
#include <unimem/pool/memory_pool.hpp>

#include <cstddef>
#include <memory_resource>

namespace unimem {

/// A pool as a `std::pmr::memory_resource`, for containers of the standard library: the pool's cache, limits and
/// statistics, and an `OutOfMemory` (which is a `std::bad_alloc`) that says why.
///
///     PoolResource resource{manager.pool(device("cpu"), Location::pinned)};
///     std::pmr::vector<float> samples{&resource};
///
/// `deallocate` is given an address, a size and an alignment. If they are not those of an allocation in use, which was
/// given back before or belongs to another resource, that is reported to the log as an error, counted in
/// `statistics()`, and changes nothing: the standard lets `deallocate` do no better, and most of its callers are
/// destructors. With `PoolOptions::stacks` that report has also the stacks of taking the memory and of giving it back
/// first. `allocate` throws what `MemoryPool::acquire` throws, and takes any alignment, also what libstdc++'s
/// `std::pmr` pool resources, synchronized or not, ask their upstream for.
///
/// Blocks of at most 256 bytes, where there are more than a few of a size, share pages of 4 KiB of the pool, unless it
/// captures stacks or overwrites what comes back: one takes its size rounded up to sixteen bytes, and two more. In the
/// pool's statistics and limits those pages count. A page goes back when nothing on it is in use.
///
/// Thread-safe; a call costs that of the pool, and one lock among sixteen. The pool must outlive it. Destroying it
/// gives what is still in use back to the pool, as the standard's own pool resources do, with a warning. Equal to
/// itself alone.
class UNIMEM_API PoolResource final : public std::pmr::memory_resource {
 public:
  /// `name` is the asking component's, in usage reports and out-of-memory messages. Throws UnsupportedOperation if the
  /// host cannot reach the pool's memory: device memory, unless the device works on the host's.
  explicit PoolResource(MemoryPool& pool, Name name = {});
  ~PoolResource() override;

  [[nodiscard]] MemoryPool& pool() const noexcept { return book_.pool(); }
  [[nodiscard]] AddressStatistics statistics() const { return book_.statistics(); }
  /// Throws std::logic_error unless its books are in order. A walk; for tests.
  void validate() const { book_.validate(); }

 private:
  [[nodiscard]] void* do_allocate(std::size_t bytes, std::size_t alignment) override;
  void do_deallocate(void* address, std::size_t bytes, std::size_t alignment) noexcept override;
  [[nodiscard]] bool do_is_equal(std::pmr::memory_resource const& other) const noexcept override;

  detail::AddressBook book_;
};

}  // namespace unimem
