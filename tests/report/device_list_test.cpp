#include <unimem/device/sim.hpp>
#include <unimem/manager/memory_manager.hpp>
#include <unimem/report/device_list.hpp>

#include "device/temporary_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace unimem {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::IsEmpty;

TEST(DeviceList, ASnapshotAgreesWithTheDevice) {
  auto& sim = make_sim({.memory_bytes = 256 << 20});
  auto const memory = sim.allocate(1 << 20, Location::device);
  auto const snapshot = take_snapshot(sim);
  sim.release(memory, Location::device);

  EXPECT_EQ(snapshot.id, sim.id());
  EXPECT_EQ(snapshot.backend, Backend::sim);
  EXPECT_EQ(snapshot.info.name, sim.info().name);
  EXPECT_EQ(snapshot.memory.total_bytes, std::size_t{256} << 20);
  EXPECT_EQ(snapshot.memory.free_bytes, std::size_t{255} << 20);
  EXPECT_FALSE(snapshot.shares_storage_with_host);
}

TEST(DeviceList, ListsTheCpuFirst) {
  auto const& sim = make_sim();
  auto const list = list_devices();
  ASSERT_FALSE(list.devices.empty());
  EXPECT_EQ(list.devices.front().id, "cpu");
  EXPECT_TRUE(list.devices.front().shares_storage_with_host);
  EXPECT_THAT(list.devices, Contains(Field(&DeviceSnapshot::id, sim.id())));

  for (auto const& missing : list.unavailable) {
    EXPECT_FALSE(missing.reason.empty()) << to_string(missing.backend);
    for (auto const& device : list.devices) EXPECT_NE(device.backend, missing.backend) << device.id;
  }
}

TEST(DeviceList, HasTheManagersLimits) {
  auto& sim = make_sim({.memory_bytes = 64 << 20});
  auto& unlimited = make_sim();
  MemoryManager manager;
  manager.set_limit(sim, 8 << 20);
  manager.set_limit(sim, Location::pinned, 4 << 20);  // the host's
  auto const list = list_devices(manager);
  EXPECT_EQ(list.devices.size(), list_devices().devices.size());
  for (auto const& device : list.devices) {
    ASSERT_TRUE(device.limits) << device.id;
    if (device.id == "cpu") {
      EXPECT_THAT(*device.limits, ElementsAre(LocationLimit{Location::pinned, 4 << 20}));
    } else if (device.id == sim.id()) {
      EXPECT_THAT(*device.limits, ElementsAre(LocationLimit{Location::device, 8 << 20}));
    } else if (device.id == unlimited.id()) {
      EXPECT_THAT(*device.limits, IsEmpty());
    }
  }
  manager.set_limit(device("cpu"), 6 << 20);
  EXPECT_THAT(*list_devices(manager).devices.front().limits,
              ElementsAre(LocationLimit{Location::host, 6 << 20}, LocationLimit{Location::pinned, 4 << 20}));
  for (auto const& device : list_devices().devices) EXPECT_FALSE(device.limits) << "nobody was asked";
}

TEST(DeviceList, HasLinksIfTheyAreAskedFor) {
  auto const& sim = make_sim({.upload_bytes_per_second = 12e9});
  EXPECT_FALSE(list_devices().links) << "measuring is for who wants it";
  TemporaryFolder const folder;
  Links links{{.cache_directory = folder.path()}};
  auto const list = list_devices(links);
  ASSERT_TRUE(list.links);
  EXPECT_THAT(*list.links, Contains(AllOf(Field(&Link::to, sim.id()), Field(&Link::bytes_per_second, 12e9),
                                          Field(&Link::source, LinkSource::configured))));
  for (auto const& link : *list.links) EXPECT_TRUE(link.from != "cpu" && link.to != "cpu") << "it shares the host's";
}

}  // namespace
}  // namespace unimem
