#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/pool/memory_pool.hpp>

#include "core/sizes.hpp"
#include "device/cuda_fixture.hpp"

#include <cstddef>
#include <cstdlib>

// What pools of a GPU are made of. How large the stand-in's GPUs are counts once in a process.

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

}  // namespace
}  // namespace unimem
