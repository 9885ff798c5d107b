#pragma once

#include "core/fork.hpp"
#include "pool/pool_state.hpp"

#include <cstddef>

namespace unimem::detail {

/// How much of a pool is in use and may be reserved, and the marks by which others watch that, as MemoryPool says. In a
/// forked child there is nothing of it: zero, and no marks.
///
/// Thread-safe.
class PoolLevel {
 public:
  PoolLevel(PoolState& pool, MadeHere const& made) noexcept : pool_(pool), made_(made) {}

  [[nodiscard]] std::size_t max_bytes() const noexcept;
  [[nodiscard]] std::size_t bytes_in_use() noexcept;
  [[nodiscard]] bool set_marks(std::size_t below, std::size_t above) noexcept;
  [[nodiscard]] bool has_left_marks() const noexcept { return pool_.counts.has_left_marks(); }

 private:
  PoolState& pool_;
  MadeHere const& made_;
};

}  // namespace unimem::detail
