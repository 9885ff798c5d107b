#include <unimem/device/discovery.hpp>
#include <unimem/pool/upstream.hpp>

#include "pool/erased_blocks.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

// Device memory that has no address: what is to be zero, the driver overwrites.

namespace unimem {
namespace {

INSTANTIATE_TEST_SUITE_P(OpenCl, ErasedBlocks,
                         ::testing::Values(ErasingHome{"opencl", []() -> Device& { return device("opencl:0"); },
                                                       Location::device}),
                         [](auto const& home) { return home.param.name; });

/// Memory of the driver's where the host's is asked for: nobody has an address of it.
class DriverMemory final : public Upstream {
 public:
  [[nodiscard]] DeviceMemory allocate(std::size_t bytes, Location, Device& device) override {
    return device.allocate(bytes, Location::device);
  }
  void release(DeviceMemory memory, Location, Device& device) noexcept override {
    device.release(memory, Location::device);
  }
};

TEST(ErasedOpenClObjects, AreOverwrittenByTheDriver) {
  auto& opencl = device("opencl:0");
  MemoryPool pool{opencl, Location::pinned, {.zero_on_release = true, .upstream = std::make_shared<DriverMemory>()}};
  constexpr std::uint64_t mark = 0x5EC4E75EC4E75EC4U;
  auto queue = opencl.create_queue();
  auto block = pool.acquire(64 * KiB);
  queue.fill(block.memory(), std::as_bytes(std::span{&mark, 1})).wait();
  block.release();
  block = pool.acquire(64 * KiB);
  EXPECT_EQ(pool.statistics().pool_hits, 1U) << "it is the same block";
  std::vector<std::uint64_t> words(8 * KiB, 1);
  queue.download(words.data(), block.memory(), 64 * KiB).wait();
  EXPECT_THAT(words, ::testing::Each(0U));
}

}  // namespace
}  // namespace unimem
