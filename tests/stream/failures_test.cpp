#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/kernel/kernel.hpp>
#include <unimem/stream/stream_file.hpp>

#include "stream/scratch_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace unimem {
namespace {

constexpr std::size_t file_bytes = 500'000;
constexpr std::size_t chunk_bytes = 64 * 1'024;

/// What goes wrong on the way through, at every point where it can: the stream ends with that error, leaves nothing
/// behind, and the next one works.
class StreamFailures : public ::testing::Test {
 protected:
  [[nodiscard]] StreamOptions options(Device& device, bool writes) const {
    StreamOptions result;
    result.chunk_bytes = chunk_bytes;
    result.device = &device;
    if (writes) result.output = folder / "output";
    return result;
  }

  /// Every kind of work: a reduction, a mapping in place, and one with an output of its own, with and without writing
  /// it.
  struct Work {
    char const* name;
    StreamKernel kernel;
    bool writes;
  };
  [[nodiscard]] static std::vector<Work> works() {
    auto const own = Kernel("own").host([](WorkItem i, std::span<const std::uint8_t> in, std::span<std::uint8_t> out,
                                           std::uint64_t) { out[i.x] = static_cast<std::uint8_t>(in[i.x] + 1); });
    return {{"histogram", histogram(), false},
            {"affine", affine(ElementType::u8, 1, 1), true},
            {"affine without output", affine(ElementType::u8, 1, 1), false},
            {"own", own, true},
            {"own without output", own, false}};
  }

  void expect_nothing_left_and_the_next_to_work(Device& device, Work const& work) {
    EXPECT_EQ(folder.names(), (std::set<std::string>{"input"}));
    auto const result = stream_file(path, work.kernel, options(device, work.writes));
    EXPECT_EQ(result.bytes, file_bytes);
    std::filesystem::remove(folder / "output");
  }

