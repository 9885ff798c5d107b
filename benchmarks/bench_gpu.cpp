// The CUDA backend against the driver's own calls: medians of alternating pairs in one run, each timed to the end of
// its work on the GPU.
//
//     bench_gpu [--quick] [--device cuda:N[,OPTION…]] [--python PROGRAM] [--json FILE]
//
// Without --device it is cuda:0, where there is one. --quick moves little and judges nothing: it shows that the program
// runs, also on the stand-in driver of the tests, whose figures mean nothing. --python names an interpreter whose
// allocators (RMM, CuPy, PyTorch) are timed beside ours.

#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/error.hpp>
#include <unimem/core/size.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/kernel/launch.hpp>
#include <unimem/manager/memory_manager.hpp>

#include "device/cuda/cuda_device.hpp"
#include "device/cuda/kernel_compiler.hpp"
#include "gpu_report.hpp"
#include "raw_cuda.hpp"

#include <array>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>

namespace {

using namespace unimem;
using bench::RawCuda;
using bench::RawMemory;
using bench::Report;
using detail::cuda::DevicePointer;

constexpr std::size_t mebi = std::size_t{1} << 20, gibi = std::size_t{1} << 30;

/// How much is moved, and how often.
struct Extent {
  std::vector<std::size_t> copies{16 * mebi, 64 * mebi, 256 * mebi};
  std::size_t large = gibi;
  std::size_t growth = 64 * gibi, step = gibi;
  std::size_t calls = 500;
  int rounds = 11;
};

double seconds_of(std::function<void()> const& work) {
  auto const begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::string rate(std::size_t bytes, std::vector<double> const& seconds) {
  return fmt::format("raw {:.1f} GB/s", static_cast<double>(bytes) / bench::spread(seconds).median * 1e-9);
}

/// Pairs of the same copy, in turn: `raw` and `ours` each take seconds.
void compare(Report& report, std::string const& what, std::size_t bytes, int rounds, double target,
             std::function<double()> const& raw, std::function<double()> const& ours) {
  std::vector<double> ratios, raw_seconds;
  static_cast<void>(raw());  // the first of each makes what the others use
  static_cast<void>(ours());
  for (int round = 0; round < rounds; ++round) {
    raw_seconds.push_back(raw());
    ratios.push_back(raw_seconds.back() / ours());
  }
  report.at_least(what, ratios, target, rate(bytes, raw_seconds));
}

void bench_copies(Report& report, RawCuda const& raw, Device& device, Extent const& extent, bool pinned,
                  std::string const& note = {}) {
  for (auto const bytes : extent.copies) {
    RawMemory const there{raw, bytes};
    std::vector<std::byte> pageable(pinned ? 0 : bytes, std::byte{3});
    auto* const host = pinned ? there.pinned : pageable.data();
    std::memset(host, 1, bytes);
    BufferOptions options{.device = &device};
    options.pinned = pinned;
    UnifiedBuffer<std::byte> buffer(bytes, options);
    buffer.fill(std::byte{2});
    buffer.synchronize();
    auto const kind = fmt::format("{}{} {}", pinned ? "pinned" : "pageable", note, format_size(bytes));
    if (pinned && !buffer.is_pinned()) {
      report.skipped(kind, "the driver refused to pin the buffer");
      continue;
    }
    auto const target = pinned ? 0.97 : 2.0;
    compare(
        report, kind + " up: ours / raw cuMemcpyHtoDAsync", bytes, extent.rounds, target,
        [&] {
          return raw.seconds([&] {
            raw.check(raw.driver.cuMemcpyHtoDAsync(there.device, host, bytes, raw.stream), "cuMemcpyHtoDAsync");
          });
        },
        [&] {
          buffer.mark_host_dirty();
          return seconds_of([&] { buffer.sync_to_device(); });
        });
    compare(
        report, kind + " down: ours / raw cuMemcpyDtoHAsync", bytes, extent.rounds, target,
        [&] {
          return raw.seconds([&] {
            raw.check(raw.driver.cuMemcpyDtoHAsync(host, there.device, bytes, raw.stream), "cuMemcpyDtoHAsync");
          });
        },
        [&] {
          buffer.mark_device_dirty();
          return seconds_of([&] { buffer.sync_to_host(); });
        });
  }
}

/// The library's own copies, from and to odd addresses and even ones.
void bench_unaligned(Report& report, RawCuda const& raw, Device& device, Extent const& extent) {
  auto const bytes = extent.copies.back();
  RawMemory const host{raw, bytes + 64};
  auto* const base = static_cast<std::byte*>(host.pinned);
  auto& queue = device.default_queue();
  auto const memory = device.allocate(bytes + 64, Location::device);
  compare(
      report, fmt::format("unaligned / aligned, pinned {} up", format_size(bytes)), bytes, extent.rounds, 0.95,
      [&] { return seconds_of([&] { queue.upload(memory.window(0, bytes), base, bytes).wait(); }); },
      [&] { return seconds_of([&] { queue.upload(memory.window(3, bytes), base + 1, bytes).wait(); }); });
  compare(
      report, fmt::format("unaligned / aligned, pinned {} down", format_size(bytes)), bytes, extent.rounds, 0.95,
      [&] { return seconds_of([&] { queue.download(base, memory.window(0, bytes), bytes).wait(); }); },
      [&] { return seconds_of([&] { queue.download(base + 1, memory.window(3, bytes), bytes).wait(); }); });
  device.release(memory, Location::device);
}

void bench_scattered(Report& report, RawCuda const& raw, Device& device, Extent const& extent, bool pinned) {
  constexpr std::size_t change = 4096, stride = 65536;
  auto const count = 2 * extent.calls;
  RawMemory const there{raw, count * stride};
  std::vector<std::byte> pageable(pinned ? 0 : count * stride, std::byte{3});
  auto* const host = pinned ? static_cast<std::byte*>(there.pinned) : pageable.data();
  BufferOptions options{.device = &device};
  options.pinned = pinned;
  UnifiedBuffer<std::byte> buffer(count * stride, options);
  buffer.fill(std::byte{2});
  buffer.synchronize();
  compare(
      report,
      fmt::format("{} scattered changes of 4 KiB, {} / as many raw copies", count, pinned ? "pinned" : "pageable"),
      count * change, extent.rounds, 10,
      [&] {
        return raw.seconds([&] {
          for (std::size_t i = 0; i < count; ++i) {
            raw.check(raw.driver.cuMemcpyHtoDAsync(there.device + i * stride, host + i * stride, change, raw.stream),
                      "cuMemcpyHtoDAsync");
          }
        });
      },
      [&] {
        for (std::size_t i = 0; i < count; ++i) std::memset(buffer.host(i * stride, change).data(), 5, change);
        return seconds_of([&] { buffer.sync_to_device(); });
      });
}

/// Nanoseconds that each allocator of `python` takes, as benchmarks/allocators.py prints them: "name nanoseconds".
void state_others(Report& report, std::string const& python, std::size_t index, double ours) {
  auto const command = fmt::format("'{}' '{}' {}", python, UNIMEM_ALLOCATORS_SCRIPT, index);
  std::unique_ptr<FILE, int (*)(FILE*)> const pipe{popen(command.c_str(), "r"), &pclose};
  std::array<char, 512> line{};
  while (pipe && std::fgets(line.data(), line.size(), pipe.get()) != nullptr) {
    std::string const text(line.data(), std::strcspn(line.data(), "\n"));
    auto const blank = text.rfind(' ');
    auto const name = text.substr(0, blank), value = blank == std::string::npos ? "" : text.substr(blank + 1);
    auto const what = "acquire + release, beside " + name;
    if (value.find_first_not_of("0123456789.") == std::string::npos && !value.empty()) {
      report.fact(what, fmt::format("{:.0f} ns, ours {:.0f} ns", std::stod(value), ours));
    } else {
      report.skipped(what, value);
    }
  }
}

void bench_allocation(Report& report, RawCuda const& raw, Device& device, Extent const& extent,
                      std::string const& python) {
  MemoryManager manager;
  auto& queue = device.default_queue();
  std::vector<double> ratios, ours_ns;
  auto const bytes = mebi;
  // One stays, or the driver's pool would give all it has back whenever the stream is waited for, and never be warm.
  DevicePointer kept = 0;
  static_cast<void>(
      raw.seconds([&] { raw.check(raw.driver.cuMemAllocAsync(&kept, bytes, raw.stream), "cuMemAllocAsync"); }));
  for (int round = 0; round <= extent.rounds; ++round) {
    auto const theirs = raw.seconds([&] {
      for (std::size_t i = 0; i < extent.calls; ++i) {
        DevicePointer memory = 0;
        raw.check(raw.driver.cuMemAllocAsync(&memory, bytes, raw.stream), "cuMemAllocAsync");
        raw.check(raw.driver.cuMemFreeAsync(memory, raw.stream), "cuMemFreeAsync");
      }
    });
    auto const ours = seconds_of([&] {
      for (std::size_t i = 0; i < extent.calls; ++i) {
        static_cast<void>(manager.acquire(device, Location::device, bytes, {.queue = &queue}));
      }
    });
    if (round == 0) continue;  // what comes first is not warm
    ratios.push_back(theirs / ours);
    ours_ns.push_back(ours / static_cast<double>(extent.calls) * 1e9);
  }
  static_cast<void>(raw.seconds([&] { raw.check(raw.driver.cuMemFreeAsync(kept, raw.stream), "cuMemFreeAsync"); }));
  auto const ours = bench::spread(ours_ns).median;
  report.at_least("warm acquire + release of 1 MiB / cuMemAllocAsync + cuMemFreeAsync", ratios, 20,
                  fmt::format("ours {:.0f} ns", ours));
  if (python.empty()) {
    report.skipped("acquire + release beside RMM, CuPy and PyTorch", "no --python");
  } else {
    state_others(report, python, static_cast<std::size_t>(raw.hardware.device), ours);
  }
}

void bench_launches(Report& report, RawCuda const& raw, Device& device, Extent const& extent) {
  constexpr auto source = R"(
    extern "C" __global__ void nothing(float const* a, float const* b, float* c) {})";
  // The same machine code, once as the library loads it and once by hand.
  detail::cuda::KernelCompiler const compiler{raw.hardware.driver_version, detail::cuda::KernelCache::of_user()};
  auto const compiled = compiler.compile({"nothing", source, {}}, raw.hardware.architecture, device.id());
  detail::cuda::Module module = nullptr;
  detail::cuda::Function function = nullptr;
  static_cast<void>(raw.seconds([&] {
    raw.check(raw.driver.cuModuleLoadData(&module, compiled.image.data()), "cuModuleLoadData");
    raw.check(raw.driver.cuModuleGetFunction(&function, module, compiled.entry.c_str()), "cuModuleGetFunction");
  }));
  RawMemory const memory{raw, 4096};
  std::array pointers{memory.device, memory.device, memory.device};
  std::array<void*, 3> parameters{&pointers[0], &pointers[1], &pointers[2]};

  BufferOptions const options{.device = &device};
  UnifiedBuffer<float> a(1000, options), b(1000, options), c(1000, options);
  for (auto* const buffer : {&a, &b, &c}) buffer->fill(1);
  auto const kernel = Kernel("nothing").source(source);
  auto& queue = device.default_queue();
  auto const submit = [&] {
    for (std::size_t i = 0; i < extent.calls; ++i) launch(queue, kernel, Range{1000}, read(a), read(b), write(c));
  };
  submit();
  queue.synchronize();
  auto const before = device.transfers();
  std::vector<double> added;
  std::vector<double> raw_ns;
  auto const per_call = 1e9 / static_cast<double>(extent.calls);
  for (int round = 0; round < extent.rounds; ++round) {
    // To submit them is what is compared: fewer than a stream holds before it makes its caller wait.
    double theirs = 0;
    static_cast<void>(raw.seconds([&] {
      theirs = seconds_of([&] {
        for (std::size_t i = 0; i < extent.calls; ++i) {
          raw.check(raw.driver.cuLaunchKernel(function, 4, 1, 1, 256, 1, 1, 0, raw.stream, parameters.data(), nullptr),
                    "cuLaunchKernel");
        }
      });
    }));
    auto const ours = seconds_of(submit);
    queue.synchronize();
    added.push_back((ours - theirs) * per_call / 1e3);
    raw_ns.push_back(theirs * per_call);
  }
  auto const after = device.transfers();
  auto const moved = after.host_to_device_copies + after.device_to_host_copies + after.device_to_device_copies -
                     before.host_to_device_copies - before.device_to_host_copies - before.device_to_device_copies;
  report.at_most(fmt::format("transfers of {} chained launches on three buffers",
                             extent.calls * static_cast<std::size_t>(extent.rounds)),
                 {static_cast<double>(moved)}, "", 0);
  report.at_most("a chained launch - the raw cuLaunchKernel", added, " us", 1,
                 fmt::format("raw {:.0f} ns", bench::spread(raw_ns).median));
  static_cast<void>(raw.seconds([&] { static_cast<void>(raw.driver.cuModuleUnload(module)); }));
}

void bench_on_device(Report& report, RawCuda const& raw, Device& device, Extent const& extent) {
  auto const bytes = extent.large;
  auto const from = device.allocate(bytes, Location::device), to = device.allocate(bytes, Location::device);
  auto& queue = device.default_queue();
  queue.fill(from, std::array{std::byte{1}}).wait();
  constexpr int copies = 8;  // in a row, so that to begin and to end them counts little
  compare(
      report, fmt::format("device to device, {}: ours / raw cuMemcpyDtoDAsync", format_size(bytes)), copies * bytes,
      extent.rounds, 0.95,
      [&] {
        return raw.seconds([&] {
          for (int i = 0; i < copies; ++i) {
            raw.check(raw.driver.cuMemcpyDtoDAsync(to.object, from.object, bytes, raw.stream), "cuMemcpyDtoDAsync");
          }
        });
      },
      [&] {
        return seconds_of([&] {
          for (int i = 0; i < copies; ++i) queue.copy(to, from, bytes);
          queue.synchronize();
        });
      });
  device.release(from, Location::device);
  device.release(to, Location::device);
}

/// The driver's table with the calls for pages counted.
class CountedPages {
 public:
  explicit CountedPages(RawCuda const& raw) : driver_(raw.driver) {
    real = &raw.driver;
    driver_.cuMemAddressReserve = [](auto... arguments) { return ++calls, real->cuMemAddressReserve(arguments...); };
    driver_.cuMemCreate = [](auto... arguments) { return ++calls, real->cuMemCreate(arguments...); };
    driver_.cuMemMap = [](auto... arguments) { return ++calls, real->cuMemMap(arguments...); };
    driver_.cuMemSetAccess = [](auto... arguments) { return ++calls, real->cuMemSetAccess(arguments...); };
    driver_.cuMemUnmap = [](auto... arguments) { return ++calls, real->cuMemUnmap(arguments...); };
    driver_.cuMemRelease = [](auto... arguments) { return ++calls, real->cuMemRelease(arguments...); };
    driver_.cuMemAddressFree = [](auto... arguments) { return ++calls, real->cuMemAddressFree(arguments...); };
  }
  [[nodiscard]] detail::cuda::Driver const& driver() const { return driver_; }

