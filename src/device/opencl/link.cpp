#include "device/opencl/link.hpp"

#include "device/link_rows.hpp"
#include "device/opencl/handle.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <exception>
#include <optional>
#include <vector>

namespace unimem::detail::opencl {
namespace {

constexpr std::size_t small = 256;
constexpr std::size_t large = std::size_t{4} << 20;

/// A rectangle of short rows.
constexpr std::size_t rows = 256, row = 64;

/// The median of a few blocking calls after a first one, which pays for what happens once; empty if one is refused.
template <class Write>
std::optional<double> seconds_of(Write const& write) {
  std::array<double, 5> seconds{};
  for (std::size_t round = 0; round <= seconds.size(); ++round) {
    auto const begin = std::chrono::steady_clock::now();
    if (write() != CL_SUCCESS) return std::nullopt;
    std::chrono::duration<double> const took = std::chrono::steady_clock::now() - begin;
    if (round > 0) seconds[round - 1] = took.count();
  }
  std::ranges::sort(seconds);
  return seconds[seconds.size() / 2];
}

}  // namespace

LinkCost measure_link(Api const& api, cl_context context, cl_device_id device) noexcept {
  try {
    cl_int code = CL_SUCCESS;
    QueueHandle const queue{api, api.clCreateCommandQueue(context, device, 0, &code)};
    if (code != CL_SUCCESS) return {};
    MemoryHandle const memory{api, api.clCreateBuffer(context, CL_MEM_READ_WRITE, large, nullptr, &code)};
    if (code != CL_SUCCESS) return {};
    std::vector<std::byte> const host(large);
    auto const of_bytes = [&](std::size_t bytes) {
      return seconds_of([&] {
        return api.clEnqueueWriteBuffer(queue.get(), memory.get(), CL_TRUE, 0, bytes, host.data(), 0, nullptr, nullptr);
      });
    };
    auto const start = of_bytes(small), whole = of_bytes(large);
    // A noisy moment may turn the two round; no copy starts for nothing.
    if (!start || !whole || *whole <= *start) return {};
    LinkCost cost{std::max(*start, 1e-7), static_cast<double>(large - small) / (*whole - *start)};
    auto const of_rows = seconds_of([&] {
      constexpr std::array<std::size_t, 3> origin{}, shape{row, rows, 1};
      return api.clEnqueueWriteBufferRect(queue.get(), memory.get(), CL_TRUE, origin.data(), origin.data(),
                                          shape.data(), large / rows, 0, large / rows, 0, host.data(), 0, nullptr,
                                          nullptr);
    });
    if (of_rows) cost.row_seconds = row_cost(cost, *of_rows, rows, row);
    return cost;
  } catch (std::exception const&) {
    return {};  // no memory to measure with
  }
}

}  // namespace unimem::detail::opencl
