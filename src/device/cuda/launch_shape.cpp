#include "device/cuda/launch_shape.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>

namespace unimem::detail::cuda {
namespace {

// What every GPU since compute capability 3.0 has.
constexpr std::size_t most_blocks_x = (std::size_t{1} << 31) - 1;
constexpr std::size_t most_blocks_y = 65'535;
constexpr std::size_t most_blocks_z = 65'535;
constexpr std::size_t most_threads_x = 1024;
constexpr std::size_t most_threads_y = 1024;
constexpr std::size_t most_threads_z = 64;

constexpr std::size_t divided_up(std::size_t items, std::size_t by) {
  return items / by + (items % by != 0 ? 1 : 0);
}

constexpr std::size_t whole_warps(std::size_t threads) {
  return divided_up(threads, warp) * warp;
}

/// Threads in a block for `items` in a row: as many as recommended, fewer where that would leave multiprocessors
/// without any.
std::size_t row_block(std::size_t items, Occupancy occupancy) {
  constexpr std::size_t fewest_threads = 2 * warp;
  auto const most = std::max<std::size_t>(occupancy.block, 1);
  auto const share = whole_warps(divided_up(items, std::max(occupancy.fewest, 1U)));
  return std::min(most, std::max(share, fewest_threads));
}

unsigned narrowed(std::size_t count) {
  return static_cast<unsigned>(count);
}

std::optional<LaunchShape> shape_of(GroupSize blocks, GroupSize block) {
  if (blocks.x > most_blocks_x || blocks.y > most_blocks_y || blocks.z > most_blocks_z) return std::nullopt;
  return LaunchShape{{narrowed(blocks.x), narrowed(blocks.y), narrowed(blocks.z)},
                     {narrowed(block.x), narrowed(block.y), narrowed(block.z)},
                     0};
}

}  // namespace

LaunchShape portable_shape(Range range, Occupancy occupancy) noexcept {
  bool const is_row = range.y == 1 && range.z == 1;
  auto block = row_block(range.x, occupancy);
  // A row of its own for each y and z: of blocks as large as divides it best.
  if (!is_row && block >= warp) block = whole_warps(divided_up(range.x, divided_up(range.x, block)));
  auto const blocks = divided_up(range.x, block);
  bool const fits = blocks <= most_blocks_x && range.y <= most_blocks_y && range.z <= most_blocks_z;
  if (fits && (is_row || blocks * block < 2 * range.x)) {
    return {{narrowed(blocks), narrowed(range.y), narrowed(range.z)}, {narrowed(block), 1, 1}, 0};
  }
  // More than one row, or the block would be taken for the other kind; few enough that what they share is no matter.
  constexpr std::size_t item_bytes = 24;  // three indices
  auto const items = range.x * range.y * range.z;
  auto const column = std::clamp<std::size_t>(row_block(items, occupancy), 2, 256);
  return {{narrowed(std::min(divided_up(items, column), most_blocks_x)), 1, 1},
          {1, narrowed(column), 1},
          narrowed(column * item_bytes)};
}

std::optional<LaunchShape> plain_shape(Range range, Occupancy occupancy) noexcept {
  // As many threads in x as there is use for, and what is left of a block in y and z.
  auto const take = [](std::size_t items, std::size_t most) { return std::min(std::bit_ceil(items), most); };
  auto x = row_block(range.x, occupancy);
  std::size_t y = 1, z = 1;
  if (range.y > 1 || range.z > 1) {
    auto const most = std::bit_floor(std::max<std::size_t>(occupancy.block, 1));
    x = take(std::min(range.x, most), most);
    y = take(std::min(range.y, most), most / x);
    z = take(std::min(range.z, most), std::min(most / x / y, most_threads_z));
  }
  return shape_of({divided_up(range.x, x), divided_up(range.y, y), divided_up(range.z, z)}, {x, y, z});
}

std::optional<LaunchShape> group_shape(Range range) noexcept {
  return shape_of(range.groups(), range.group_size);
}

bool can_be_block(GroupSize group, std::size_t most_threads) noexcept {
  return group.x <= most_threads_x && group.y <= most_threads_y && group.z <= most_threads_z &&
         group.x * group.y * group.z <= most_threads;
}

}  // namespace unimem::detail::cuda