  static inline detail::cuda::Driver const* real = nullptr;
  static inline std::size_t calls = 0;

 private:
  detail::cuda::Driver driver_;
};

void bench_growth(Report& report, RawCuda const& raw, Extent const& extent) {
  auto const what =
      fmt::format("growing to {} by mapping, {} at a time", format_size(extent.growth), format_size(extent.step));
  // A device of its own over the counting table; both live as long as the process, like all devices.
  static auto const& counted = *new CountedPages(raw);
  auto hardware = raw.hardware;
  hardware.driver = &counted.driver();
  auto& device = *new detail::cuda::CudaDevice("cuda:counted", hardware, {});
  auto* const pages = device.pages();
  if (pages == nullptr) return report.skipped(what, "the GPU maps no pages");
  auto const free = device.memory_info().free_bytes;
  if (free < extent.growth + extent.step) {
    return report.skipped(what, fmt::format("{} are free", format_size(free)));
  }
  auto const calls_before = CountedPages::calls;
  AddressRange range{};
  std::size_t mapped = 0;
  auto const grown = seconds_of([&] {
    range = pages->reserve(extent.growth);
    for (; mapped < extent.growth; mapped += extent.step) {
      pages->map({range.base + mapped, extent.step}, pages->create_pages(extent.step));
    }
  });
  auto const calls_grown = CountedPages::calls;
  auto const shrunk = seconds_of([&] {
    pages->free_pages(pages->unmap({range.base, extent.growth}));
    pages->give_up(range);
  });
  report.fact(what, fmt::format("{} driver calls in {:.3g} s, given back by {} in {:.3g} s; pages of {}",
                                calls_grown - calls_before, grown, CountedPages::calls - calls_grown, shrunk,
                                format_size(pages->page_bytes())));
}

/// Runs one part; what stops it is a line of the report, and the others go on.
bool attempt(Report& report, char const* what, std::function<void()> const& part) {
  try {
    default_manager().cleanup();  // what the buffers of another part left in its pools is room for this one
    part();
    return true;
  } catch (OutOfMemory const& refusal) {
    report.skipped(what, refusal.what());
    return true;
  } catch (std::exception const& error) {
    report.fact(what, fmt::format("FAILED: {}", error.what()));
    return false;
  }
}

}  // namespace

