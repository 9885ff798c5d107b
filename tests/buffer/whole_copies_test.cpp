#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/sim.hpp>

#include "core/sizes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

// A device's copy of a buffer is whole, whatever part of it is used: who finds no room for it is told so.

namespace unimem::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class WholeCopies : public ::testing::Test {
 protected:
  using Buffer = UnifiedBuffer<std::byte>;

  [[nodiscard]] Buffer of(std::size_t bytes, std::string name) {
    BufferOptions options;
    options.manager = &manager;
    options.device = &sim;
    options.name = std::move(name);
    Buffer buffer(bytes, options);
    buffer.fill(std::byte{5});
    return buffer;
  }
  static void use(Queue& queue, std::vector<Operand> const& operands) {
    use_on_device(queue, operands, [&](std::span<const DeviceMemory> memory, std::span<const Event>) {
      return queue.fill(memory[0], std::vector(1, std::byte{7}));
    }).wait();
  }
  [[nodiscard]] static OutOfMemory::Facts refused(std::function<void()> const& work, std::string& said) {
    try {
      work();
    } catch (OutOfMemory const& error) {
      said = error.what();
      return error.facts();
    }
    ADD_FAILURE() << "there was room";
    return {};
  }

  Device& sim = make_sim({.memory_bytes = 64 * MiB});
  MemoryManager manager;
  std::string said;
};

TEST_F(WholeCopies, ARefusedSliceLaunchNamesItsBuffer) {
  manager.set_limit(sim, 2 * MiB);
  auto rows = of(4 * MiB, "rows");
  auto const facts =
      refused([&] { use(sim.default_queue(), {{&rows.core(), {MiB, MiB + 64 * KiB}, Intent::read_write}}); }, said);
  EXPECT_EQ(facts.buffer, "buffer 'rows'");
  EXPECT_EQ(facts.buffer_bytes, 4 * MiB);
  EXPECT_EQ(facts.used_bytes, 64 * KiB);
  EXPECT_EQ(facts.requested, 4 * MiB);
  EXPECT_EQ(facts.limit, 2 * MiB);
  EXPECT_THAT(said,
              HasSubstr("a copy on a device is whole: buffer 'rows' has 4 MiB, of which 64 KiB were to be used: use "
                        "smaller buffers, stream_file, or a larger limit"));
  EXPECT_EQ(rows.state(), BufferState::host_dirty);
  EXPECT_EQ(rows.to_vector(), std::vector(4 * MiB, std::byte{5}));
}

TEST_F(WholeCopies, SoDoLeasesAndPrefetchesOfSlices) {
  manager.set_limit(sim, 2 * MiB);
  auto const rows = of(4 * MiB, "rows");
  auto const part = rows.slice(0, KiB);
  for (std::function<void()> const& work : {std::function<void()>([&] { static_cast<void>(part.device_view(sim)); }),
                                            std::function<void()>([&] { static_cast<void>(part.prefetch(sim)); })}) {
    auto const facts = refused(work, said);
    EXPECT_EQ(facts.buffer, "buffer 'rows'");
    EXPECT_EQ(facts.buffer_bytes, 4 * MiB);
    EXPECT_EQ(facts.used_bytes, KiB);
  }
}

TEST_F(WholeCopies, TheBufferLeavingMostUnusedIsNamed) {
  manager.set_limit(sim, 2 * MiB);
  auto small = of(MiB, "small"), large = of(2 * MiB, "large");
  auto const facts = refused(
      [&] {
        use(sim.default_queue(), {{&small.core(), {0, MiB}, Intent::write},
                                  {&large.core(), {0, MiB / 2}, Intent::read},
                                  {&large.core(), {MiB / 4, MiB}, Intent::read}});
      },
      said);
  EXPECT_EQ(facts.buffer, "buffer 'large'");
  EXPECT_EQ(facts.buffer_bytes, 2 * MiB);
  EXPECT_EQ(facts.used_bytes, MiB) << "what two slices share counts once";
}

TEST_F(WholeCopies, AWhollyUsedBufferIsNotNamed) {
  manager.set_limit(sim, 2 * MiB);
  auto rows = of(4 * MiB, "rows");
  auto const facts =
      refused([&] { use(sim.default_queue(), {{&rows.core(), {0, 4 * MiB}, Intent::read_write}}); }, said);
  EXPECT_EQ(facts.buffer, "");
  EXPECT_THAT(said, Not(HasSubstr("whole")));
}

}  // namespace
}  // namespace unimem::testing
