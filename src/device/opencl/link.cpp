#include "device/opencl/link.hpp"

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

/// The median of a few blocking writes after a first one, which pays for what happens once; empty if one is refused.
std::optional<double> seconds_of_a_write(Api const& api, cl_command_queue queue, cl_mem to,
                                         std::vector<std::byte> const& from, std::size_t bytes) {
  std::array<double, 5> seconds{};
  for (std::size_t round = 0; round <= seconds.size(); ++round) {
    auto const begin = std::chrono::steady_clock::now();
    if (api.clEnqueueWriteBuffer(queue, to, CL_TRUE, 0, bytes, from.data(), 0, nullptr, nullptr) != CL_SUCCESS) {
      return std::nullopt;
    }
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
    auto const start = seconds_of_a_write(api, queue.get(), memory.get(), host, small);
    auto const whole = seconds_of_a_write(api, queue.get(), memory.get(), host, large);
    // A noisy moment may turn the two round; no copy starts for nothing.
    if (!start || !whole || *whole <= *start) return {};
    return {std::max(*start, 1e-7), static_cast<double>(large - small) / (*whole - *start)};
  } catch (std::exception const&) {
    return {};  // no memory to measure with
  }
}

}  // namespace unimem::detail::opencl
