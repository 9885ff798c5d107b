#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/manager/links.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "core/disk_cache.hpp"
#include "core/last_level_cache.hpp"
#include "core/sanitizers.hpp"
#include "core/sizes.hpp"
#include "device/temporary_folder.hpp"
#include "forked_child.hpp"
#include "manager/link_bench.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

namespace unimem {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::Not;

/// Of one link that is measured: a copy that pays for what happens once, and five, of each size.
constexpr std::uint64_t copies_of_a_measurement = 12;

Device& fast_sim() {
  return make_sim({.upload_bytes_per_second = 12e9,
                   .download_bytes_per_second = 6e9,
                   .peer_bytes_per_second = 50e9,
                   .latency = 10us});
}

// ---- What devices say of themselves ----------------------------------------------------------------------------

TEST(ConfiguredLinks, AreExactlyTheOptionsOfTheDevice) {
  TemporaryFolder const folder;
  auto& sim = fast_sim();
  std::string const id{sim.id()};
  Links links{{.cache_directory = folder / "links"}};
  EXPECT_EQ(links.to(sim), (Link{"host", id, 12e9, 10e-6, false, LinkSource::configured}));
  EXPECT_EQ(links.from(sim), (Link{id, "host", 6e9, 10e-6, false, LinkSource::configured}));
  EXPECT_EQ(sim.transfers(), TransferCounters{});
  EXPECT_FALSE(fs::exists(folder / "links")) << "there is nothing to remember";
}

TEST(ConfiguredLinks, WithoutABandwidthAreAsFastAsMemory) {
  Links links;
  auto const link = links.to(make_sim()).value();
  EXPECT_TRUE(std::isinf(link.bytes_per_second));
  EXPECT_EQ(link.latency_seconds, 0);
  EXPECT_EQ(link.seconds(std::size_t{1} << 40), 0);
}

TEST(ConfiguredLinks, BetweenPeersAreThoseOfTheTarget) {
  auto& one = fast_sim();
  auto& other = make_sim({.peer_bytes_per_second = 20e9, .latency = 3us});
  Links links;
  EXPECT_EQ(links.between(one, other),
            (Link{std::string(one.id()), std::string(other.id()), 20e9, 3e-6, false, LinkSource::configured}));
  EXPECT_EQ(links.between(other, one).value().bytes_per_second, 50e9);
}

TEST(ConfiguredLinks, WithoutPeerAccessGoThroughTheHost) {
  auto& one = fast_sim();
  auto& other = make_sim({.upload_bytes_per_second = 2e9, .peer = false, .latency = 3us});
  Links links;
  auto const link = links.between(one, other).value();
  EXPECT_TRUE(link.via_host);
  EXPECT_EQ(link.bytes_per_second, 2e9) << "the slower half";
  EXPECT_DOUBLE_EQ(link.latency_seconds, 13e-6) << "both halves";
  EXPECT_FALSE(links.between(other, one).value().via_host) << "need not be mutual";
}

TEST(ConfiguredLinks, ADeviceInHostMemoryHasNone) {
  auto& cpu = device("cpu");
  auto& sim = fast_sim();
  Links links;
  EXPECT_FALSE(links.to(cpu));
  EXPECT_FALSE(links.from(cpu));
  EXPECT_FALSE(links.between(cpu, cpu));
  EXPECT_FALSE(links.between(sim, sim));
  EXPECT_EQ(links.between(cpu, sim), links.to(sim));
  EXPECT_EQ(links.between(sim, cpu), links.from(sim));
}

TEST(ConfiguredLinks, AreListedBothWaysTheHostsFirst) {
  auto &one = fast_sim(), &other = fast_sim();
  MemoryManager manager;
  std::vector<std::string> ways;
  for (auto const& link : manager.links().among({device("cpu"), one, other})) ways.push_back(link.from + " " + link.to);
  std::string const a{one.id()}, b{other.id()};
  EXPECT_THAT(ways, ElementsAre("host " + a, a + " host", "host " + b, b + " host", a + " " + b, b + " " + a));
}

TEST(ConfiguredLinks, TellWhatACopyTakes) {
  Link const link{.from = "host", .to = "x", .bytes_per_second = 1e9, .latency_seconds = 1e-3};
  EXPECT_DOUBLE_EQ(link.seconds(0), 1e-3);
  EXPECT_DOUBLE_EQ(link.seconds(1'000'000), 2e-3);
}

// ---- What is measured --------------------------------------------------------------------------------------------

/// Simulated devices whose word is not taken for it.
class MeasuredLinks : public ::testing::Test {
 protected:
  [[nodiscard]] LinkOptions options() const {
    return {.cache_directory = folder_ / "links", .measure_configured = true};
  }

