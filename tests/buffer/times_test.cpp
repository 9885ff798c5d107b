#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"
#include "buffer/gate_from_beside.hpp"

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>

namespace unimem::testing {
namespace {

using namespace std::chrono_literals;

/// What a buffer and a device tell of time, for comparing in one line.
struct Times {
  std::uint64_t up = 0, down = 0, between = 0, untimed = 0;
  friend bool operator==(Times const&, Times const&) = default;
  friend Times operator+(Times a, Times b) {
    return {a.up + b.up, a.down + b.down, a.between + b.between, a.untimed + b.untimed};
  }
  friend std::ostream& operator<<(std::ostream& out, Times const& times) {
    return out << times.up << " ns up, " << times.down << " ns down, " << times.between << " ns between, "
               << times.untimed << " untimed";
  }
};

template <class Counts>
Times times(Counts const& counts) {
  return {counts.host_to_device_nanoseconds, counts.device_to_host_nanoseconds, counts.device_to_device_nanoseconds,
          counts.untimed_copies};
}

/// How long a buffer's copies took, as its statistics have it.
class CopyTimes : public BufferTest {
 protected:
  static constexpr std::size_t count = 250'000;  // a million bytes

  [[nodiscard]] static Device& paced(std::optional<std::size_t> staging = {}, bool peer = true) {
    return make_sim({.upload_bytes_per_second = 1e9,
                     .download_bytes_per_second = 5e8,
                     .peer_bytes_per_second = 2e9,
                     .peer = peer,
                     .latency = 100us,
                     .staging_threshold = staging});
  }