  ScratchFolder folder;
  std::filesystem::path path = folder.write("input", mixed_bytes(file_bytes, 3));
};

TEST_F(StreamFailures, EveryDeviceFaultAtEveryPointIsReported) {
  struct {
    char const* name;
    std::uint64_t SimOptions::* fault;
    bool hits_reductions_and_all_else;
  } const faults[] = {{"upload", &SimOptions::fail_upload, true},
                      {"download", &SimOptions::fail_download, false},
                      {"run", &SimOptions::fail_run, true}};
  constexpr std::uint64_t chunks = (file_bytes + chunk_bytes - 1) / chunk_bytes;
  for (auto const& work : works()) {
    for (auto const& [name, fault, hits_all] : faults) {
      for (std::uint64_t n = 1; n <= chunks; ++n) {
        SCOPED_TRACE(::testing::Message() << work.name << ", " << name << " " << n);
        SimOptions sim;
        sim.*fault = n;
        auto& device = make_sim(sim);
        bool const downloads = work.writes || std::string_view(work.name) == "histogram";
        if (hits_all || downloads) {
          EXPECT_THROW(stream_file(path, work.kernel, options(device, work.writes)), DeviceError);
          set_sim_faults(device, {});
        }
        expect_nothing_left_and_the_next_to_work(device, work);
      }
    }
  }
}

TEST_F(StreamFailures, ADeviceLostAtAnyCommandIsReported) {
  for (auto const& work : works()) {
    for (std::uint64_t n = 1; n <= 20; ++n) {
      SCOPED_TRACE(::testing::Message() << work.name << ", lost at command " << n);
      SimOptions sim;
      sim.lose_after = n;
      auto& device = make_sim(sim);
      bool const downloads = work.writes || std::string_view(work.name) == "histogram";
      // Two or three commands a chunk, and eight chunks.
      if (n <= (downloads ? 24U : 16U)) {
        EXPECT_THROW(stream_file(path, work.kernel, options(device, work.writes)), Error);
      }
      EXPECT_EQ(folder.names(), (std::set<std::string>{"input"}));
    }
  }
}

TEST_F(StreamFailures, FailedAllocationsLeaveFewerBuffers) {
  for (auto const& work : works()) {
    for (std::uint64_t n = 1; n <= 8; ++n) {
      SCOPED_TRACE(::testing::Message() << work.name << ", allocation " << n);
      SimOptions sim;
      sim.fail_allocation = n;
      auto& device = make_sim(sim);
      try {
        auto const result = stream_file(path, work.kernel, options(device, work.writes));
        EXPECT_EQ(result.bytes, file_bytes);
        EXPECT_GE(result.buffers, 1U);
        std::filesystem::remove(folder / "output");
      } catch (OutOfMemory const&) {
        EXPECT_LE(n, 2U);  // of the first slot
      }
      set_sim_faults(device, {});
      expect_nothing_left_and_the_next_to_work(device, work);
    }
  }
}

TEST_F(StreamFailures, ExceptionsOfProgressEndTheStream) {
  struct Enough {
    std::uint64_t at;
  };
  for (auto* const device : {&unimem::device("cpu"), &make_sim()}) {
    for (auto const& work : works()) {
      for (int calls = 1; calls <= 9; ++calls) {
        auto with = options(*device, work.writes);
        int call = 0;
        std::uint64_t last = 0;
        with.progress = [&](std::uint64_t done, std::uint64_t total) {
          last = done;
          // Chunks may be finished by twos, so the last call is known by its number of bytes.
          if (++call == calls || done == total) throw Enough{done};
        };
        try {
          stream_file(path, work.kernel, with);
          ADD_FAILURE() << "it went through";
        } catch (Enough const& enough) {
          EXPECT_EQ(enough.at, last);
        }
        EXPECT_EQ(folder.names(), (std::set<std::string>{"input"}));
      }
      expect_nothing_left_and_the_next_to_work(*device, work);
    }
  }
}

TEST_F(StreamFailures, CancellingSaysHowFarItCame) {
  for (auto* const device : {&unimem::device("cpu"), &make_sim()}) {
    for (auto const& work : works()) {
      for (std::uint64_t const chunks : {0U, 1U, 3U, 6U}) {
        std::stop_source stop;
        auto with = options(*device, work.writes);
        with.cancel = stop.get_token();
        bool in_time = false;
        with.progress = [&](std::uint64_t done, std::uint64_t total) {
          if (done >= chunks * chunk_bytes && stop.request_stop()) in_time = done < total;
        };
        try {
          stream_file(path, work.kernel, with);
          EXPECT_FALSE(in_time) << "it went through";
          std::filesystem::remove(folder / "output");
        } catch (StreamCancelled const& cancelled) {
          EXPECT_GE(cancelled.bytes_done, chunks * chunk_bytes);
          EXPECT_LT(cancelled.bytes_done, file_bytes);
          EXPECT_EQ(cancelled.bytes_total, file_bytes);
          EXPECT_EQ(cancelled.path, path.string());
        }
        EXPECT_EQ(folder.names(), (std::set<std::string>{"input"}));
      }
    }
  }
}

TEST_F(StreamFailures, AStoppedTokenStopsBeforeTheFirstChunk) {
  std::stop_source stop;
  stop.request_stop();
  auto& device = make_sim();
  auto with = options(device, false);
  with.cancel = stop.get_token();
  EXPECT_THROW(stream_file(path, histogram(), with), StreamCancelled);
  EXPECT_EQ(device.transfers().host_to_device_bytes, 0U);
}

TEST_F(StreamFailures, CancellingWaitsForChunksUnderWay) {
  SimOptions slow;
  slow.upload_bytes_per_second = 1e6;  // 65 ms for a chunk, of which three are under way
  auto& device = make_sim(slow);
  std::stop_source stop;
  auto with = options(device, true);
  with.cancel = stop.get_token();
  std::uint64_t sent = 0;
  std::jthread canceller([&] {
    while (device.transfers().host_to_device_bytes == 0) std::this_thread::yield();
    stop.request_stop();
    sent = device.transfers().host_to_device_bytes;
  });
  EXPECT_THROW(stream_file(path, affine(ElementType::u8, 1, 1), with), StreamCancelled);
  canceller.join();
  EXPECT_LE(device.transfers().host_to_device_bytes, sent + 3 * chunk_bytes);
  EXPECT_EQ(folder.names(), (std::set<std::string>{"input"}));
}

}  // namespace
}  // namespace unimem
