#include "buffer/buffer_fixture.hpp"
#include "buffer/held_page.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

// What the library itself writes to the memory of a buffer on the host is written without its lock, and counts before
// it has been written: copies that are made meanwhile are of half of it.

namespace unimem::testing {
namespace {

using WriteUnderWay = BufferTest;

TEST_F(WriteUnderWay, CopiesMadeMeanwhileAreStaleAfterwards) {
  HeldPage const source;
  auto const count = source.words().size();
  auto buffer = synchronized(count, "half written");
  buffer.release_device();
  auto const before = sim.transfers();
  std::size_t copied = 0;
  std::jthread other([&] {
    HeldPage::await_reader();
    buffer.sync_to_device();
    copied = sim.transfers().since(before).host_to_device_bytes;
    HeldPage::release();
  });
  buffer.copy_from(source.words());
  other.join();
  ASSERT_EQ(copied, count * sizeof(std::uint32_t)) << "no copy was made while the buffer was being written";
  EXPECT_FALSE(buffer.valid_on(sim));
  EXPECT_EQ(device_bytes(buffer, sim), std::vector<std::uint32_t>(count, 7U));
  EXPECT_EQ(buffer.to_vector(), std::vector<std::uint32_t>(count, 7U));
}

TEST_F(WriteUnderWay, IsNotBroughtAheadByOptimizing) {
  HeldPage const source;
  auto buffer = synchronized(source.words().size(), "half written");
  buffer.release_device();
  buffer.will_use();
  std::size_t placed = 1;
  std::jthread other([&] {
    HeldPage::await_reader();
    placed = manager.optimize().placed_bytes;
    HeldPage::release();
  });
  buffer.copy_from(source.words());
  other.join();
  EXPECT_EQ(placed, 0U);
  EXPECT_EQ(manager.optimize().placed_bytes, source.words().size_bytes()) << "now it is";
  EXPECT_EQ(device_bytes(buffer, sim), std::vector<std::uint32_t>(source.words().size(), 7U));
}

TEST_F(WriteUnderWay, CopiesOfOtherBytesStayValid) {
  HeldPage const source;
  auto const half = source.words().size() / 2;
  auto buffer = synchronized(2 * half, "written at its end");
  buffer.sync_to_device();
  auto const before = sim.transfers();
  std::jthread other([&] {
    HeldPage::await_reader();
    HeldPage::release();
  });
  buffer.copy_from(std::span<const std::uint32_t>(source.words().subspan(half)), half);
  other.join();
  buffer.sync_to_device();
  EXPECT_EQ(sim.transfers().since(before).host_to_device_bytes, half * sizeof(std::uint32_t));
  auto expected = counting(half);
  expected.resize(2 * half, 7U);
  EXPECT_EQ(device_bytes(buffer, sim), expected);
}

}  // namespace
}  // namespace unimem::testing
