#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/manager/memory_manager.hpp>
#include <unimem/share/buffer_registry.hpp>
#include <unimem/share/detail/sent_buffers.hpp>

#include "core/container_limit.hpp"
#include "core/sizes.hpp"
#include "device/contained_run.hpp"
#include "device/container_tree.hpp"
#include "process/segment.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

// Memory for several processes in a container, whose limit does not refuse, but kills.

namespace unimem::testing {
namespace {

using detail::Segment;

TEST(SegmentsInContainers, AreRefusedBeyondWhatTheContainerLeaves) {
  ContainerTree const tree;
  tree.belong_to("0::/service/worker\n");
  tree.add_second("service", std::to_string(32 * MiB), 20 * MiB, 4 * MiB);  // 16 MiB are left, beside cached files
  tree.add_second("service/worker", std::to_string(64 * MiB), MiB);
  detail::ContainerLimit const container{tree.groups(), tree.membership()};
  std::vector<std::byte> const contents(16 * MiB);
  auto const make = [&](std::size_t bytes) { return Segment::make("test", bytes, container); };
  auto const copy = [&](std::size_t bytes) {
    return Segment::make_copy("test", std::span(contents).first(bytes), container);
  };
  auto const expect_refused = [&](auto const& made, std::size_t bytes) {
    try {
      static_cast<void>(made(bytes));
      ADD_FAILURE() << bytes << " bytes were had";
    } catch (OutOfMemory const& error) {
      EXPECT_EQ(error.requested(), bytes);
      EXPECT_EQ(error.limit(), 32 * MiB);
      EXPECT_EQ(error.live(), 16 * MiB);
      EXPECT_NE(error.facts().reason.find("the container's memory limit of 32 MiB"), std::string::npos) << error.what();
      EXPECT_NE(error.facts().reason.find((tree.groups() / "service").string()), std::string::npos);
      EXPECT_NE(error.facts().reason.find("leaves 16 MiB"), std::string::npos);
    }
  };
  expect_refused(make, 16 * MiB);  // with what it takes to find its pages
  expect_refused(copy, 16 * MiB);
  expect_refused(make, 17 * MiB);
  EXPECT_EQ(make(15 * MiB).size(), 15 * MiB);
  EXPECT_EQ(copy(15 * MiB).size(), 15 * MiB);
  tree.add_second("service", std::to_string(32 * MiB), 32 * MiB);
  EXPECT_THROW(static_cast<void>(make(1)), OutOfMemory);
  tree.add_second("service", "max", 32 * MiB);
  EXPECT_EQ(make(16 * MiB).size(), 16 * MiB) << "it is asked each time";
}

/// What a process in a real container of 1 GiB does; started anew by the test below, as this very program.
TEST(SharedInAContainer, DISABLED_BuffersAreRefusedAndNotKilledFor) {
  ASSERT_EQ(device("cpu").info().total_bytes, GiB) << "it is in the group";
  BufferOptions options;
  options.shared = true;
  auto const expect_refused = [](auto const& operation) {
    try {
      operation();
      ADD_FAILURE() << "there is no room";
    } catch (OutOfMemory const& error) {
      EXPECT_NE(std::string(error.what()).find("the container's memory limit of 1 GiB"), std::string::npos)
          << error.what();
    }
  };
  expect_refused([&] { UnifiedBuffer<std::byte>(2 * GiB, options).fill(std::byte{1}); });
  UnifiedBuffer<std::byte> shared(500 * MiB, options);
  shared.fill(std::byte{1});
  // It is counted once: there is room for as much beside it, and not for twice that.
  UnifiedBuffer<std::byte> beside(300 * MiB, options);
  beside.fill(std::byte{2});
  expect_refused([&] { static_cast<void>(detail::send_copy(shared.core(), {0, 500 * MiB})); });
  BufferRegistry registry;
  UnifiedBuffer<std::byte> plain(64 * MiB);
  plain.fill(std::byte{3});
  registry.release(registry.publish(plain, {.cross_process = true}));
  EXPECT_EQ(plain.slice(0, 1).to_vector().front(), std::byte{3});
}

TEST(RealContainer, RefusesSharedBuffersWithoutKillingTheProcess) {
  run_contained("SharedInAContainer.DISABLED_*");
}

}  // namespace
}  // namespace unimem::testing
