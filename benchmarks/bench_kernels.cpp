// Kernels in the portable form beside the same written for OpenCL by hand, on the same device and driver; and the host
// form of one with groups beside loops written by hand, on one thread.
//
//     bench_kernels [--quick] [--device ID]     on ID (default: opencl:0, and the host's part alone where there is
//     none)

#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/queue.hpp>
#include <unimem/kernel/graph.hpp>
#include <unimem/kernel/launch.hpp>

#include "device/opencl/handle.hpp"
#include "device/opencl/opencl_device.hpp"
#include "kernel/group_kernels.hpp"
#include "spread.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace {

using unimem::Device;
using unimem::HostArgument;
using unimem::Kernel;
using unimem::launch;
using unimem::Range;
using unimem::read;
using unimem::readwrite;
using unimem::UnifiedBuffer;
using unimem::write;
using unimem::detail::opencl::Api;
using unimem::detail::opencl::OpenClDevice;
using Clock = std::chrono::steady_clock;
namespace opencl = unimem::detail::opencl;

double seconds(std::function<void()> const& work) {
  auto const began = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - began).count();
}

void require(cl_int code, char const* what) {
  if (code != CL_SUCCESS) throw std::runtime_error(fmt::format("{}: {}", what, code));
}

/// One kernel of plain OpenCL C with its own queue, called as a program without this library would.
class Raw {
 public:
  Raw(OpenClDevice const& device, char const* name, std::string const& source) : api_(device.api()) {
    cl_int code = 0;
    auto* const hardware = device.native_id();
    queue_ = {api_, api_.clCreateCommandQueue(device.context(), hardware, 0, &code)};
    require(code, "clCreateCommandQueue");
    auto const* text = source.c_str();
    program_ = {api_, api_.clCreateProgramWithSource(device.context(), 1, &text, nullptr, &code)};
    require(code, "clCreateProgramWithSource");
    require(api_.clBuildProgram(program_.get(), 1, &hardware, "", nullptr, nullptr), "clBuildProgram");
    kernel_ = {api_, api_.clCreateKernel(program_.get(), name, &code)};
    require(code, "clCreateKernel");
  }

  /// Memory of so many bytes, all 1.
  cl_mem memory(OpenClDevice const& device, std::size_t bytes) {
    cl_int code = 0;
    memories_.push_back({api_, api_.clCreateBuffer(device.context(), CL_MEM_READ_WRITE, bytes, nullptr, &code)});
    require(code, "clCreateBuffer");
    std::vector<std::byte> const ones(bytes, std::byte{1});
    auto* const made = memories_.back().get();
    require(api_.clEnqueueWriteBuffer(queue_.get(), made, CL_TRUE, 0, bytes, ones.data(), 0, nullptr, nullptr),
            "clEnqueueWriteBuffer");
    return made;
  }
  template <class T>
  void argument(cl_uint index, T value) {
    require(api_.clSetKernelArg(kernel_.get(), index, sizeof value, &value), "clSetKernelArg");
  }
  /// Groups of 0: the driver's choice.
  void run(std::array<std::size_t, 2> items, std::array<std::size_t, 2> group, int times) const {
    enqueue(items, group, times - 1, nullptr);
    cl_event done = nullptr;
    enqueue(items, group, 1, &done);
    wait_for({&done, 1});
  }

  /// The same where what has failed is to be known of each launch, which no later one's event tells.
  void run_with_events(std::array<std::size_t, 2> items, std::array<std::size_t, 2> group, std::size_t times) const {
    std::vector<cl_event> events(times);
    for (auto& event : events) enqueue(items, group, 1, &event);
    wait_for(events);
  }

 private:
  void enqueue(std::array<std::size_t, 2> items, std::array<std::size_t, 2> group, int times, cl_event* event) const {
    for (int i = 0; i < times; ++i) {
      require(api_.clEnqueueNDRangeKernel(queue_.get(), kernel_.get(), items[1] > 1 ? 2 : 1, nullptr, items.data(),
                                          group[0] != 0 ? group.data() : nullptr, 0, nullptr, event),
              "clEnqueueNDRangeKernel");
    }
  }
  void wait_for(std::span<const cl_event> events) const {
    require(api_.clWaitForEvents(static_cast<cl_uint>(events.size()), events.data()), "clWaitForEvents");
    for (auto const event : events) api_.clReleaseEvent(event);
  }