  [[nodiscard]] std::vector<fs::path> files() const {
    std::vector<fs::path> found;
    if (!fs::exists(folder_ / "links")) return found;
    for (auto const& entry : fs::directory_iterator(folder_ / "links")) found.push_back(entry.path());
    return found;
  }

  static std::uint64_t uploads(Device const& device) { return device.transfers().host_to_device_copies; }

  TemporaryFolder folder_;
};

TEST_F(MeasuredLinks, AreWhatTheDeviceWasSetTo) {
  auto& sim = make_sim({.upload_bytes_per_second = 400e6, .download_bytes_per_second = 200e6, .latency = 1ms});
  Links links{options()};
  auto const up = links.to(sim).value();
  EXPECT_EQ(up.source, LinkSource::measured);
  EXPECT_THAT(up.bytes_per_second, AllOf(Ge(100e6), Le(600e6)));
  EXPECT_GE(up.latency_seconds, 1e-3);
  EXPECT_EQ(uploads(sim), copies_of_a_measurement);
  auto const down = links.from(sim).value();
  EXPECT_THAT(down.bytes_per_second, AllOf(Ge(50e6), Le(300e6)));
  EXPECT_GE(down.latency_seconds, 1e-3);
  EXPECT_EQ(sim.transfers().device_to_host_copies, copies_of_a_measurement);
  EXPECT_EQ(sim.memory_info().free_bytes, sim.memory_info().total_bytes) << "what was borrowed is given back";
}

/// What is copied within a cache is copied faster than buffers are; the largest caches hold all that may be copied.
TEST_F(MeasuredLinks, AreMeasuredByCopiesThatNoCacheHoldsOrSaySo) {
  if (detail::under_thread_sanitizer)
    GTEST_SKIP() << "copies under ThreadSanitizer take longer than a measurement may, and less is copied then";
  auto const large = detail::copied_to_measure();
  bool const is_cached = large <= detail::last_level_cache_bytes();
  EXPECT_EQ(is_cached, detail::last_level_cache_bytes() >= 256 * MiB);
  for (bool const upwards : {true, false}) {
    SCOPED_TRACE(upwards);
    bool seen = false;
    // A machine that is busy elsewhere is slow for a moment, and less is copied then.
    for (int attempt = 0; attempt < 10 && !seen; ++attempt) {
      auto& sim = make_sim();
      Links links{{.cache_directory = fs::path{}, .measure_configured = true}};
      auto const link = upwards ? links.to(sim).value() : links.from(sim).value();
      auto const moved = sim.transfers();
      auto const bytes = upwards ? moved.host_to_device_bytes : moved.device_to_host_bytes;
      EXPECT_LE(bytes, 6 * 256 + 4 * MiB + 5 * large);
      seen = bytes == 6 * 256 + 4 * MiB + 5 * large;
      EXPECT_EQ(link.within_cache, seen && is_cached);
    }
    EXPECT_TRUE(seen);
  }
}

TEST_F(MeasuredLinks, SlowLinksAreMeasuredWithinTheTimeLimit) {
  auto& sim = make_sim({.upload_bytes_per_second = 200e6});
  auto const begin = std::chrono::steady_clock::now();
  auto const link = Links{options()}.to(sim).value();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
  EXPECT_FALSE(link.within_cache) << "that is not why it is slow";
  EXPECT_LE(sim.transfers().host_to_device_bytes, 6 * 256 + 4 * MiB + 5 * 10 * MiB);
}

TEST_F(MeasuredLinks, KeptByAnotherMethodAreNotBelieved) {
  auto& sim = make_sim();
  ASSERT_TRUE(Links{options()}.to(sim));
  auto const file = files().at(0);
  auto const whole = content_of(file);
  auto const key_begin = whole.find('\n', whole.find('\n') + 1) + 1;
  auto const key = whole.substr(key_begin, std::stoul(whole.substr(whole.find('\n') + 1)));
  auto const method = key.find("copies of ");
  ASSERT_NE(method, std::string::npos) << key;
  fs::remove(file);
  detail::DiskCache const cache{folder_ / "links", "link", 1 << 20};
  for (auto const& other : {key.substr(0, method), key.substr(0, method) + "copies of 4194304 bytes\n"}) {
    ASSERT_FALSE(cache.keep(other, "48900000000 1e-6\n"));
  }
  auto const before = uploads(sim);
  EXPECT_NE(Links{options()}.to(sim).value().bytes_per_second, 48.9e9);
  EXPECT_EQ(uploads(sim), before + copies_of_a_measurement);
}

TEST_F(MeasuredLinks, BetweenDevicesAreMeasuredByTheTarget) {
  auto& one = make_sim();
  auto& other = make_sim({.peer_bytes_per_second = 500e6});
  Links links{options()};
  EXPECT_THAT(links.between(one, other).value().bytes_per_second, AllOf(Ge(100e6), Le(750e6)));
  EXPECT_EQ(other.transfers().device_to_device_copies, copies_of_a_measurement);
  EXPECT_EQ(one.transfers(), TransferCounters{});
  EXPECT_EQ(one.memory_info().free_bytes, one.memory_info().total_bytes);
}

TEST_F(MeasuredLinks, AreMeasuredOnceHoweverManyAskAtOnce) {
  auto& sim = make_sim();
  Links links{options()};
  std::vector<Link> found(4);
  {
    std::vector<std::jthread> threads;
    for (auto& link : found) threads.emplace_back([&] { link = links.to(sim).value(); });
  }
  EXPECT_EQ(uploads(sim), copies_of_a_measurement);
  for (auto const& link : found) EXPECT_EQ(link, found[0]);
}

TEST_F(MeasuredLinks, AreRememberedByWhoComesLater) {
  auto& sim = make_sim();
  auto const first = Links{options()}.to(sim);
  ASSERT_EQ(uploads(sim), copies_of_a_measurement);
  EXPECT_EQ(files().size(), 1U);
  EXPECT_EQ(Links{options()}.to(sim), first) << "to the last digit";
  EXPECT_EQ(uploads(sim), copies_of_a_measurement) << "and nothing was copied for it";
}

TEST_F(MeasuredLinks, AreKeptApartByDeviceAndDirection) {
  auto &one = make_sim(), &other = make_sim();
  Links links{options()};
  EXPECT_TRUE(links.to(one));
  EXPECT_TRUE(links.to(other));
  EXPECT_TRUE(links.from(one));
  EXPECT_TRUE(links.between(one, other));
  EXPECT_EQ(uploads(one), copies_of_a_measurement);
  EXPECT_EQ(uploads(other), copies_of_a_measurement);
  EXPECT_EQ(files().size(), 4U);
}

TEST_F(MeasuredLinks, KeptButUnreadableAreMeasuredAnew) {
  auto& sim = make_sim();
  ASSERT_TRUE(Links{options()}.to(sim));
  auto const file = files().at(0);
  auto const whole = content_of(file);
  auto damaged = whole;
  damaged[damaged.size() - 3] = static_cast<char>(damaged[damaged.size() - 3] ^ 1);
  auto measured = uploads(sim);
  for (auto const& content : {damaged, whole.substr(0, whole.size() / 2), std::string{}, std::string{"PNG"}}) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << content;
    ::testing::internal::CaptureStderr();
    auto const link = Links{options()}.to(sim);
    EXPECT_THAT(::testing::internal::GetCapturedStderr(), AllOf(HasSubstr(file.string()), HasSubstr("measured anew")));
    EXPECT_EQ(link.value().source, LinkSource::measured);
    EXPECT_EQ(uploads(sim), measured += copies_of_a_measurement);
    EXPECT_EQ(Links{options()}.to(sim), link) << "the file is whole again";
    EXPECT_EQ(uploads(sim), measured);
  }
}

