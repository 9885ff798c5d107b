#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace unimem {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

/// What NotFound lists for `id`, or a failure.
std::vector<std::string> listed_for(std::string const& id) {
  try {
    static_cast<void>(device(id));
    ADD_FAILURE() << "'" << id << "' was found";
  } catch (NotFound const& error) {
    EXPECT_EQ(error.kind, "device");
    EXPECT_EQ(error.name, id);
    return error.available;
  }
  return {};
}

bool opencl_is_loaded() {
  std::ifstream maps{"/proc/self/maps"};
  for (std::string line; std::getline(maps, line);) {
    if (line.find("libOpenCL") != std::string::npos) return true;
  }
  return false;
}

// The first test: the others look for drivers.
TEST(Discovery, NamingTheCpuOrSimWakesNoDriver) {
  ASSERT_FALSE(opencl_is_loaded());
  static_cast<void>(device("cpu"));
  static_cast<void>(device("sim:memory=1MiB"));
  EXPECT_THROW(static_cast<void>(device("cpu:threads=4")), InvalidArgument);
  EXPECT_FALSE(opencl_is_loaded());
}

TEST(Discovery, TheCpuComesFirst) {
  auto const all = devices();
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(all.front().get().id(), "cpu");
  EXPECT_EQ(&all.front().get(), &device("cpu"));
}

TEST(Discovery, IdsAreUniqueAndFindTheirDevice) {
  make_sim();
  make_sim();
  std::set<std::string_view> ids;
  for (Device& one : devices()) {
    EXPECT_TRUE(ids.insert(one.id()).second) << one.id();
    EXPECT_EQ(&device(one.id()), &one);
  }
}

TEST(Discovery, SimulatedDevicesComeLast) {
  auto const before = devices().size();
  auto& first = make_sim();
  auto& second = make_sim();
  auto const all = devices();
  ASSERT_EQ(all.size(), before + 2);
  EXPECT_EQ(&all[before].get(), &first);
  EXPECT_EQ(&all[before + 1].get(), &second);
}

TEST(Discovery, EqualOptionsAreTheSameSim) {
  auto& first = device("sim:memory=1MiB,latency=10us");
  EXPECT_EQ(first.info().total_bytes, 1U << 20);
  EXPECT_EQ(first.link_cost().latency_seconds, 10e-6);
  for (auto const* const spelling :
       {"sim:memory=1MiB,latency=10us", "sim:latency=10us,memory=1MiB", "sim:memory=1024KiB,latency=0.01ms",
        "sim:latency=10000ns,peer=1,memory=1048576"}) {
    EXPECT_EQ(&device(spelling), &first) << spelling;
  }
  EXPECT_EQ(&device(first.id()), &first) << "by its id it is the same too";
  auto& plain = device("sim");
  for (auto const* const spelling : {"sim", "sim:", "sim:memory=1GiB", "sim:batch=0,fail_run=0"}) {
    EXPECT_EQ(&device(spelling), &plain) << spelling;
  }
  EXPECT_NE(&plain, &first);
  EXPECT_NE(&device("sim:memory=1MiB,latency=11us"), &first);
  auto& made = make_sim(parse_sim_options("memory=1MiB,latency=10us"));
  EXPECT_NE(&made, &first) << "make_sim always makes a new one";
  EXPECT_NE(&make_sim(), &plain);
  auto const before = devices().size();
  for (int i = 0; i < 200; ++i) static_cast<void>(device("sim"));
  EXPECT_EQ(devices().size(), before);
}

TEST(Discovery, FaultsOfASimAreShared) {
  auto const memory = device("sim:memory=2MiB,fail_alloc=2").allocate(16, Location::device);
  EXPECT_THROW(static_cast<void>(device("sim:fail_alloc=2,memory=2MiB").allocate(16, Location::device)), OutOfMemory);
  device("sim:memory=2MiB,fail_alloc=2").release(memory, Location::device);
}

TEST(Discovery, ThreadsThatNameASimGetOne) {
  std::vector<Device*> found(8);
  std::vector<std::thread> crowd;
  for (auto& mine : found) crowd.emplace_back([&mine] { mine = &device("sim:memory=5MiB"); });
  for (auto& thread : crowd) thread.join();
  EXPECT_THAT(found, ::testing::Each(found.front()));
}