int main(int argument_count, char** arguments) {
  try {
    std::string id, python, json;
    Extent extent;
    bool quick = false;
    for (int i = 1; i < argument_count; ++i) {
      std::string_view const argument = arguments[i];
      if (argument == "--quick") {
        quick = true;
        extent = {{mebi, 2 * mebi}, 8 * mebi, 64 * mebi, 8 * mebi, 20, 3};
      } else if (argument == "--device" && i + 1 < argument_count) {
        id = arguments[++i];
      } else if (argument == "--python" && i + 1 < argument_count) {
        python = arguments[++i];
      } else if (argument == "--json" && i + 1 < argument_count) {
        json = arguments[++i];
      } else {
        fmt::print(stderr, "bench_gpu [--quick] [--device cuda:N[,OPTION…]] [--python PROGRAM] [--json FILE]\n");
        return 2;
      }
    }
    if (!id.empty() && !id.starts_with("cuda:")) {
      fmt::print("not on {}: it is the CUDA driver's own calls that are measured against\n", id);
      return 0;
    }
    if (id.empty()) {
      if (auto const& found = detail::cuda::installation(); found.hardware.empty()) {
        fmt::print("nothing to measure: {}\n", found.reason);
        return 0;
      }
      id = "cuda:0";
    }
    auto& gpu = device(id);
    RawCuda const raw{gpu};
    bool const standin = gpu.info().name.find("Stand-in") != std::string::npos;
    fmt::print("{} ({}, {}){}\n", id, gpu.info().name, gpu.info().driver,
               standin ? ": the stand-in driver of the tests, on which no figure means anything"
               : quick ? ": too little is moved for a figure to mean anything"
                       : "");
    Report report(!standin && !quick);
    bool good = true;
    auto const run = [&](char const* what, std::function<void()> const& part) {
      good = attempt(report, what, part) && good;
    };
    run("pinned copies", [&] { bench_copies(report, raw, gpu, extent, true); });
    run("pageable copies", [&] { bench_copies(report, raw, gpu, extent, false); });
    if (id.find(',') == std::string::npos) {
      run("staged copies",
          [&] { bench_copies(report, raw, device(id + ",staging=1MiB"), extent, false, " with staging=1MiB"); });
    }
    run("unaligned copies", [&] { bench_unaligned(report, raw, gpu, extent); });
    run("scattered pinned changes", [&] { bench_scattered(report, raw, gpu, extent, true); });
    run("scattered pageable changes", [&] { bench_scattered(report, raw, gpu, extent, false); });
    run("allocation", [&] { bench_allocation(report, raw, gpu, extent, python); });
    run("launches", [&] { bench_launches(report, raw, gpu, extent); });
    run("copies on the device", [&] { bench_on_device(report, raw, gpu, extent); });
    run("growth", [&] { bench_growth(report, raw, extent); });
    if (!json.empty()) report.write(json);
    return good ? 0 : 1;
  } catch (std::exception const& error) {
    fmt::print(stderr, "bench_gpu: {}\n", error.what());
    return 1;
  }
}
