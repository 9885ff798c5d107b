#pragma once

#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/device/sim.hpp>

#include "core/sizes.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace unimem::testing {

/// Buffers that are larger than the memory they may have on a device.
class WindowsOfBuffers : public ::testing::Test {
 protected:
  using Buffer = UnifiedBuffer<std::uint32_t>;
  static constexpr std::size_t words = MiB;  // 4 MiB
  static constexpr std::size_t limit = 2 * MiB;

  WindowsOfBuffers() { manager.set_limit(sim, limit); }

  [[nodiscard]] Buffer make(std::string name = "rows") {
    BufferOptions options;
    options.manager = &manager;
    options.device = &sim;
    options.name = std::move(name);
    return Buffer(words, options);
  }
  /// Its values count up.
  [[nodiscard]] Buffer counting() {
    auto buffer = make();
    auto const view = buffer.host();
    std::iota(view.begin(), view.end(), 0U);
    return buffer;
  }
  [[nodiscard]] static ByteRange bytes(std::size_t from, std::size_t count) { return {4 * from, 4 * (from + count)}; }
  /// Adds `by` to those elements, by work on the device.
  void add(Buffer& buffer, std::size_t from, std::size_t count, std::uint32_t by) {
    Operand const operand{&buffer.core(), bytes(from, count), Intent::read_write};
    run({operand}, [=](std::span<const HostArgument> arguments) {
      auto* const values = static_cast<std::uint32_t*>(arguments[0].data);
      for (std::size_t i = 0; i < count; ++i) values[i] += by;
    });
  }
  void run(std::vector<Operand> const& operands, std::function<void(std::span<const HostArgument>)> const& body) {
    run(operands, body, sim);
  }
  static void run(std::vector<Operand> const& operands, std::function<void(std::span<const HostArgument>)> const& body,
                  Device& on) {
    start(operands, body, on).wait();
  }
  static Event start(std::vector<Operand> const& operands,
                     std::function<void(std::span<const HostArgument>)> const& body, Device& on) {
    return start(operands, body, on, on.default_queue());
  }
  static Event start(std::vector<Operand> const& operands,
                     std::function<void(std::span<const HostArgument>)> const& body, Device& on, Queue& queue) {
    return use_on_device(queue, operands, [&](std::span<const DeviceMemory> memory, std::span<const Event> needs) {
      std::vector<KernelArgument> arguments(memory.size());
      for (std::size_t i = 0; i < memory.size(); ++i) {
        arguments[i].memory = memory[i];
        arguments[i].writes = operands[i].intent != Intent::read;
      }
      auto const once = [body](Range, std::size_t, std::size_t, std::span<const HostArgument> given) { body(given); };
      return queue.run(on.compile({"work", {}, once}), Range{1}, arguments, needs);
    });
  }
  [[nodiscard]] std::size_t on_device() { return manager.pool(sim, Location::device).bytes_in_use(); }

  Device& sim = make_sim({.memory_bytes = 64 * MiB});
  MemoryManager manager;
};

}  // namespace unimem::testing