TEST(Discovery, NotFoundListsWhatIsThere) {
  auto const sim = std::string(make_sim().id());
  for (auto const* const id :
       {"", "gpu", "CPU", "cpu:0", "cpu ", "sim:99999", "sims", "opencl", "opencl:", "opencl:999", "opencl:x", "cuda:0",
        "metal:0", "cuda", ":", ",", "opencl:99999999999999999999", "opencl,0"}) {
    auto const listed = listed_for(id);
    EXPECT_THAT(listed, Contains("cpu")) << id;
    EXPECT_THAT(listed, Contains(sim)) << id;
  }
}

TEST(Discovery, UnavailableBackendsGiveTheReason) {
  try {
    static_cast<void>(device("cuda:0"));
    FAIL() << "there is no CUDA here";
  } catch (NotFound const& error) {
    auto const unavailable = unavailable_backends();
    auto const cuda = std::ranges::find(unavailable, Backend::cuda, &UnavailableBackend::backend);
    ASSERT_NE(cuda, unavailable.end());
    EXPECT_EQ(error.reason, "cuda is unavailable: " + cuda->reason);
    EXPECT_THAT(error.what(), testing::EndsWith(error.reason));
  }
}

TEST(Discovery, OptionsThatCannotBeReadAreRefused) {
  EXPECT_THROW(static_cast<void>(device("cpu:threads=4")), InvalidArgument);
  EXPECT_THROW(static_cast<void>(device("cpu,threads=4")), InvalidArgument);
  EXPECT_THROW(static_cast<void>(device("sim:memory=0")), InvalidArgument);
  EXPECT_THROW(static_cast<void>(device("sim:speed=fast")), InvalidArgument);
  auto const before = devices().size();
  EXPECT_THROW(static_cast<void>(device("sim:memory=lots")), InvalidArgument);
  EXPECT_EQ(devices().size(), before) << "a refused device is not made";
}

TEST(Discovery, EveryBackendHasDevicesOrAReason) {
  std::set<Backend> seen{Backend::sim};
  for (Device const& one : devices()) seen.insert(one.backend());
  for (auto const& missing : unavailable_backends()) {
    EXPECT_FALSE(missing.reason.empty());
    EXPECT_TRUE(seen.insert(missing.backend).second) << to_string(missing.backend) << " is there and missing";
  }
  EXPECT_EQ(seen, (std::set{Backend::cpu, Backend::opencl, Backend::cuda, Backend::metal, Backend::sim}));
}

TEST(Discovery, ThreadsFindTheSameDevices) {
  std::vector<Device*> found(8);
  std::vector<std::thread> crowd;
  for (auto& mine : found) crowd.emplace_back([&mine] { mine = &device("cpu"); });
  for (auto& thread : crowd) thread.join();
  EXPECT_THAT(found, ::testing::Each(&device("cpu")));
}

// The default is decided once in a process: each of these needs one of its own.
class DefaultDevice : public ::testing::Test {
 protected:
  DefaultDevice() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(DefaultDevice, IsWhatTheEnvironmentSays) {
  auto const scenario = [] {
    setenv("UNIMEM_DEVICE", "sim:memory=3MiB", 1);
    auto& chosen = default_device();
    setenv("UNIMEM_DEVICE", "cpu", 1);
    bool const decided_once = &default_device() == &chosen;
    std::exit(decided_once && chosen.info().total_bytes == 3U << 20 ? 7 : 1);
  };
  EXPECT_EXIT(scenario(), ::testing::ExitedWithCode(7), "");
}

TEST_F(DefaultDevice, IsAGpuOrTheCpu) {
  auto const scenario = [] {
    setenv("UNIMEM_DEVICE", "", 1);
    auto& chosen = default_device();
    std::exit(&chosen == &device("cpu") || chosen.info().is_gpu ? 7 : 1);
  };
  EXPECT_EXIT(scenario(), ::testing::ExitedWithCode(7), "");
}

TEST_F(DefaultDevice, ThatIsMisnamedIsAnError) {
  auto const scenario = [] {
    setenv("UNIMEM_DEVICE", "gpu:7", 1);
    int errors = 0;
    for (int i = 0; i < 2; ++i) {
      try {
        static_cast<void>(default_device());
      } catch (NotFound const& error) {
        errors += error.name == "gpu:7";
      }
    }
    std::exit(errors == 2 ? 7 : 1);
  };
  EXPECT_EXIT(scenario(), ::testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace unimem
