#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"

#include <limits>
#include <utility>

namespace unimem::testing {
namespace {

/// Row-major arrays over a buffer's elements.
using Views = BufferTest;

TEST_F(Views, AreRowMajorAndShareTheMemory) {
  UnifiedBuffer<std::uint32_t> buffer(24, on_sim());
  buffer.copy_from(counting(24));
  auto matrix = buffer.view_2d(4, 6);
  auto const volume = buffer.view_3d(2, 3, 4);
  EXPECT_EQ(std::as_const(matrix).at({2, 5}), 17U);
  EXPECT_EQ(volume.at({1, 2, 3}), 23U);
  EXPECT_EQ(volume.at({1, 0, 2}), 14U);
  EXPECT_EQ(matrix.row(3).to_vector(), counting(6, 18));
  EXPECT_EQ(volume.row(1).to_vector(), counting(12, 12));
  matrix.at({1, 1}) = 100;
  EXPECT_EQ(buffer.to_vector()[7], 100U);
  EXPECT_EQ(device_bytes(buffer, sim)[7], 100U) << "a write through the view travels like any other";
  EXPECT_EQ(&std::as_const(matrix).at({0, 0}), buffer.host_view().data());
}

TEST_F(Views, TheNumberOfRowsIsTheirFirstExtent) {
  UnifiedBuffer<std::uint32_t> buffer(24, on_sim());
  auto const matrix = buffer.view_2d(4, 6);
  auto const volume = buffer.view_3d(2, 3, 4);
  static_assert(decltype(matrix)::rank() == 2 && decltype(volume)::rank() == 3);
  EXPECT_EQ(matrix.extent(0), 4U);
  EXPECT_EQ(matrix.extent(1), 6U);
  EXPECT_EQ(volume.extent(2), 4U);
  EXPECT_EQ(matrix.row(0).size(), matrix.extent(1));
  EXPECT_THROW(std::ignore = matrix.extent(2), InvalidArgument);
  EXPECT_FALSE(buffer.is_allocated()) << "asking touches nothing";
}

TEST_F(Views, FillingOneRowMovesThatRowAlone) {
  UnifiedBuffer<std::uint32_t> buffer(100 * 1000, on_sim());
  buffer.copy_from(counting(100'000));
  buffer.sync_to_device();
  auto const before = buffer.statistics().host_to_device_bytes;
  std::ranges::fill(buffer.view_2d(100, 1000).row(40).map(MapMode::discard).elements(), 7U);
  buffer.sync_to_device();
  EXPECT_EQ(buffer.statistics().host_to_device_bytes - before, 4000U);
  auto expected = counting(100'000);
  std::fill_n(expected.begin() + 40'000, 1000, 7U);
  EXPECT_EQ(device_bytes(buffer, sim), expected);
}

TEST_F(Views, BlockCopiesTouchNothingAroundThem) {
  UnifiedBuffer<std::uint32_t> buffer(5 * 7, on_sim());
  buffer.copy_from(counting(35));
  buffer.sync_to_device();
  auto view = buffer.view_2d(5, 7);
  std::vector<std::uint32_t> block(2 * 3);
  view.copy_block_to({1, 2}, {2, 3}, block);
  EXPECT_EQ(block, (std::vector<std::uint32_t>{9, 10, 11, 16, 17, 18}));
  view.copy_block_from({3, 4}, {2, 3}, counting(6, 100));
  auto expected = counting(35);
  for (std::size_t i = 0; i < 6; ++i) expected[(3 + i / 3) * 7 + 4 + i % 3] = static_cast<std::uint32_t>(100 + i);
  EXPECT_EQ(buffer.to_vector(), expected);
  EXPECT_EQ(device_bytes(buffer, sim), expected);
}

TEST_F(Views, BlocksAreCopiedOnTheirOwnDevice) {
  UnifiedBuffer<std::uint32_t> from(3 * 4 * 5, on_sim()), to(6 * 6 * 6, on_sim());
  from.copy_from(counting(60));
  from.sync_to_device();
  from.release_host();
  to.fill(0);
  to.sync_to_device();
  auto target = to.view_3d(6, 6, 6);
  copy_block(from.view_3d(3, 4, 5), {1, 1, 1}, target, {2, 3, 0}, {2, 2, 4});
  std::vector<std::uint32_t> expected(216, 0);
  for (std::size_t p = 0; p < 2; ++p) {
    for (std::size_t r = 0; r < 2; ++r) {
      for (std::size_t c = 0; c < 4; ++c) {
        expected[((2 + p) * 6 + 3 + r) * 6 + c] = static_cast<std::uint32_t>(((1 + p) * 4 + 1 + r) * 5 + 1 + c);
      }
    }
  }
  EXPECT_EQ(device_bytes(to, sim), expected);
  EXPECT_EQ(to.to_vector(), expected);
  EXPECT_EQ(from.statistics().device_to_host_bytes, 0U) << "nothing went by way of the host";
}

/// Every shift of a block onto itself, wherever the elements are: as if the block had been copied aside first.
TEST_F(Views, ABlockMayBeCopiedOntoItself) {
  Device& batching = make_sim({.memory_bytes = std::size_t{64} << 20, .batches = true});
  enum class Where { host, device, both_sides };
  for (auto* const home : {&device("cpu"), &sim, &batching}) {
    for (auto const where : {Where::host, Where::device, Where::both_sides}) {
      for (std::size_t down = 0; down < 5; ++down) {
        for (std::size_t right = 0; right < 5; ++right) {
          SCOPED_TRACE(::testing::Message()
                       << home->id() << " " << static_cast<int>(where) << " " << down << " " << right);
          auto options = on_sim();
          options.device = home;
          UnifiedBuffer<std::uint32_t> flat(8 * 9, options), deep(4 * 5 * 6, options);
          for (auto* const buffer : {&flat, &deep}) {
            buffer->copy_from(counting(buffer->size(), 1000));
            if (where == Where::host) continue;
            auto part = where == Where::device ? buffer->slice(0) : buffer->slice(buffer->size() / 2 - 5, 20);
            add(home->default_queue(), part, 0).wait();
          }
          auto const before = home->transfers();
          auto matrix = flat.view_2d(8, 9);
          copy_block(matrix, {2, 2}, matrix, {down, right}, {4, 4});
          auto expected = counting(8 * 9, 1000);
          for (std::size_t i = 0; i < 16; ++i) {
            expected[(down + i / 4) * 9 + right + i % 4] =
                static_cast<std::uint32_t>(1000 + (2 + i / 4) * 9 + 2 + i % 4);
          }
          if (where != Where::both_sides) {
            EXPECT_EQ(moved(home->transfers()), moved(before)) << "where the elements are";
          }
          EXPECT_EQ(flat.to_vector(), expected);
          EXPECT_EQ(device_bytes(flat, *home), expected);
          flat.core().validate();

          auto volume = deep.view_3d(4, 5, 6);
          auto const plane = down / 2;
          copy_block(volume, {1, 1, 1}, volume, {plane, plane, right % 3}, {2, 3, 4});
          expected = counting(4 * 5 * 6, 1000);
          for (std::size_t i = 0; i < 24; ++i) {
            auto const p = i / 12, r = i / 4 % 3, c = i % 4;
            expected[((plane + p) * 5 + plane + r) * 6 + right % 3 + c] =
                static_cast<std::uint32_t>(1000 + ((1 + p) * 5 + 1 + r) * 6 + 1 + c);
          }
          EXPECT_EQ(deep.to_vector(), expected);
          EXPECT_EQ(device_bytes(deep, *home), expected);
          deep.core().validate();
        }
      }
    }
  }
  EXPECT_EQ(manager.pool(sim, Location::device).statistics().active_bytes, 0U) << "what was copied aside has gone";
}

/// Rows that go up in one place and down in another: no order of them would do.
TEST_F(Views, BlocksMayOverlapBetweenDifferentlyShapedViews) {
  for (bool const on_device : {false, true}) {
    UnifiedBuffer<std::uint32_t> buffer(36, on_sim());
    buffer.copy_from(counting(36));
    if (on_device) add(sim.default_queue(), buffer.slice(0), 0);
    auto const from = buffer.view_2d(6, 6);
    auto to = buffer.view_2d(9, 4);
    copy_block(from, {0, 1}, to, {1, 1}, {6, 3});  // the first onto the second, the last onto the one before
    auto expected = counting(36);
    for (std::size_t i = 0; i < 18; ++i) {
      expected[(1 + i / 3) * 4 + 1 + i % 3] = static_cast<std::uint32_t>(i / 3 * 6 + 1 + i % 3);
    }
    EXPECT_EQ(buffer.to_vector(), expected);
    EXPECT_EQ(device_bytes(buffer, sim), expected);
  }
}

TEST_F(Views, WithoutMemoryForABlockNothingChanges) {
  Device& small = make_sim({.memory_bytes = std::size_t{1} << 20});
  auto options = on_sim();
  options.device = &small;
  constexpr std::size_t side = 400;
  UnifiedBuffer<std::uint32_t> buffer(side * side, options);
  buffer.copy_from(counting(side * side));
  buffer.sync_to_device();
  buffer.release_host();
  auto const lease = buffer.device_view();  // which stays
  auto view = buffer.view_2d(side, side);
  EXPECT_THROW(copy_block(view, {1, 1}, view, {0, 0}, {side - 1, side - 1}), OutOfMemory);
  EXPECT_EQ(buffer.to_vector(), counting(side * side));
  EXPECT_EQ(device_bytes(buffer, small), counting(side * side));
}

TEST_F(Views, BlockCopiesWithinOwnMemoryMayOverlap) {
  UnifiedBuffer<std::uint32_t> buffer(6 * 6, on_sim());
  for (std::size_t first = 0; first < 20; ++first) {
    buffer.copy_from(counting(36));
    buffer.sync_to_device();
    buffer.view_2d(6, 6).copy_block_from({1, 1}, {4, 4}, std::as_const(buffer).host_view(first, 16));
    auto expected = counting(36);
    for (std::size_t i = 0; i < 16; ++i) expected[(1 + i / 4) * 6 + 1 + i % 4] = static_cast<std::uint32_t>(first + i);
    EXPECT_EQ(device_bytes(buffer, sim), expected);
    EXPECT_EQ(buffer.to_vector(), expected);

    buffer.copy_from(counting(36));
    buffer.sync_to_device();
    buffer.view_2d(6, 6).copy_block_to({1, 1}, {4, 4}, buffer.host(first, 16));
    expected = counting(36);
    for (std::size_t i = 0; i < 16; ++i) expected[first + i] = static_cast<std::uint32_t>((1 + i / 4) * 6 + 1 + i % 4);
    EXPECT_EQ(device_bytes(buffer, sim), expected);
    EXPECT_EQ(buffer.to_vector(), expected);
  }
}

TEST_F(Views, ABlocksRowsComeHomeInOneCommand) {
  Device& batching = make_sim({.memory_bytes = std::size_t{64} << 20, .batches = true});
  auto options = on_sim();
  options.device = &batching;
  options.pinned = true;
  UnifiedBuffer<std::uint32_t> buffer(100 * 5000, options);
  auto const values = counting(100 * 5000);
  {
    auto const lease = buffer.device_overwrite();
    std::ranges::copy(values, lease.data());
  }
  auto& queue = batching.default_queue();
  auto const tickets = queue.record().ticket();
  std::vector<std::uint32_t> block(50 * 10);
  buffer.view_2d(100, 5000).copy_block_to({20, 300}, {50, 10}, block);
  EXPECT_EQ(queue.record().ticket() - tickets, 1U);
  for (std::size_t i = 0; i < block.size(); ++i) ASSERT_EQ(block[i], (20 + i / 10) * 5000 + 300 + i % 10);
  EXPECT_EQ(moved(buffer.statistics()), (Moved{0, 0, 50 * 40, 50}));
  EXPECT_EQ(moved(batching.transfers()), moved(buffer.statistics()));
}

TEST_F(Views, AFailedBlockCopyLeavesItsTargetUnchanged) {
  Device& batching = make_sim({.memory_bytes = std::size_t{64} << 20, .batches = true});
  auto options = on_sim();
  options.device = &batching;
  UnifiedBuffer<std::uint32_t> from(20 * 20, options), to(20 * 20, options);
  from.copy_from(counting(400));
  to.copy_from(counting(400, 1000));
  for (auto* const buffer : {&from, &to}) buffer->sync_to_device();
  from.release_host();
  auto target = to.view_2d(20, 20);
  set_sim_faults(batching, {.fail_call = 3});  // the third row: sim copies them one by one
  copy_block(from.view_2d(20, 20), {0, 0}, target, {5, 5}, {10, 10});
  EXPECT_THROW(std::ignore = to.to_vector(), DeviceError);
  EXPECT_EQ(to.to_vector(), counting(400, 1000));
  EXPECT_EQ(device_bytes(to, batching), counting(400, 1000));
  to.core().validate();
}

TEST_F(Views, BoundsAreCheckedIn64Bits) {
  UnifiedBuffer<std::uint32_t> buffer(12, on_sim());
  buffer.fill(1);
  constexpr auto huge = std::numeric_limits<std::size_t>::max();
  EXPECT_THROW(std::ignore = buffer.view_2d(3, 5), SizeMismatch);
  EXPECT_THROW(std::ignore = buffer.view_2d(huge, 2), InvalidArgument) << "a product that wraps";
  EXPECT_THROW(std::ignore = buffer.view_3d(std::size_t{1} << 32, std::size_t{1} << 32, 12), InvalidArgument);
  auto view = buffer.view_2d(3, 4);
  EXPECT_THROW(std::ignore = view.at({0, 4}), InvalidArgument) << "in the buffer, not in the row";
  EXPECT_THROW(std::ignore = view.at({3, 0}), InvalidArgument);
  EXPECT_THROW(std::ignore = view.row(3), InvalidArgument);
  std::vector<std::uint32_t> block(4);
  EXPECT_THROW(view.copy_block_to({2, 2}, {2, 2}, block), InvalidArgument);
  EXPECT_THROW(view.copy_block_to({huge, 0}, {2, 2}, block), InvalidArgument);
  EXPECT_THROW(view.copy_block_to({0, 0}, {2, 3}, block), SizeMismatch);
  EXPECT_EQ(block, std::vector<std::uint32_t>(4)) << "nothing was written";
  auto const empty = UnifiedBuffer<float>(0, on_sim()).view_2d(0, 7);
  EXPECT_EQ(empty.size(), 0U);
  EXPECT_THROW(std::ignore = empty.row(0), InvalidArgument);
}

}  // namespace
}  // namespace unimem::testing