  Api const& api_;
  opencl::QueueHandle queue_;
  opencl::ProgramHandle program_;
  opencl::KernelHandle kernel_;
  std::vector<opencl::MemoryHandle> memories_;
};

/// Rounds by turns, and what ours takes of theirs.
void compare(std::string_view what, double wanted, int rounds, std::function<void()> const& ours,
             std::function<void()> const& theirs) {
  ours();
  theirs();
  std::vector<double> mine, other, ratios;
  for (int i = 0; i < rounds; ++i) {
    mine.push_back(seconds(ours));
    other.push_back(seconds(theirs));
    ratios.push_back(other.back() / mine.back());
  }
  auto const rate = unimem::bench::spread(ratios);
  fmt::print("  {:<46} {:8.3f} ms  {:8.3f} ms  {:.2f} ({:.2f} to {:.2f}; wanted: at least {})\n", what,
             1e3 * unimem::bench::spread(mine).median, 1e3 * unimem::bench::spread(other).median, rate.median, rate.low,
             rate.high, wanted);
}

template <class T>
UnifiedBuffer<T> ones(Device& device, std::size_t count) {
  unimem::BufferOptions options;
  options.device = &device;
  UnifiedBuffer<T> buffer(count, options);
  std::memset(buffer.host_overwrite().data(), 1, count * sizeof(T));
  buffer.prefetch(device);
  return buffer;
}

constexpr auto raw_map = R"(
#pragma OPENCL FP_CONTRACT OFF
__kernel void map(__global const float* x, __global float* y) { size_t i = get_global_id(0); y[i] = 2 * x[i] + 1; })";

constexpr auto portable_map = R"(
UNIMEM_KERNEL map(UNIMEM_CONST_BUFFER(unimem_f32, x), UNIMEM_BUFFER(unimem_f32, y)) {
  UNIMEM_DATA(unimem_f32, y)[UNIMEM_ITEM_X] = 2 * UNIMEM_DATA(const unimem_f32, x)[UNIMEM_ITEM_X] + 1;
})";

constexpr auto raw_product = R"(
#pragma OPENCL FP_CONTRACT OFF
__kernel void product(__global const float* a, __global const float* b, __global float* c, uint m, uint k) {
  __local float left[16][16], right[16][16];
  size_t x = get_local_id(0), y = get_local_id(1), column = get_global_id(0), row = get_global_id(1);
  float sum = 0;
  for (uint begin = 0; begin < k; begin += 16) {
    left[y][x] = a[row * k + begin + x];
    right[y][x] = b[(begin + y) * m + column];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = 0; i < 16; ++i) sum += left[y][i] * right[i][x];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  c[row * m + column] = sum;
})";

constexpr auto raw_sums = R"(
__kernel void sums(__global const float* x, __global float* sum) {
  __local float part[256];
  size_t i = get_local_id(0);
  part[i] = x[get_global_id(0)];
  barrier(CLK_LOCAL_MEM_FENCE);
  for (size_t half_ = 128; half_ > 0; half_ /= 2) {
    if (i < half_) part[i] += part[i + half_];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (i == 0) sum[get_group_id(0)] = part[0];
})";

constexpr auto portable_sums = R"(
UNIMEM_KERNEL sums(UNIMEM_CONST_BUFFER(unimem_f32, x), UNIMEM_BUFFER(unimem_f32, sum)) {
  UNIMEM_SHARED unimem_f32 part[256];
  unimem_f32 all = unimem_group_sum(UNIMEM_DATA(const unimem_f32, x)[UNIMEM_ITEM_X], part);
  if (UNIMEM_LOCAL_X == 0) UNIMEM_DATA(unimem_f32, sum)[UNIMEM_GROUP_X] = all;
})";

constexpr auto raw_scan = R"(
__kernel void scan(__global const float* x, __global float* sums) {
  __local float part[256];
  size_t i = get_local_id(0);
  part[i] = x[get_global_id(0)];
  barrier(CLK_LOCAL_MEM_FENCE);
  for (size_t step = 1; step < 256; step *= 2) {
    float before = i >= step ? part[i - step] : 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    part[i] += before;
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  sums[get_global_id(0)] = part[i];
})";

