#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/detail/environment.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/kernel/launch.hpp>

#include "core/sizes.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <numeric>
#include <span>
#include <string>

// An array that is sixteen times as large as what its device may have, used by slices: each byte goes once each way.

namespace unimem::testing {
namespace {

std::size_t array_bytes() {
  auto const mebibytes = environment("UNIMEM_TEST_ARRAY_MIB");
  return (mebibytes ? std::stoull(*mebibytes) : 128) * MiB;
}

/// Of this process: "VmRSS", or "VmHWM" for the most there was.
std::size_t memory_of_process(std::string const& what) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::size_t kibibytes = 0;
    if (word == what + ":" && status >> kibibytes) return kibibytes * KiB;
  }
  ADD_FAILURE() << "no " << what;
  return 0;
}

/// From now on the most there was counts anew.
void forget_peak() {
  std::ofstream("/proc/self/clear_refs") << "5";
}

class LargeArray : public ::testing::TestWithParam<char const*> {};

TEST_P(LargeArray, GoesOnceEachWayBySlices) {
  auto& on = device(GetParam());
  auto const bytes = array_bytes(), limit = bytes / 16, slice = limit / 4 / sizeof(std::uint32_t);
  MemoryManager manager;
  manager.set_limit(on, limit);
  BufferOptions options;
  options.manager = &manager;
  options.device = &on;
  UnifiedBuffer<std::uint32_t> array(bytes / sizeof(std::uint32_t), options);
  auto const values = array.host_overwrite();
  std::iota(values.begin(), values.end(), 0U);
  auto const kernel = Kernel("triple")
                          .source(R"(
    UNIMEM_KERNEL triple(UNIMEM_BUFFER(unsigned, x)) { UNIMEM_DATA(unsigned, x)[UNIMEM_ITEM_X] *= 3; })")
                          .host([](WorkItem item, std::span<std::uint32_t> x) { x[item.x] *= 3; });

  forget_peak();
  auto const resident = memory_of_process("VmRSS");
  auto const before = on.transfers();
  for (std::size_t from = 0; from < array.size(); from += slice) {
    launch(kernel, Range{slice}, readwrite(array.slice(from, slice)));
    ASSERT_LE(manager.pool(on, Location::device).bytes_in_use(), limit);
  }
  auto const view = array.host_view();
  auto const moved = on.transfers().since(before);
  // Both devices take their memory from this process: what it has more than before is theirs, and the compiler's.
  EXPECT_LE(memory_of_process("VmHWM"), resident + limit + 192 * MiB);

  EXPECT_EQ(moved.host_to_device_bytes, bytes);
  EXPECT_EQ(moved.device_to_host_bytes, bytes);
  EXPECT_EQ(array.statistics().host_to_device_bytes, bytes);
  EXPECT_EQ(array.statistics().device_to_host_bytes, bytes);
  for (std::size_t i = 0; i < view.size(); ++i) ASSERT_EQ(view[i], 3 * static_cast<std::uint32_t>(i)) << i;
  EXPECT_GE(manager.statistics().reclaims, bytes / limit * 4 - 4) << "evicted by slices";
}

INSTANTIATE_TEST_SUITE_P(Sim, LargeArray, ::testing::Values("sim:memory=1GiB"));
INSTANTIATE_TEST_SUITE_P(OpenCl, LargeArray, ::testing::Values("opencl:0,zero_copy=0"));

}  // namespace
}  // namespace unimem::testing
