#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/pool/memory_pool.hpp>

#include "core/sizes.hpp"
#include "device/cuda_fixture.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <span>
#include <vector>

// What pools of a GPU are made of, and by how many calls. How large the stand-in's GPUs are counts once in a process.

namespace unimem {
namespace {

using ::testing::HasSubstr;

TEST(AllocatorOfAGpu, SaysWhatPoolsAreMadeOf) {
  setenv("UNIMEM_CUDA_STANDIN_DEVICES", "5", 1);
  setenv("UNIMEM_CUDA_STANDIN_CAPACITY", "4294967296", 1);
  auto const reserved_for_one_byte = [](char const* id) {
    MemoryPool pool{device(id), Location::device};
    auto const block = pool.acquire(1);
    return pool.statistics().reserved_bytes;
  };
  EXPECT_EQ(reserved_for_one_byte("cuda:0"), 2 * MiB);
  EXPECT_EQ(reserved_for_one_byte("cuda:1,allocator=pages"), 2 * MiB);
  EXPECT_EQ(reserved_for_one_byte("cuda:2,allocator=plain"), 256U);
  EXPECT_EQ(reserved_for_one_byte("cuda:3,allocator=async"), 256U);
  EXPECT_EQ(reserved_for_one_byte("cuda:4,memory=500MiB"), 256U) << "of 250 pages one would be felt";
  try {
    static_cast<void>(device("cuda:0,allocator=mine"));
    FAIL() << "whose?";
  } catch (InvalidArgument const& error) {
    EXPECT_THAT(error.what(), HasSubstr("allocator=pages|plain|async"));
  }
}

std::size_t calls(char const* function) {
  return standin_control().calls(function);
}

/// GPUs of the stand-in with 2 GiB, and what their pools ask of the driver.
class GrowthOfAGpu : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    setenv("UNIMEM_CUDA_STANDIN_DEVICES", "3", 1);
    setenv("UNIMEM_CUDA_STANDIN_CAPACITY", "2147483648", 1);
  }
  void TearDown() override { EXPECT_THAT(standin::violations(standin_control()), ::testing::IsEmpty()); }

  /// Bytes that tell where they are, and whether they are still there.
  static void write(Device& gpu, DeviceMemory memory, unsigned char value) {
    gpu.default_queue().fill(memory, std::vector{std::byte{value}}).wait();
  }
  static bool holds(Device& gpu, DeviceMemory memory, unsigned char value) {
    std::vector<std::byte> back(memory.bytes);
    gpu.default_queue().download(back.data(), memory, back.size()).wait();
    return std::ranges::all_of(back, [&](std::byte byte) { return byte == std::byte{value}; });
  }
  /// What the first device copies from the second, byte for byte.
  static bool copies(Device& to, Device& from) {
    MemoryPool near{to, Location::device}, far{from, Location::device};
    auto const here = near.acquire(1 * MiB), there = far.acquire(1 * MiB);
    write(from, there.memory(), 9);
    write(to, here.memory(), 0);
    auto queue = to.create_queue();
    queue.copy(here.memory(), from, there.memory(), 1 * MiB).wait();
    return holds(to, here.memory(), 9);
  }
};

TEST_F(GrowthOfAGpu, IsOfFewPiecesWhereItIsLarge) {
  auto& gpu = device("cuda:0");
  MemoryPool pool{gpu, Location::device};
  {
    auto const block = pool.acquire(512 * MiB);
    EXPECT_EQ(calls("cuMemCreate"), 32U);
    EXPECT_EQ(calls("cuMemMap"), 32U);
    EXPECT_EQ(calls("cuMemSetAccess"), 1U);
    EXPECT_EQ(standin_control().used(0), 512 * MiB);
    EXPECT_EQ(pool.statistics().reserved_bytes, 512 * MiB);
  }
  EXPECT_EQ(pool.trim(0), 512 * MiB);
  EXPECT_EQ(calls("cuMemRelease"), 32U);
  auto const live = standin_control().live();
  EXPECT_EQ(live.handles + live.mappings + live.reservations, 0U);
  EXPECT_EQ(standin_control().used(0), 0U);
  EXPECT_EQ(pool.statistics().reserved_bytes, 0U);
}

TEST_F(GrowthOfAGpu, IsOfPagesWhereItIsSmallAndAtTheEnd) {
  MemoryPool pool{device("cuda:0"), Location::device};
  auto const small = pool.acquire(40 * MiB);
  EXPECT_EQ(calls("cuMemCreate"), 20U);
  auto const large = pool.acquire(262 * MiB);
  EXPECT_EQ(calls("cuMemCreate"), 20U + 32U + 3U) << "32 pieces of 8 MiB, and three pages for the rest";
}