  [[nodiscard]] BufferOptions on(Device& home) {
    auto options = on_sim();
    options.device = &home;
    return options;
  }
};

TEST_F(CopyTimes, AreThoseOfTheLinkTheyGoOver) {
  auto& home = paced();
  UnifiedBuffer<std::uint32_t> buffer(count, on(home));
  auto const begin = std::chrono::steady_clock::now();
  buffer.copy_from(counting(count));
  EXPECT_EQ(times(buffer.statistics()), Times{}) << "the host's own part";
  buffer.sync_to_device();
  EXPECT_GE(buffer.statistics().host_to_device_nanoseconds, 1'100'000U);
  set(home.default_queue(), buffer.slice(0, count / 2), 7);
  buffer.sync_to_host();
  std::chrono::nanoseconds const whole = std::chrono::steady_clock::now() - begin;
  auto const taken = times(buffer.statistics());
  EXPECT_GE(taken.up, 1'100'000U);
  EXPECT_GE(taken.down, 1'100'000U) << "half as many bytes at half the rate";
  EXPECT_LE(taken.up + taken.down, static_cast<std::uint64_t>(whole.count()));
  EXPECT_EQ(taken, times(home.transfers()));
  buffer.sync_to_device();
  buffer.sync_to_host();
  EXPECT_EQ(times(buffer.statistics()), taken) << "nothing to do takes no time";
}

TEST_F(CopyTimes, OfBuffersAddUpToThoseOfDevices) {
  auto &first = paced(), &second = paced();
  UnifiedBuffer<std::uint32_t> a(count, on(first)), b(1000, on(second));
  a.copy_from(counting(count));
  b.copy_from(counting(1000));
  a.sync_to_device();
  b.sync_to_device(first);
  b.sync_to_device(second);
  set(first.default_queue(), a.slice(10, 500), 3);
  a.sync_to_device(second);
  set(second.default_queue(), b.slice(0, 10), 4);
  copy(b.slice(0, 100), a.slice(100, 100));  // from second, where it is, to first, where its target is at home
  std::ignore = a.to_vector();
  std::ignore = b.to_vector();
  EXPECT_GE(a.statistics().device_to_device_nanoseconds, 200'000U);
  EXPECT_EQ(times(a.statistics()) + times(b.statistics()), times(first.transfers()) + times(second.transfers()));
  EXPECT_EQ(a.slice(5, 7).statistics().host_to_device_nanoseconds, a.statistics().host_to_device_nanoseconds);
}

TEST_F(CopyTimes, ViaTheHostAreThoseOfBothHalves) {
  auto &first = paced({}, false), &second = paced({}, false);
  UnifiedBuffer<std::uint32_t> buffer(count, on(first));
  set(first.default_queue(), buffer.slice(0), 5);
  auto const lease = buffer.device_view(second);
  EXPECT_EQ(buffer.statistics().device_to_device_copies, 1U);
  auto const there = times(first.transfers()), here = times(second.transfers());
  EXPECT_GE(there.down, 2'100'000U);
  EXPECT_GE(here.up, 1'100'000U);
  EXPECT_EQ(times(buffer.statistics()), (Times{0, 0, there.down + here.up, 0}));
}

TEST_F(CopyTimes, OfStagedCopiesCountTheLinkAlone) {
  constexpr std::size_t words = std::size_t{5} << 18;  // two chunks
  auto& home = paced(std::size_t{1} << 20);
  UnifiedBuffer<std::uint32_t> buffer(words, on(home));
  buffer.copy_from(counting(words));
  auto const host = device("cpu").transfers();
  buffer.sync_to_device();
  set(home.default_queue(), buffer.slice(0), 7);
  buffer.sync_to_host();
  EXPECT_EQ(buffer.statistics().staged_copies, 2U);
  EXPECT_EQ(device("cpu").transfers().since(host).untimed_copies, 4U) << "the host's part, which nobody times";
  auto const taken = times(buffer.statistics());
  EXPECT_EQ(taken, times(home.transfers()));
  EXPECT_GE(taken.up, 5'400'000U);
  EXPECT_GE(taken.down, 10'600'000U);
  EXPECT_EQ(taken.untimed, 0U);
}

TEST_F(CopyTimes, OfWhatFailsCountNowhere) {
  UnifiedBuffer<std::uint32_t> buffer(100, on_sim());
  buffer.copy_from(counting(100));
  set_sim_faults(sim, {.fail_upload = 1});
  EXPECT_THROW(buffer.sync_to_device(), DeviceError);
  EXPECT_EQ(times(buffer.statistics()), Times{});
}

TEST_F(CopyTimes, WithinADeviceCountForItAlone) {
  auto& home = paced();
  UnifiedBuffer<std::uint32_t> buffer(1000, on(home));
  set(home.default_queue(), buffer.slice(0), 5);
  copy_async(buffer.slice(0, 500), buffer.slice(500, 500)).wait();
  EXPECT_EQ(home.transfers().device_to_device_copies, 1U);
  EXPECT_EQ(buffer.statistics().device_to_device_copies, 0U);
  EXPECT_EQ(times(buffer.statistics()), Times{});
}

TEST_F(CopyTimes, OfOrphanedCopiesCountForTheDeviceAlone) {
  auto& home = paced();
  UnifiedBuffer<std::uint32_t> kept(1000, on(home));
  kept.copy_from(counting(1000));
  Event last;
  {
    UnifiedBuffer<std::uint32_t> dropped(1000, on(home));
    dropped.copy_from(counting(1000));
    GateFromBeside gate(home, other);
    kept.sync_to_device_async();
    kept.reset();
    last = dropped.sync_to_device_async();
  }
  last.wait();
  EXPECT_GE(home.transfers().host_to_device_nanoseconds, 200'000U);
  EXPECT_EQ(times(kept.statistics()), Times{});
  kept.copy_from(counting(1000));
  kept.sync_to_device();
  EXPECT_GE(kept.statistics().host_to_device_nanoseconds, 100'000U) << "it counts on from there";
  EXPECT_LE(kept.statistics().host_to_device_nanoseconds, home.transfers().host_to_device_nanoseconds - 200'000U);
}

}  // namespace
}  // namespace unimem::testing
