#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>

#include "core/sanitizers.hpp"
#include "device/device_conformance.hpp"
#include "device/gate.hpp"
#include "resident_bytes.hpp"

#include <chrono>
#include <cstring>
#include <limits>
#include <optional>

namespace unimem {
namespace {

using namespace std::chrono_literals;

/// A copy between addresses that are no memory of the device.
Event fail(Queue& queue) {
  return queue.copy({0x1000, 0, 8}, {0x2000, 0, 8}, 8);
}

Device& fast() {
  static auto& device = make_sim({.memory_bytes = std::size_t{64} << 20});
  return device;
}

/// One that takes its time, so that submission and completion are far apart.
Device& slow() {
  static auto& device = make_sim({.memory_bytes = (std::size_t{64} << 20) + 12'345,
                                  .upload_bytes_per_second = 2e9,
                                  .download_bytes_per_second = 3e9,
                                  .copy_bytes_per_second = 4e9,
                                  .latency = 20us});
  return device;
}

Device& batching() {
  static Device& device = unimem::device("sim:memory=1GiB,batch=1");
  return device;
}

INSTANTIATE_TEST_SUITE_P(Sim, DeviceConformance,
                         ::testing::Values(DeviceCase{"fast", fast, fail}, DeviceCase{"slow", slow, fail},
                                           DeviceCase{"batching", batching, fail}),
                         case_name);

// ThreadSanitizer leaves the program few addresses.
constexpr std::size_t terabyte = std::size_t{1} << (detail::under_thread_sanitizer ? 36 : 40);

TEST(Sim, IsADiscreteDevice) {
  auto& sim = make_sim({.memory_bytes = 12345});
  EXPECT_EQ(sim.backend(), Backend::sim);
  EXPECT_FALSE(sim.shares_storage_with_host());
  EXPECT_EQ(sim.info().total_bytes, 12345U);
  EXPECT_EQ(sim.memory_info().free_bytes, 12345U);
  EXPECT_TRUE(sim.info().runs_host_form);
  EXPECT_GE(sim.info().alignment, 256U);
}

TEST(Sim, SeveralExistSideBySide) {
  auto& a = make_sim({.memory_bytes = 1000});
  auto& b = make_sim({.memory_bytes = 2000});
  EXPECT_NE(a.id(), b.id());
  Allocated const piece{a, 600};
  EXPECT_EQ(a.memory_info().free_bytes, 400U);
  EXPECT_EQ(b.memory_info().free_bytes, 2000U);
}

TEST(Sim, CopiesTakeTheirLinksTime) {
  auto& sim = make_sim({.upload_bytes_per_second = 1e9,
                        .download_bytes_per_second = 5e8,
                        .copy_bytes_per_second = 2e9,
                        .latency = 100us});
  Allocated const piece{sim, 2'000'000};
  Bytes host(1'000'000);
  auto queue = sim.create_queue();
  auto const begin = std::chrono::steady_clock::now();
  for (int round = 0; round < 3; ++round) queue.upload(piece.memory(), host.data(), host.size());
  queue.download(host.data(), piece.memory(), host.size());
  queue.copy(piece.window(1'000'000, 1'000'000), piece.window(0, 1'000'000), 1'000'000);
  queue.synchronize();
  std::chrono::nanoseconds const whole = std::chrono::steady_clock::now() - begin;
  auto const counts = sim.transfers();
  EXPECT_GE(counts.host_to_device_nanoseconds, 3U * 1'100'000);
  EXPECT_GE(counts.device_to_host_nanoseconds, 2'100'000U);
  EXPECT_GE(counts.device_to_device_nanoseconds, 600'000U);
  EXPECT_LE(counts.host_to_device_nanoseconds + counts.device_to_host_nanoseconds + counts.device_to_device_nanoseconds,
            static_cast<std::uint64_t>(whole.count()));
  EXPECT_EQ(counts.untimed_copies, 0U);
  EXPECT_EQ(sim.transfers().since(counts), TransferCounters{}) << "nothing has moved since";
}

TEST(Sim, FreeMemoryIsExactAllTheTime) {
  auto& sim = make_sim({.memory_bytes = std::size_t{1} << 20});
  auto const page = sim.pages()->page_bytes();
  Allocated const first{sim, 1};
  EXPECT_EQ(sim.memory_info().free_bytes, (1U << 20) - 1U);
  {
    Allocated const second{sim, 70'001};
    EXPECT_EQ(sim.memory_info().free_bytes, (1U << 20) - 70'002U);
    auto const pages = sim.pages()->create_pages(2 * page);
    EXPECT_EQ(sim.memory_info().free_bytes, (1U << 20) - 70'002U - 2 * page);
    sim.pages()->free_pages(pages);
  }
  EXPECT_EQ(sim.memory_info().free_bytes, (1U << 20) - 1U);
}

TEST(Sim, RemembersTheMostThatWasAllocatedAtOnce) {
  auto& sim = make_sim({.memory_bytes = std::size_t{1} << 20});
  EXPECT_EQ(sim_peak_bytes(sim), 0U);
  auto const one = sim.allocate(1000, Location::device), another = sim.allocate(500, Location::device);
  sim.release(one, Location::device);
  auto const third = sim.allocate(700, Location::device);
  EXPECT_THROW(static_cast<void>(sim.allocate(std::size_t{2} << 20, Location::device)), OutOfMemory);
  EXPECT_EQ(sim_peak_bytes(sim), 1500U);
  sim.release(another, Location::device);
  sim.release(third, Location::device);
  EXPECT_EQ(sim_peak_bytes(sim), 1500U);
  EXPECT_THROW(static_cast<void>(sim_peak_bytes(device("cpu"))), InvalidArgument);
}

TEST(Sim, FreshMemoryReads0xCD) {
  auto& sim = make_sim();
  for (auto const bytes : Sizes{1, 100, 4096, 65'535, 65'536, 200'000, 5 << 20}) {
    Allocated const piece{sim, bytes};
    EXPECT_EQ(downloaded(sim, piece.memory()), repeated(bytes, 0xCD)) << bytes << " bytes";
  }
}

TEST(Sim, ReusedMemoryIsFresh) {
  auto& sim = make_sim();
  for (auto const bytes : Sizes{1000, 300'000}) {
    for (int round = 0; round < 5; ++round) {
      Allocated const piece{sim, bytes};
      ASSERT_EQ(downloaded(sim, piece.memory()), repeated(bytes, 0xCD));
      sim.default_queue().fill(piece.memory(), repeated(1, 0x77)).wait();
    }
  }
}

TEST(Sim, UnwrittenBytesStayFresh) {
  constexpr unsigned seed = 7;
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  constexpr std::size_t size = 1'000'000;
  auto& sim = make_sim();
  auto& queue = sim.default_queue();
  Allocated const piece{sim, size}, other{sim, size};
  queue.fill(other.memory(), repeated(1, 0x33));
  auto expected = repeated(size, 0xCD);
  std::minstd_rand random{seed};
  for (int step = 0; step < 60; ++step) {
    auto const bytes = 1 + random() % 150'000;
    auto const offset = random() % (size - bytes);
    auto const at = expected.begin() + static_cast<std::ptrdiff_t>(offset);
    auto const news = noise(bytes, static_cast<unsigned>(step));
    auto const window = piece.window(offset, bytes);
    switch (random() % 4) {
      case 0:
        queue.upload(window, news.data(), bytes).wait();
        std::copy(news.begin(), news.end(), at);
        break;
      case 1:
        queue.fill(window, repeated(1, 0x44)).wait();
        std::fill_n(at, bytes, std::byte{0x44});
        break;
      case 2:
        queue.copy(window, other.memory(), bytes).wait();
        std::fill_n(at, bytes, std::byte{0x33});
        break;
      default:
        ASSERT_EQ(downloaded(sim, window), Bytes(at, at + static_cast<std::ptrdiff_t>(bytes)));
    }
  }
  EXPECT_EQ(downloaded(sim, piece.memory()), expected);
}

TEST(Sim, KernelsSeeFreshMemory) {
  auto& sim = make_sim();
  Allocated const first{sim, 200'000}, second{sim, 200'000};
  auto const* const bytes = static_cast<std::byte const*>(sim.address(first.memory()));
  EXPECT_EQ(Bytes(bytes, bytes + 200'000), repeated(200'000, 0xCD));
  std::array const arguments{memory_argument(second.window(4, 100'000)), scalar_argument(std::uint32_t{0})};
  sim.default_queue().run(sim.compile(add_kernel()), Range{25'000}, arguments).wait();
  EXPECT_EQ(downloaded(sim, second.memory()), repeated(200'000, 0xCD));
}

TEST(Sim, FreshnessTravelsWithPages) {
  auto& sim = make_sim();
  auto& source = *sim.pages();
  auto const page = source.page_bytes();
  Reserved first{source, 8 * page}, second{source, 8 * page};
  first.map(0, source.create_pages(4 * page));
  auto& queue = sim.default_queue();
  queue.fill(first.memory(page, page), repeated(1, 0x21)).wait();
  second.map(3 * page, first.unmap(0, 4 * page));
  auto expected = repeated(4 * page, 0xCD);
  std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(page), page, std::byte{0x21});
  EXPECT_EQ(downloaded(sim, second.memory(3 * page, 4 * page)), expected);
}

TEST(Sim, ATerabyteCostsWhatIsTouchedOfIt) {
  auto& sim = make_sim({.memory_bytes = 2 * terabyte});
  auto const before = testing::resident_bytes();
  Allocated const piece{sim, terabyte}, another{sim, terabyte};
  EXPECT_EQ(sim.memory_info().free_bytes, 0U);
  std::uint32_t const word = 0x12345678;
  auto& queue = sim.default_queue();
  for (std::size_t i = 0; i < 16; ++i) queue.upload(piece.window(i * (terabyte / 16) + 5, 4), &word, 4);
  queue.synchronize();
  for (std::size_t i = 0; i < 16; ++i) {
    auto expected = repeated(12, 0xCD);
    std::memcpy(expected.data() + 4, &word, 4);
    EXPECT_EQ(downloaded(sim, piece.window(i * (terabyte / 16) + 1, 12)), expected);
  }
  EXPECT_LT(testing::resident_bytes(), before + (std::size_t{64} << 20));
}

TEST(Sim, AReservedTerabyteTakesPagesAsNeeded) {
  auto& sim = make_sim({.memory_bytes = std::size_t{1} << 20});
  auto& source = *sim.pages();
  Reserved range{source, terabyte};
  auto const far = terabyte - source.page_bytes();
  range.map(far, source.create_pages(source.page_bytes()));
  EXPECT_EQ(downloaded(sim, range.memory(far, 100)), repeated(100, 0xCD));
}

TEST(Sim, OnlyItsOwnMemoryCanBeUsed) {
  auto& sim = make_sim();
  auto queue = sim.create_queue();
  auto const released = [&] { return Allocated{sim, 300'000}.memory(); }();
  Bytes host(300'000);
  Allocated const piece{sim, 4096};
  for (auto const& event : {queue.upload(released, host.data(), 10), queue.download(host.data(), released, 10),
                            queue.fill(released, repeated(1, 0)), queue.copy(piece.memory(), released, 10),
                            queue.fill({piece.memory().object, 0, 4097}, repeated(1, 0))}) {
    try {
      event.wait();
      FAIL() << "memory was used that is not there";
    } catch (DeviceError const& error) {
      EXPECT_EQ(error.code_name, "ILLEGAL_ADDRESS");
    }
  }
  EXPECT_THROW(static_cast<void>(sim.address(released)), DeviceError);
}

TEST(Sim, AMistakenReleaseChangesNothing) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto& sim = make_sim({.memory_bytes = 10'000});
  Allocated const piece{sim, 600};
  EXPECT_DEBUG_DEATH(sim.release({piece.memory().object, 0, 500}, Location::device), "no live allocation");
  EXPECT_DEBUG_DEATH(sim.release({0x1000, 0, 500}, Location::device), "no live allocation");
  EXPECT_EQ(sim.memory_info().free_bytes, 9400U);
}

TEST(Sim, ServesNoHostMemory) {
  for (auto const location : {Location::host, Location::pinned, Location::unified}) {
    EXPECT_THROW(static_cast<void>(fast().allocate(1, location)), UnsupportedOperation);
  }
}

TEST(SimPace, CommandsTakeLatencyAndBandwidth) {
  auto& sim = make_sim({.upload_bytes_per_second = 100e6,
                        .download_bytes_per_second = 50e6,
                        .copy_bytes_per_second = 200e6,
                        .latency = 1ms});
  Allocated const piece{sim, 2'000'000}, other{sim, 2'000'000};
  Bytes host(1'000'000);
  auto& queue = sim.default_queue();
  auto const program = sim.compile(add_kernel());
  std::array const arguments{memory_argument(piece.memory()), scalar_argument(std::uint32_t{1})};
  struct Step {
    char const* name;
    std::function<Event()> submit;
    std::chrono::microseconds least;
  };
  for (auto const& [name, submit, least] :
       {Step{"upload", [&] { return queue.upload(piece.memory(), host.data(), 1'000'000); }, 11ms},
        Step{"download", [&] { return queue.download(host.data(), piece.memory(), 1'000'000); }, 21ms},
        Step{"copy", [&] { return queue.copy(other.memory(), piece.memory(), 1'000'000); }, 6ms},
        Step{"fill", [&] { return queue.fill(other.memory(), repeated(1, 1)); }, 11ms},
        Step{"run", [&] { return queue.run(program, Range{1000}, arguments); }, 1ms}}) {
    auto const begin = std::chrono::steady_clock::now();
    submit().wait();
    EXPECT_GE(std::chrono::steady_clock::now() - begin, least) << name;
  }
  EXPECT_EQ(sim.link_cost().latency_seconds, 1e-3);
  EXPECT_EQ(sim.link_cost().bytes_per_second, 100e6);
}

TEST(SimPace, SubmittingDoesNotWait) {
  auto& sim = make_sim({.latency = 1s});
  Allocated const piece{sim, 16};
  auto queue = sim.create_queue();
  auto const begin = std::chrono::steady_clock::now();
  auto const event = queue.fill(piece.memory(), repeated(1, 1));
  EXPECT_FALSE(event.ready());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 1s);
  EXPECT_EQ(event.wait_for_error(), nullptr);
}

TEST(SimPace, TheLinkOfAnUnboundedDeviceIsFixed) {
  // Whoever decides by costs decides the same in every run.
  auto const cost = make_sim().link_cost();
  EXPECT_EQ(cost.latency_seconds, 10e-6);
  EXPECT_EQ(cost.bytes_per_second, 8e9);
}

TEST(SimOptions, AreReadAsTheyAreWritten) {
  auto const options = parse_sim_options(
      "memory=1.5GiB,h2d=12GB/s,d2h=6GiB/s,d2d=100GB/s,latency=10us,staging=8MiB,fail_alloc=3,fail_upload=4,"
      "fail_download=5,fail_run=6,lose_after=7");
  EXPECT_EQ(options.memory_bytes, std::size_t{3} << 29);
  EXPECT_EQ(options.upload_bytes_per_second, 12e9);
  EXPECT_EQ(options.download_bytes_per_second, 6.0 * (1U << 30));
  EXPECT_EQ(options.copy_bytes_per_second, 100e9);
  EXPECT_EQ(options.latency, 10us);
  EXPECT_EQ(options.staging_threshold, std::size_t{8} << 20);
  EXPECT_EQ(options.fail_allocation, 3U);
  EXPECT_EQ(options.fail_upload, 4U);
  EXPECT_EQ(options.fail_download, 5U);
  EXPECT_EQ(options.fail_run, 6U);
  EXPECT_EQ(options.lose_after, 7U);

  EXPECT_EQ(parse_sim_options("").memory_bytes, SimOptions{}.memory_bytes);
  EXPECT_EQ(parse_sim_options("").staging_threshold, std::nullopt);
  EXPECT_EQ(parse_sim_options("latency=3ns").latency, 3ns);
  EXPECT_EQ(parse_sim_options("latency=1.5ms").latency, 1500us);
  EXPECT_EQ(parse_sim_options("latency=2s").latency, 2s);
  EXPECT_EQ(parse_sim_options("latency=0s").latency, 0s);
}

TEST(SimOptions, ThatCannotBeReadAreRefusedByName) {
  for (auto const& [text, argument] : {std::pair{"memory=0", "memory"},
                                       {"memory=", "memory"},
                                       {"memory=-1", "memory"},
                                       {"memory=99999999999GiB", "memory"},
                                       {"memory=1GiB,memory=2GiB", "sim option"},
                                       {"memory", "sim option"},
                                       {"speed=3", "sim option"},
                                       {"=3", "sim option"},
                                       {",", "sim option"},
                                       {"memory=1GiB,", "sim option"},
                                       {"memory=1GiB,,latency=1us", "sim option"},
                                       {"h2d=12GB", "h2d"},
                                       {"h2d=0GB/s", "h2d"},
                                       {"d2h=fast/s", "d2h"},
                                       {"d2d=/s", "d2d"},
                                       {"latency=10", "latency"},
                                       {"latency=us", "latency"},
                                       {"latency=-1us", "latency"},
                                       {"latency=1e3us", "latency"},
                                       {"latency=nanus", "latency"},
                                       {"latency=infs", "latency"},
                                       {"latency=2h", "latency"},
                                       {"latency=99999s", "latency"},
                                       {"staging=", "staging"},
                                       {"staging=-1", "staging"},
                                       {"fail_alloc=", "fail_alloc"},
                                       {"fail_alloc=-1", "fail_alloc"},
                                       {"fail_upload=1.5", "fail_upload"},
                                       {"fail_download=x", "fail_download"},
                                       {"fail_run=1 ", "fail_run"},
                                       {"lose_after=99999999999999999999", "lose_after"}}) {
    EXPECT_EQ(refused_argument([&, t = text] { static_cast<void>(parse_sim_options(t)); }), argument) << text;
  }
}

TEST(SimOptions, ThatMakeNoDeviceAreRefusedByName) {
  auto const refused = [](SimOptions const& options) { return refused_argument([&] { make_sim(options); }); };
  EXPECT_EQ(refused({.memory_bytes = 0}), "memory_bytes");
  EXPECT_EQ(refused({.upload_bytes_per_second = -1}), "upload_bytes_per_second");
  EXPECT_EQ(refused({.download_bytes_per_second = std::numeric_limits<double>::quiet_NaN()}),
            "download_bytes_per_second");
  EXPECT_EQ(refused({.copy_bytes_per_second = std::numeric_limits<double>::infinity()}), "copy_bytes_per_second");
  EXPECT_EQ(refused({.latency = -1ns}), "latency");
}

}  // namespace
}  // namespace unimem