TEST_F(MeasuredLinks, AreNotBelievedIfTheyMakeNoSense) {
  auto& sim = make_sim();
  for (std::string const text :
       {"-1 1e-6\n", "1e9 1e-6 within\n", "1e9 1e-6 within the cache more\n", "1e9 1e-6 within the cache", "nan 1e-6\n",
        "1e9 0\n", "1e9\n", "1e9 1e-6 more\n", "inf 1e-6\n", "1e30 1e-6\n", "0.5 1e-6\n", "1e9 1e-12\n", "1e9 61\n"}) {
    fs::remove_all(folder_ / "links");
    ASSERT_TRUE(Links{options()}.to(sim));
    // The same entry with another value, its sizes and checksum as they should be.
    auto const file = files().at(0);
    auto const whole = content_of(file);
    auto const key_begin = whole.find('\n', whole.find('\n') + 1) + 1;
    auto const key_bytes = std::stoul(whole.substr(whole.find('\n') + 1));
    auto const key = whole.substr(key_begin, key_bytes);
    detail::DiskCache const cache{folder_ / "links", "link", 1 << 20};
    ASSERT_EQ(cache.file_of(key), file);
    ASSERT_FALSE(cache.keep(key, text));
    auto const before = uploads(sim);
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(Links{options()}.to(sim).value().source, LinkSource::measured);
    EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("measured anew")) << text;
    EXPECT_EQ(uploads(sim), before + copies_of_a_measurement) << text;
  }
}