constexpr auto portable_scan = R"(
UNIMEM_KERNEL scan(UNIMEM_CONST_BUFFER(unimem_f32, x), UNIMEM_BUFFER(unimem_f32, sums)) {
  UNIMEM_SHARED unimem_f32 part[256];
  UNIMEM_DATA(unimem_f32, sums)[UNIMEM_ITEM_X] =
      unimem_group_inclusive_sum(UNIMEM_DATA(const unimem_f32, x)[UNIMEM_ITEM_X], part);
})";

constexpr auto raw_histogram = R"(
__kernel void histogram(__global const uchar* bytes, __global uint* counts) {
  __local uint own[256];
  for (uint i = get_local_id(0); i < 256; i += get_local_size(0)) own[i] = 0;
  barrier(CLK_LOCAL_MEM_FENCE);
  atomic_add(&own[bytes[get_global_id(0)]], 1);
  barrier(CLK_LOCAL_MEM_FENCE);
  for (uint i = get_local_id(0); i < 256; i += get_local_size(0))
    if (own[i] != 0) atomic_add(&counts[i], own[i]);
})";

void on_device(OpenClDevice& device, int rounds) {
  fmt::print("\n{} ({}): ours, raw OpenCL, their time by ours\n", device.id(), device.info().name);
  auto& queue = device.default_queue();
  constexpr int times = 10;
  auto const repeat = [&](auto const& one) {
    for (int i = 0; i + 1 < times; ++i) one();
    one().wait();
  };
  {
    constexpr std::size_t count = 4 << 20;
    auto x = ones<float>(device, count), y = ones<float>(device, count);
    auto const kernel = Kernel("map").source(portable_map);
    Raw raw(device, "map", raw_map);
    raw.argument(0, raw.memory(device, 4 * count));
    raw.argument(1, raw.memory(device, 4 * count));
    compare(
        "map of 4 Mi floats, 10 times", 0.95, rounds,
        [&] { repeat([&] { return launch(queue, kernel, Range{count}, read(x), write(y)); }); },
        [&] { raw.run({count, 1}, {0, 0}, times); });
  }
  {
    constexpr std::size_t n = 512;
    auto a = ones<float>(device, n * n), b = ones<float>(device, n * n), c = ones<float>(device, n * n);
    auto const kernel = unimem::testing::matrix_product(16);
    Raw raw(device, "product", raw_product);
    for (cl_uint i = 0; i < 3; ++i) raw.argument(i, raw.memory(device, 4 * n * n));
    raw.argument(3, cl_uint{n});
    raw.argument(4, cl_uint{n});
    constexpr std::uint32_t width = n;
    compare(
        "tiled product of 512 × 512", 0.95, rounds,
        [&] { launch(queue, kernel, Range{n, n}, read(a), read(b), write(c), width, width).wait(); },
        [&] { raw.run({n, n}, {16, 16}, 1); });
  }
  {
    constexpr std::size_t count = 1 << 20;
    auto x = ones<float>(device, count), sum = ones<float>(device, count / 256);
    auto const kernel = Kernel("sums").group({256}).source(portable_sums);
    Raw raw(device, "sums", raw_sums);
    raw.argument(0, raw.memory(device, 4 * count));
    raw.argument(1, raw.memory(device, 4 * count / 256));
    compare(
        "sums of 256 of 1 Mi floats, 10 times", 0.95, rounds,
        [&] { repeat([&] { return launch(queue, kernel, Range{count}, read(x), write(sum)); }); },
        [&] { raw.run({count, 1}, {256, 0}, times); });
  }
  {
    constexpr std::size_t count = 1 << 20;
    auto x = ones<float>(device, count), sums = ones<float>(device, count);
    auto const kernel = Kernel("scan").group({256}).source(portable_scan);
    Raw raw(device, "scan", raw_scan);
    raw.argument(0, raw.memory(device, 4 * count));
    raw.argument(1, raw.memory(device, 4 * count));
    compare(
        "prefix sums in 256 of 1 Mi floats, 10 times", 0.5, rounds,
        [&] { repeat([&] { return launch(queue, kernel, Range{count}, read(x), write(sums)); }); },
        [&] { raw.run({count, 1}, {256, 0}, times); });
  }
  {
    constexpr std::size_t count = 1024, launches = 100;
    auto x = ones<float>(device, count), y = ones<float>(device, count);
    auto const kernel = Kernel("map").source(portable_map);
    auto const one = [&] { return launch(queue, kernel, Range{count}, read(x), write(y)); };
    auto const graph = unimem::capture(queue, [&] {
      for (std::size_t i = 0; i < launches; ++i) one();
    });
    Raw raw(device, "map", raw_map);
    raw.argument(0, raw.memory(device, 4 * count));
    raw.argument(1, raw.memory(device, 4 * count));
    auto const by_hand = [&] { raw.run({count, 1}, {256, 0}, launches); };
    compare("graph of 100 launches of 1,024 items", 0.83, rounds, [&] { graph.launch(queue).wait(); }, by_hand);
    compare(
        "the same beside launches with an event each", 0, rounds, [&] { graph.launch(queue).wait(); },
        [&] { raw.run_with_events({count, 1}, {256, 0}, launches); });
    auto const by_one = [&] {
      for (std::size_t i = 0; i + 1 < launches; ++i) one();
      one().wait();
    };
    compare("the same without a graph", 0, rounds, by_one, by_hand);
  }
  {
    constexpr std::size_t count = 4 << 20;
    auto bytes = ones<std::uint8_t>(device, count);
    auto counts = ones<std::uint32_t>(device, 256);
    auto const kernel = unimem::testing::shared_histogram();
    Raw raw(device, "histogram", raw_histogram);
    raw.argument(0, raw.memory(device, count));
    raw.argument(1, raw.memory(device, 1024));
    compare(
        "histogram of 4 MiB, shared counters, 10 times", 0.95, rounds,
        [&] {
          repeat([&] { return launch(queue, kernel, Range{count}.group({256}), read(bytes), readwrite(counts)); });
        },
        [&] { raw.run({count, 1}, {256, 0}, times); });
  }
}