TEST_F(GrowthOfAGpu, GoesBackButForThePieceThatIsInUse) {
  auto& gpu = device("cuda:0");
  MemoryPool pool{gpu, Location::device};
  pool.acquire(512 * MiB).release();
  auto const block = pool.acquire(3 * MiB);
  write(gpu, block.memory(), 7);
  pool.trim(0);
  EXPECT_EQ(pool.statistics().reserved_bytes, 16 * MiB);
  EXPECT_EQ(standin_control().used(0), 16 * MiB);
  EXPECT_TRUE(holds(gpu, block.memory(), 7));
  // The rest of the piece serves others.
  auto const creations = calls("cuMemCreate");
  auto const beside = pool.acquire(12 * MiB);
  EXPECT_EQ(calls("cuMemCreate"), creations);
  pool.validate();
}

TEST_F(GrowthOfAGpu, PiecesThatLieApartMakeALargeBlock) {
  auto& gpu = device("cuda:0");
  PoolOptions options;
  options.max_bytes = 512 * MiB;
  options.backing = PoolBacking::pages;
  MemoryPool pool{gpu, Location::device, options};
  pool.acquire(512 * MiB).release();
  std::vector<Allocation> row;
  for (int i = 0; i < 8; ++i) row.push_back(pool.acquire(64 * MiB));
  for (std::size_t i = 0; i < row.size(); ++i) write(gpu, row[i].memory(), static_cast<unsigned char>(i + 1));
  for (std::size_t i = 0; i < row.size(); i += 2) row[i].release();
  auto const creations = calls("cuMemCreate");
  auto const large = pool.acquire(250 * MiB);
  EXPECT_EQ(calls("cuMemCreate"), creations) << "what was there is enough";
  write(gpu, large.memory(), 100);
  for (std::size_t i = 1; i < row.size(); i += 2) {
    for (auto const at : {0 * MiB, 63 * MiB}) {
      EXPECT_TRUE(holds(gpu, row[i].memory().window(at, 1 * MiB), static_cast<unsigned char>(i + 1))) << i;
    }
  }
  pool.validate();
}

TEST_F(GrowthOfAGpu, AsksAccessForOtherGpusWhenTheyCopyFromIt) {
  auto& gpu = device("cuda:0");
  MemoryPool pool{gpu, Location::device};
  auto const first = pool.acquire(100 * MiB);
  EXPECT_EQ(calls("cuMemSetAccess"), 1U) << "for itself";
  ASSERT_TRUE(copies(device("cuda:1"), gpu));
  auto const before = calls("cuMemSetAccess");
  auto const second = pool.acquire(100 * MiB);
  EXPECT_EQ(calls("cuMemSetAccess") - before, 2U) << "for itself, and for the one that copies from it";
  EXPECT_TRUE(copies(device("cuda:1"), gpu));
}

TEST_F(GrowthOfAGpu, GoesOnThoughAnotherGpuIsRefusedAccess) {
  auto& gpu = device("cuda:0");
  auto& sick = device("cuda:1");
  MemoryPool pool{gpu, Location::device};
  auto const first = pool.acquire(10 * MiB);
  auto const own_calls = [&] {  // of one growth by a few pages
    auto const before = calls("cuMemSetAccess");
    static_cast<void>(pool.acquire(300 * MiB).release());
    pool.trim(0);
    return calls("cuMemSetAccess") - before;
  };
  // When it is to be granted first: two pools of the copy map a page each, and then the peer has its turn.
  standin_control().fail("cuMemSetAccess", 3, detail::cuda::Result::invalid_device, standin::FaultKind::once);
  EXPECT_TRUE(copies(sick, gpu)) << "the driver has other ways";
  EXPECT_EQ(own_calls(), 1U) << "nobody asks for it again";
  EXPECT_TRUE(copies(device("cuda:2"), gpu)) << "a third has nothing to do with it";
  EXPECT_EQ(own_calls(), 2U);
  // When it had access, and is refused what is mapped later.
  standin_control().fail("cuMemSetAccess", 2, detail::cuda::Result::illegal_address, standin::FaultKind::once);
  EXPECT_EQ(own_calls(), 2U);
  EXPECT_FALSE(gpu.is_lost());
  EXPECT_EQ(own_calls(), 1U);
  EXPECT_TRUE(copies(device("cuda:2"), gpu));
  EXPECT_TRUE(copies(gpu, device("cuda:2")));
}

TEST_F(GrowthOfAGpu, GoesOnThoughAnotherGpuIsLost) {
  auto& gpu = device("cuda:0");
  ASSERT_TRUE(copies(device("cuda:1"), gpu));
  standin_control().lose(1, detail::cuda::Result::ecc_uncorrectable);
  MemoryPool pool{gpu, Location::device};
  auto const block = pool.acquire(300 * MiB);
  write(gpu, block.memory(), 3);
  EXPECT_TRUE(holds(gpu, block.memory().window(299 * MiB, 1 * MiB), 3));
  EXPECT_TRUE(copies(device("cuda:2"), gpu));
  EXPECT_FALSE(gpu.is_lost());
}

}  // namespace
}  // namespace unimem