TEST_F(MeasuredLinks, AreNotBelievedOfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to give a file away";
  auto& sim = make_sim();
  ASSERT_TRUE(Links{options()}.to(sim));
  ASSERT_EQ(::chown(files().at(0).c_str(), 65534, 65534), 0);
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(Links{options()}.to(sim));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("measured anew"));
  EXPECT_EQ(uploads(sim), 2 * copies_of_a_measurement);

  ASSERT_EQ(::chown((folder_ / "links").c_str(), 65534, 65534), 0);
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(Links{options()}.to(sim));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("cannot be kept"), HasSubstr("it belongs to another user")));
  EXPECT_EQ(uploads(sim), 3 * copies_of_a_measurement);
}

TEST_F(MeasuredLinks, ThatCannotBeKeptAreSaidSoOnce) {
  std::ofstream(folder_ / "links") << "a file in the way";
  auto& sim = make_sim();
  ::testing::internal::CaptureStderr();
  Links links{options()};
  EXPECT_EQ(links.to(sim).value().source, LinkSource::measured);
  EXPECT_EQ(links.from(sim).value().source, LinkSource::measured);
  auto const said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("cannot be kept"));
  EXPECT_EQ(said.find("cannot be kept"), said.rfind("cannot be kept")) << said;
  EXPECT_EQ(content_of(folder_ / "links"), "a file in the way");
}

TEST_F(MeasuredLinks, WithoutADirectoryAreSilentlyNotKept) {
  auto& sim = make_sim();
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(Links({.cache_directory = fs::path{}, .measure_configured = true}).to(sim));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_TRUE(Links({.cache_directory = fs::path{}, .measure_configured = true}).to(sim));
  EXPECT_EQ(uploads(sim), 2 * copies_of_a_measurement);
}

TEST_F(MeasuredLinks, ThatCannotBeMeasuredAreEstimated) {
  auto& sim = make_sim({.upload_bytes_per_second = 3e9, .latency = 1us, .fail_upload = 3});
  Links links{options()};
  ::testing::internal::CaptureStderr();
  auto const link = links.to(sim).value();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("could not be measured"), HasSubstr("SIM_FAULT")));
  EXPECT_EQ(link.source, LinkSource::estimated);
  EXPECT_EQ(link.bytes_per_second, sim.link_cost().bytes_per_second);
  EXPECT_EQ(link.latency_seconds, sim.link_cost().latency_seconds);
  EXPECT_EQ(links.to(sim), link) << "and not tried again for each who asks";
  EXPECT_EQ(files().size(), 0U);
  EXPECT_EQ(sim.memory_info().free_bytes, sim.memory_info().total_bytes);
  EXPECT_EQ(Links{options()}.to(sim).value().source, LinkSource::measured) << "the fault is over";
}

TEST_F(MeasuredLinks, AreMeasuredWithWhatMemoryThereIs) {
  auto& small = make_sim({.memory_bytes = MiB / 2});
  EXPECT_EQ(Links{options()}.to(small).value().source, LinkSource::measured);
  // Five copies more where a noisy moment has made the small ones seem the slower.
  EXPECT_THAT(small.transfers().host_to_device_bytes, AllOf(Ge(6 * (MiB / 2)), Le(11 * (MiB / 2) + 6 * 1024)));
  auto& none = make_sim({.memory_bytes = 1024});
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Links{options()}.to(none).value().source, LinkSource::estimated);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), Not(HasSubstr("cannot be kept")));
}

