#pragma once

#include <unimem/device/device.hpp>

#include "device/cuda/code.hpp"
#include "device/cuda/context.hpp"
#include "device/cuda/hardware.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <new>
#include <string>
#include <string_view>
#include <vector>

namespace unimem::bench {

/// The driver as a program without this library would call it: the same table of calls, a stream of its own in the same
/// context. What the library does is measured against this, in the same run.
class RawCuda {
 public:
  /// Throws std::out_of_range if the device is none of CUDA's.
  explicit RawCuda(Device& device)
      : hardware(detail::cuda::installation().hardware.at(index_of(device.id()))), driver(*hardware.driver) {
    check(driver.cuDevicePrimaryCtxRetain(&context, hardware.device), "cuDevicePrimaryCtxRetain");
    detail::cuda::CurrentContext const current{driver, context};
    check(driver.cuStreamCreate(&stream, detail::cuda::stream_non_blocking), "cuStreamCreate");
  }
  RawCuda(RawCuda const&) = delete;
  RawCuda& operator=(RawCuda const&) = delete;
  ~RawCuda() {
    {
      detail::cuda::CurrentContext const current{driver, context};
      static_cast<void>(driver.cuStreamDestroy(stream));
    }
    static_cast<void>(driver.cuDevicePrimaryCtxRelease(hardware.device));
  }

  void check(detail::cuda::Result code, char const* call) const { detail::cuda::check(driver, code, call); }

  /// How long `work` takes, to the end of all that it put into the stream.
  template <class Work>
  [[nodiscard]] double seconds(Work const& work) const {
    detail::cuda::CurrentContext const current{driver, context};
    auto const begin = std::chrono::steady_clock::now();
    work();
    check(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  detail::cuda::Hardware const& hardware;
  detail::cuda::Driver const& driver;
  detail::cuda::Context context = nullptr;
  detail::cuda::Stream stream = nullptr;

 private:
  [[nodiscard]] static std::size_t index_of(std::string_view id) {
    if (!id.starts_with("cuda:")) return SIZE_MAX;
    return std::stoul(std::string(id.substr(5)));
  }
};

/// Device memory and pinned host memory of the driver's own, for as long as it lives.
class RawMemory {
 public:
  RawMemory(RawCuda const& raw, std::size_t bytes) : raw_(raw) {
    detail::cuda::CurrentContext const current{raw_.driver, raw_.context};
    raw_.check(raw_.driver.cuMemAlloc(&device, bytes), "cuMemAlloc");
    try {
      raw_.check(raw_.driver.cuMemHostAlloc(&pinned, bytes, detail::cuda::host_alloc_portable), "cuMemHostAlloc");
    } catch (...) {
      static_cast<void>(raw_.driver.cuMemFree(device));
      throw;
    }
  }
  RawMemory(RawMemory const&) = delete;
  RawMemory& operator=(RawMemory const&) = delete;
  ~RawMemory() {
    detail::cuda::CurrentContext const current{raw_.driver, raw_.context};
    static_cast<void>(raw_.driver.cuMemFree(device));
    static_cast<void>(raw_.driver.cuMemFreeHost(pinned));
  }

  detail::cuda::DevicePointer device = 0;
  void* pinned = nullptr;

 private:
  RawCuda const& raw_;
};

}  // namespace unimem::bench
