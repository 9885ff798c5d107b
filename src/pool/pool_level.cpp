#include "pool/pool_level.hpp"

#include <mutex>

namespace unimem::detail {

std::size_t PoolLevel::max_bytes() const noexcept {
  if (made_.inherited()) return 0;
  std::scoped_lock const lock(pool_.mutex);
  return pool_.limits.max_bytes();
}

std::size_t PoolLevel::bytes_in_use() noexcept {
  if (made_.inherited()) return 0;
  pool_.thread_cache.flush_all();
  std::scoped_lock const lock(pool_.mutex);
  return pool_.counts.active_bytes();
}

bool PoolLevel::set_marks(std::size_t below, std::size_t above) noexcept {
  if (made_.inherited()) return false;
  std::scoped_lock const lock(pool_.mutex);
  return pool_.counts.set_marks(below, above);
}

}  // namespace unimem::detail
