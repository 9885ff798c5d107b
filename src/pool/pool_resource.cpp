#include <unimem/pool/pool_resource.hpp>

#include <unimem/core/error.hpp>

#include <string>

namespace unimem {
namespace {

/// Whether the host may use the addresses of what the pool hands out. A simulated device's would do, but are no more
/// the host's than a GPU's.
bool reached_by_host(MemoryPool const& pool) {
  return pool.location() != Location::device || pool.device().reaches_host_memory();
}

MemoryPool& checked(MemoryPool& pool) {
  if (reached_by_host(pool)) return pool;
  throw UnsupportedOperation("PoolResource",
                             std::string(pool.device().id()) + " " + std::string(to_string(pool.location())),
                             "the host cannot reach this memory");
}

}  // namespace

PoolResource::PoolResource(MemoryPool& pool, Name name)
    : book_(checked(pool), "PoolResource", name, detail::AddressBook::Small::in_pages) {}

PoolResource::~PoolResource() = default;

void* PoolResource::do_allocate(std::size_t bytes, std::size_t alignment) {
  return book_.acquire(bytes, alignment, nullptr);
}

void PoolResource::do_deallocate(void* address, std::size_t bytes, std::size_t alignment) noexcept {
  book_.release(address, bytes, alignment);
}

bool PoolResource::do_is_equal(std::pmr::memory_resource const& other) const noexcept {
  return this == &other;
}

}  // namespace unimem
