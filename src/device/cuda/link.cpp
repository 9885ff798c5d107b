#include "device/cuda/link.hpp"

#include "device/cuda/cuda_device.hpp"
#include "device/link_rows.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <exception>

namespace unimem::detail::cuda {
namespace {

constexpr std::size_t small = 256;
constexpr std::size_t large = std::size_t{4} << 20;

/// What the measurement borrows from the driver, and gives back whatever happens.
class Bench {
 public:
  explicit Bench(Driver const& driver) : driver_(driver) {
    try {
      check(driver, driver.cuStreamCreate(&stream_, stream_non_blocking), "cuStreamCreate");
      check(driver, driver.cuMemAlloc(&device_, large), "cuMemAlloc");
      check(driver, driver.cuMemHostAlloc(&host_, large, 0), "cuMemHostAlloc");
    } catch (...) {
      give_back();
      throw;
    }
  }
  Bench(Bench const&) = delete;
  Bench& operator=(Bench const&) = delete;
  ~Bench() { give_back(); }

  [[nodiscard]] double seconds_of_a_copy(std::size_t bytes) const {
    return seconds_of(
        [&] { check(driver_, driver_.cuMemcpyHtoDAsync(device_, host_, bytes, stream_), "cuMemcpyHtoDAsync"); });
  }
  [[nodiscard]] double seconds_of_rows(std::size_t rows, std::size_t row_bytes) const {
    Copy2D what;
    what.source_type = MemoryType::host;
    what.target_type = MemoryType::device;
    what.source_host = host_;
    what.target_device = device_;
    what.source_pitch = what.target_pitch = large / rows;
    what.width_bytes = row_bytes;
    what.height = rows;
    return seconds_of([&] { check(driver_, driver_.cuMemcpy2DAsync(&what, stream_), "cuMemcpy2DAsync"); });
  }

 private:
  /// The median of a few copies after a first one, which pays for what happens once.
  template <class Copy>
  [[nodiscard]] double seconds_of(Copy const& copy) const {
    std::array<double, 5> seconds{};
    for (std::size_t round = 0; round <= seconds.size(); ++round) {
      auto const begin = std::chrono::steady_clock::now();
      copy();
      check(driver_, driver_.cuStreamSynchronize(stream_), "cuStreamSynchronize");
      std::chrono::duration<double> const took = std::chrono::steady_clock::now() - begin;
      if (round > 0) seconds[round - 1] = took.count();
    }
    std::ranges::sort(seconds);
    return seconds[seconds.size() / 2];
  }

  void give_back() const noexcept {
    if (host_ != nullptr) static_cast<void>(driver_.cuMemFreeHost(host_));
    if (device_ != 0) static_cast<void>(driver_.cuMemFree(device_));
    if (stream_ != nullptr) static_cast<void>(driver_.cuStreamDestroy(stream_));
  }

  Driver const& driver_;
  Stream stream_ = nullptr;
  DevicePointer device_ = 0;
  void* host_ = nullptr;
};

}  // namespace

LinkCost measure_link(CudaDevice const& device) noexcept {
  try {
    CurrentContext const current{device.gpu()};
    Bench const bench{device.driver()};
    auto const start = bench.seconds_of_a_copy(small);
    auto const whole = bench.seconds_of_a_copy(large);
    // A noisy moment may turn the two round; no copy starts for nothing.
    if (whole <= start) return {};
    LinkCost cost{std::max(start, 1e-7), static_cast<double>(large - small) / (whole - start)};
    constexpr std::size_t rows = 256, row = 512;  // shorter ones go by a kernel where there are many
    cost.row_seconds = row_cost(cost, bench.seconds_of_rows(rows, row), rows, row);
    return cost;
  } catch (std::exception const&) {
    return {};
  }
}

}  // namespace unimem::detail::cuda
