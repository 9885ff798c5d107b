#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/kernel/kernel.hpp>
#include <unimem/stream/stream_file.hpp>

#include "core/check_level.hpp"
#include "core/sanitizers.hpp"
#include "resident_bytes.hpp"
#include "stream/scratch_folder.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace unimem {
namespace {

/// Resident memory of this process now, bytes (proc(5)).
/// Whatever the file's size, no more is resident than two chunks to a buffer.
class StreamMemory : public ::testing::TestWithParam<char const*> {};

TEST_P(StreamMemory, StaysWithinTwiceTheBuffersWhateverTheFile) {
  if (detail::under_thread_sanitizer)
    GTEST_SKIP() << "ThreadSanitizer keeps as much again resident for every byte that is touched";
  if (detail::check_level() > 1) GTEST_SKIP() << "a kernel works on copies of its operands under UNIMEM_CHECK=2";
  ScratchFolder const folder;
  auto const path = folder.write("input", std::string_view());
  std::filesystem::resize_file(path, std::uint64_t{208} << 20);  // a hole: no disk is needed
  auto const own = Kernel("own").host([](WorkItem i, std::span<const std::uint64_t> in, std::span<std::uint64_t> out,
                                         std::uint64_t) { out[i.x] = ~in[i.x]; });
  struct {
    char const* name;
    StreamKernel kernel;
    bool writes;
  } const works[] = {{"histogram", histogram(), false},
                     {"affine", affine(ElementType::u64, 1, 1), true},
                     {"own", mapping(own, ElementType::u64), true}};
  auto& on = device(GetParam());
  for (auto const& [name, kernel, writes] : works) {
    StreamOptions options;
    options.chunk_bytes = std::size_t{16} << 20;
    options.buffers = 3;
    options.device = &on;
    if (writes) options.output = "/dev/null";
    auto const before = testing::resident_bytes();
    std::size_t most = 0;
    options.progress = [&](std::uint64_t, std::uint64_t) { most = std::max(most, testing::resident_bytes()); };
    auto const result = stream_file(path, kernel, options);
    EXPECT_EQ(result.chunks, 13U);
    // Threads and their stacks come on top, and shadow memory under a sanitizer: far from another chunk to a buffer.
    EXPECT_LT(most, before + 2 * options.buffers * options.chunk_bytes + (std::size_t{24} << 20)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, StreamMemory, ::testing::Values("cpu", "sim:memory=1GiB"),
                         [](auto const& tested) { return std::string(tested.param).substr(0, 3); });

TEST(StreamLimits, OfTheOutsideHoldWhateverTheOptionsAllow) {
  ScratchFolder const folder;
  auto const path = folder.write("input", std::string(4'000'000, 'x'));
  auto& sim = make_sim({.memory_bytes = std::size_t{64} << 20});
  StreamOptions options;
  options.device = &sim;
  options.chunk_bytes = std::size_t{512} << 10;
  options.memory_limit = std::size_t{8} << 20;
  ::setenv("UNIMEM_LIMITS", (std::string(sim.id()) + "=1MiB").c_str(), 1);
  auto const result = stream_file(path, histogram(), options);
  ::unsetenv("UNIMEM_LIMITS");
  EXPECT_EQ(std::get<HistogramResult>(result.result).counts['x'], 4'000'000U);
  EXPECT_LE(result.peak_device_bytes, std::size_t{1} << 20);
}

}  // namespace
}  // namespace unimem