TEST_F(MeasuredLinks, AreRefusedToAChildForkedMeanwhile) {
  auto& sim = make_sim({.latency = 200ms});
  Links links{options()};
  ::testing::internal::CaptureStderr();
  std::jthread measuring([&] { std::ignore = links.to(sim); });
  while (uploads(sim) == 0) std::this_thread::yield();  // eleven more copies are to come
  EXPECT_EQ(in_child([&] {
              EXPECT_HERE(is_refused([&] { std::ignore = links.to(sim); }));
              Links own{options()};
              EXPECT_HERE(own.to(sim).value().source == LinkSource::estimated);  // its device has no queues here
              return 0;
            }),
            0);
  set_sim_faults(sim, {.fail_upload = 1});  // has it over soon
  measuring.join();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("could not be measured and is estimated"));
}

// ---- Within a manager's limits ---------------------------------------------------------------------------------

TEST_F(MeasuredLinks, AreMeasuredWithinTheManagersLimit) {
  auto& sim = make_sim({.memory_bytes = 64 * MiB, .upload_bytes_per_second = 100e6});
  MemoryManager manager({.pools = {.backing = PoolBacking::allocations}, .links = options()});
  manager.set_limit(sim, MiB);
  auto const live = manager.acquire(sim, Location::device, 640 * KiB);
  auto const link = manager.links().to(sim).value();
  EXPECT_EQ(link.source, LinkSource::measured);
  EXPECT_TRUE(link.within_cache) << "and says so";
  EXPECT_TRUE(files().empty()) << "later ones may have more memory";
  auto const pool = manager.pool(sim, Location::device).statistics();
  EXPECT_EQ(pool.total_allocations, 2U) << "the block that was measured with is one of the manager's";
  EXPECT_LE(pool.peak_reserved_bytes, MiB);
  EXPECT_THAT(sim.transfers().host_to_device_bytes, AllOf(Ge(6 * 256 * KiB), Le(6 * 256 * KiB + 6 * 1024)));
}

TEST_F(MeasuredLinks, AreEstimatedOnceTheLimitIsReached) {
  auto& sim = make_sim({.memory_bytes = 64 * MiB, .upload_bytes_per_second = 100e6});
  MemoryManager manager({.pools = {.backing = PoolBacking::allocations}, .links = options()});
  manager.set_limit(sim, MiB);
  auto const live = manager.acquire(sim, Location::device, MiB);
  ::testing::internal::CaptureStderr();
  auto const link = manager.links().to(sim).value();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("could not be measured"));
  EXPECT_EQ(link.source, LinkSource::estimated);
  EXPECT_EQ(link.bytes_per_second, sim.link_cost().bytes_per_second);
  EXPECT_EQ(sim.transfers(), TransferCounters{});
  EXPECT_EQ(manager.pool(sim, Location::device).statistics().peak_reserved_bytes, MiB);
}

TEST_F(MeasuredLinks, StayWithinTheHostsLimits) {
  auto& sim = make_sim({.download_bytes_per_second = 100e6});
  MemoryManager manager({.pools = {.backing = PoolBacking::allocations}, .links = options()});
  manager.set_limit(sim, Location::pinned, 32 * KiB);
  manager.set_limit(sim, Location::host, 128 * KiB);
  EXPECT_EQ(manager.links().from(sim).value().source, LinkSource::measured);
  EXPECT_EQ(manager.pool(sim, Location::pinned).statistics().peak_reserved_bytes, 0U);
  EXPECT_EQ(manager.pool(sim, Location::host).statistics().peak_active_bytes, 128 * KiB);
  EXPECT_THAT(sim.transfers().device_to_host_bytes, AllOf(Ge(6 * 128 * KiB), Le(6 * 128 * KiB + 6 * 1024)));

  manager.set_limit(sim, Location::host, 32 * KiB);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(manager.links().to(sim).value().source, LinkSource::estimated);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("could not be measured"));
}

}  // namespace
}  // namespace unimem
