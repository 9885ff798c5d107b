#pragma once

#include <unimem/device/program.hpp>

#include <array>
#include <cstddef>
#include <optional>

namespace unimem::detail::cuda {

/// Threads that go in step, on every GPU.
inline constexpr std::size_t warp = 32;

/// What the driver recommends for a kernel, so that its threads fill the GPU.
struct Occupancy {
  unsigned block = 256;  ///< threads in a block
  unsigned fewest = 1;   ///< blocks needed to have work for all multiprocessors
};

/// How the items of a range are dealt to threads.
struct LaunchShape {
  std::array<unsigned, 3> grid{1, 1, 1};
  std::array<unsigned, 3> block{1, 1, 1};
  unsigned shared_bytes = 0;  ///< of shared memory for each block

  friend bool operator==(LaunchShape const&, LaunchShape const&) = default;
};

/// The shape for a kernel of the portable form, whose entry knows both ways of dealing (prelude.cuda.hpp): blocks of
/// one row where a grid can be as large as the range and most threads of a block get an item, blocks of one column for
/// every other range. `range` has at least one item.
[[nodiscard]] LaunchShape portable_shape(Range range, Occupancy occupancy) noexcept;

/// The shape in which a block is a group of `range`, which has some. Nothing if no grid is that large.
[[nodiscard]] std::optional<LaunchShape> group_shape(Range range) noexcept;

/// Whether a block of that many threads can be, for a kernel that may have up to `most_threads` of them.
[[nodiscard]] bool can_be_block(GroupSize group, std::size_t most_threads) noexcept;

/// The shape for plain CUDA C++: a grid that covers the range, in as many dimensions. Nothing if no grid is that large.
[[nodiscard]] std::optional<LaunchShape> plain_shape(Range range, Occupancy occupancy) noexcept;

}  // namespace unimem::detail::cuda
