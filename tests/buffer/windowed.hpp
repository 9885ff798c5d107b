#pragma once

#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/sim.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace unimem::testing {

/// What is wrong with a buffer that its device has windows of, if anything is.
[[nodiscard]] inline std::optional<std::string> broken_by_windows() try {
  constexpr std::size_t words = std::size_t{64} << 10, slice = words / 8;
  constexpr std::size_t some = words * sizeof(std::uint32_t) / 2, all = 8 * some;
  static auto& device = make_sim({.memory_bytes = std::size_t{16} << 20, .latency = std::chrono::microseconds(200)});
  MemoryManager manager;
  BufferOptions options;
  options.manager = &manager;
  options.device = &device;
  using Body = std::function<void(std::vector<std::uint32_t*> const&)>;
  auto const run = [&](UnifiedBuffer<std::uint32_t>& buffer, std::vector<ByteRange> const& ranges, Intent intent,
                       Body const& body) {
    std::vector<Operand> operands;
    for (auto const range : ranges) operands.push_back({&buffer.core(), range, intent});
    auto& queue = device.default_queue();
    auto const submit = [&](std::span<const DeviceMemory> memory, std::span<const Event> needs) {
      std::vector<KernelArgument> arguments(memory.size());
      for (std::size_t i = 0; i < memory.size(); ++i) arguments[i].memory = memory[i];
      auto const once = [body](Range, std::size_t, std::size_t, std::span<const HostArgument> given) {
        std::vector<std::uint32_t*> data;
        for (auto const& one : given) data.push_back(static_cast<std::uint32_t*>(one.data));
        body(data);
      };
      return queue.run(device.compile({"work", {}, once}), Range{1}, arguments, needs);
    };
    return use_on_device(queue, operands, submit);
  };
  auto const part = [](std::size_t from, std::size_t count) { return ByteRange{4 * from, 4 * (from + count)}; };
  auto const counting = [&] {
    manager.set_limit(device, some);
    UnifiedBuffer<std::uint32_t> buffer(words, options);
    std::vector<std::uint32_t> values(words);
    std::iota(values.begin(), values.end(), 0U);
    buffer.copy_from(values);
    return buffer;
  };
  auto const uploaded = [](auto const& buffer) { return buffer.statistics().host_to_device_bytes; };
  {
    auto buffer = counting();
    run(buffer, {part(0, 4000), part(2000, 4000)}, Intent::read_write, [](auto const& data) {
      data[0][3000] = 1;
      data[1][2000] = 2;
    }).wait();
    if (buffer.host_view()[3000] != 1 || buffer.host_view()[4000] != 2) return "overlapping operands lost a write";
  }
  {
    auto buffer = counting();
    auto leased = buffer.slice(0, 2 * slice);
    auto const lease = leased.device();
    try {
      run(buffer, {part(slice, 2 * slice)}, Intent::read_write, [](auto const&) {}).wait();
      return "a write went past a lease";
    } catch (InvalidArgument const&) {
    }
  }
  {
    auto buffer = counting();
    bool aligned = false;
    run(buffer, {part(3, slice)}, Intent::read, [&](auto const& data) {
      aligned = reinterpret_cast<std::uintptr_t>(data[0]) % device.info().alignment == 3 * sizeof(std::uint32_t);
    }).wait();
    if (!aligned) return "a window is aligned otherwise than the whole buffer";
  }
  {
    UnifiedBuffer<std::uint32_t> fresh(words, options);
    run(fresh, {part(slice, slice)}, Intent::write, [](auto const& data) { std::fill_n(data[0], slice, 5U); }).wait();
    if (fresh.to_vector()[slice] != 5) return "what a window wrote is not there";
    if (fresh.statistics().device_to_host_bytes != 4 * slice) return "more came from a window than was written there";
  }
  {
    auto buffer = counting();
    for (std::size_t i = 0; i < 4; ++i) {
      run(buffer, {part(i * slice, slice)}, Intent::read_write, [](auto const& data) { ++data[0][0]; }).wait();
    }
    auto const before = uploaded(buffer);
    std::vector const ranges{part(0, slice), part(slice, slice), part(2 * slice, slice), part(6 * slice, slice)};
    run(buffer, ranges, Intent::read_write, [](auto const& data) {
      for (auto* const one : data) ++one[0];
    }).wait();
    if (uploaded(buffer) - before != 4 * slice) return "operands lost their windows to each other";
    for (std::size_t i = 0; i < 3; ++i) {
      if (buffer.host_view()[i * slice] != i * slice + 2) return "windows lost a write";
    }
  }
  {
    auto buffer = counting();
    run(buffer, {part(0, slice)}, Intent::read_write, [](auto const& data) { data[0][0] = 8; }).wait();
    run(buffer, {part(slice / 2, slice)}, Intent::read_write, [](auto const& data) { data[0][0] = 9; }).wait();
    if (uploaded(buffer) != 6 * slice) return "what another window has came over the link";
    if (buffer.core().links().size() > 1) return "windows of one device have a link";
    manager.set_limit(device, all);
    // Of work on the whole buffer that fails nothing is left, and what windows had is there.
    auto const failed = run(buffer, {part(0, words)}, Intent::read_write,
                            [](auto const&) { throw std::runtime_error("failed on purpose"); });
    static_cast<void>(failed.wait_for_error());
    try {
      static_cast<void>(buffer.host_view());
    } catch (std::exception const&) {  // of that work
    }
    auto const values = buffer.to_vector();
    if (values[0] != 8 || values[slice / 2] != 9) return "windows were given up for a copy that failed";
  }
  {
    auto buffer = counting();
    run(buffer, {part(0, slice)}, Intent::read_write, [](auto const& data) { data[0][0] = 8; }).wait();
    manager.set_limit(device, all);
    run(buffer, {part(slice, slice)}, Intent::read_write, [](auto const& data) { data[0][0] = 9; }).wait();
    if (buffer.host_view()[0] != 8) return "a window went with the only copy";
  }
  {
    auto buffer = counting();
    manager.set_limit(device, 2 * some - 1);
    run(buffer, {part(0, slice)}, Intent::read_write, [](auto const& data) { data[0][0] = 8; }).wait();
    buffer.core().prefetch(device, nullptr, part(0, slice)).wait();  // the larger one is to go first
    run(buffer, {part(0, 3 * slice)}, Intent::read, [](auto const&) {}).wait();
    std::atomic<bool> submitted{false};  // while work is pending the smaller one does not go
    auto const work = run(buffer, {part(2 * slice, slice)}, Intent::read_write, [&](auto const& data) {
      submitted.wait(false);
      data[0][0] = 9;
    });
    submitted = true;
    submitted.notify_all();
    work.wait();
    if (buffer.core().evict({&device, Location::device}, {}) != 12 * slice) return "the smaller window went first";
    if (buffer.host_view()[0] != 8 || buffer.host_view()[2 * slice] != 9) return "a saved window lost bytes";
  }
  {
    auto buffer = counting();
    auto leased = buffer.slice(0, slice);
    auto const lease = leased.device_view(device);
    manager.set_limit(device, 2 * all);
    buffer.host()[0] = 7;
    buffer.sync_to_device(device);
    if (lease.data()[0] != 7) return "a sync of all of it left a leased window behind";
    buffer.host()[0] = 8;
    run(buffer, {part(0, words)}, Intent::read, [](auto const&) {}).wait();
    buffer.core().fetch(part(0, 1)).wait();  // which finds that all of it is current on the device
    leased.sync_to_device(device);
    if (lease.data()[0] != 8) return "a sync left the leased window that it was for behind";
  }
  return std::nullopt;
} catch (std::exception const& violation) {
  return violation.what();
}

}  // namespace unimem::testing