/// The loops of the host form's tiled product, without it.
void product_by_hand(float const* a, float const* b, float* c, std::size_t n) {
  constexpr std::size_t tile = 16;
  for (std::size_t top = 0; top < n; top += tile) {
    for (std::size_t left = 0; left < n; left += tile) {
      std::array<std::array<float, tile>, tile> rows, columns, sum{};
      for (std::size_t begin = 0; begin < n; begin += tile) {
        for (std::size_t y = 0; y < tile; ++y) {
          for (std::size_t x = 0; x < tile; ++x) {
            rows[y][x] = a[(top + y) * n + begin + x];
            columns[y][x] = b[(begin + y) * n + left + x];
          }
        }
        for (std::size_t y = 0; y < tile; ++y) {
          for (std::size_t x = 0; x < tile; ++x) {
            for (std::size_t i = 0; i < tile; ++i) sum[y][x] += rows[y][i] * columns[i][x];
          }
        }
      }
      for (std::size_t y = 0; y < tile; ++y) {
        for (std::size_t x = 0; x < tile; ++x) c[(top + y) * n + left + x] = sum[y][x];
      }
    }
  }
}

void on_host(int rounds) {
  constexpr std::size_t n = 512;
  std::vector<float> a(n * n, 1.5F), b(n * n, 0.5F), c(n * n), d(n * n);
  auto const kernel = unimem::testing::matrix_product(16);
  std::uint32_t width = n;
  std::array<HostArgument, 5> const arguments{{{a.data(), 4 * n * n},
                                               {b.data(), 4 * n * n},
                                               {c.data(), 4 * n * n},
                                               {&width, sizeof width},
                                               {&width, sizeof width}}};
  auto const range = Range{n, n}.group({16, 16});
  fmt::print("\non the host, one thread: ours, by hand, their time by ours\n");
  compare(
      "tiled product of 512 × 512, host form", 0.5, rounds,
      [&] { kernel.forms().host(range, 0, range.groups().items(), arguments); },
      [&] { product_by_hand(a.data(), b.data(), d.data(), n); });
  if (c != d) throw std::runtime_error("the products differ");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    int rounds = 31;
    std::string id = "opencl:0";
    for (int i = 1; i < argc; ++i) {
      std::string_view const word = argv[i];
      if (word == "--quick") {
        rounds = 5;
      } else if (word == "--device" && i + 1 < argc) {
        id = argv[++i];
      } else {
        throw std::invalid_argument(fmt::format("unknown argument '{}'", word));
      }
    }
    on_host(rounds);
    for (Device& device : unimem::devices()) {
      if (device.id() != id) continue;
      if (auto* const ours = dynamic_cast<OpenClDevice*>(&device)) on_device(*ours, rounds);
    }
    return 0;
  } catch (std::exception const& failure) {
    fmt::print(stderr, "bench_kernels: {}\n", failure.what());
    return 1;
  }
}
