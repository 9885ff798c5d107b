#pragma once

#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace unimem::testing {

/// A simulated device and a manager of its own for every test, and the counts that its buffers must agree with.
class BufferTest : public ::testing::Test {
 protected:
  [[nodiscard]] BufferOptions on_sim(std::string name = {}) {
    BufferOptions options;
    options.manager = &manager;
    options.device = &sim;
    options.name = std::move(name);
    return options;
  }

  [[nodiscard]] static std::vector<std::uint32_t> counting(std::size_t count, std::uint32_t first = 0) {
    std::vector<std::uint32_t> values(count);
    std::iota(values.begin(), values.end(), first);
    return values;
  }

  /// Counting elements, current on both sides, with one upload behind them.
  [[nodiscard]] UnifiedBuffer<std::uint32_t> synchronized(std::size_t count = 100, std::string name = {}) {
    UnifiedBuffer<std::uint32_t> buffer(count, on_sim(std::move(name)));
    buffer.copy_from(counting(count));
    buffer.sync_to_device();
    return buffer;
  }

  /// What the device's own memory holds, read behind the buffer's back.
  template <class T>
  [[nodiscard]] std::vector<T> device_bytes(UnifiedBuffer<T>& buffer, Device& on) {
    auto const lease = buffer.device_view(on);
    std::vector<T> values(buffer.size());
    auto queue = on.create_queue();
    queue.download(values.data(), lease.native(), buffer.size_bytes()).wait();
    return values;
  }

  /// Device work as a kernel does it: `work` gets the operands' memory when its turn comes.
  static Event run(Queue& queue, std::span<const Operand> operands,
                   std::function<void(std::span<const HostArgument>)> work) {
    auto const program = queue.device().compile(
        {"work", "",
         [work = std::move(work)](Range, std::size_t, std::size_t, std::span<const HostArgument> arguments) {
           work(arguments);
         }});
    return use_on_device(queue, operands, [&](std::span<const DeviceMemory> memory, std::span<const Event> needs) {
      std::vector<KernelArgument> arguments(operands.size());
      for (std::size_t i = 0; i < operands.size(); ++i) {
        arguments[i].memory = memory[i];
        arguments[i].writes = operands[i].intent != Intent::read;
      }
      return queue.run(program, Range{1}, arguments, needs);
    });
  }

  /// Sets every element of a window on the queue's device.
  static Event set(Queue& queue, BufferSlice<std::uint32_t> const& slice, std::uint32_t value) {
    Operand const operand{&slice.core(), slice.range(), Intent::write};
    return run(queue, {&operand, 1}, [value, count = slice.size()](std::span<const HostArgument> arguments) {
      std::fill_n(static_cast<std::uint32_t*>(arguments[0].data), count, value);
    });
  }

  /// Adds to every element of a window on the queue's device.
  static Event add(Queue& queue, BufferSlice<std::uint32_t> const& slice, std::uint32_t value) {
    Operand const operand{&slice.core(), slice.range(), Intent::read_write};
    return run(queue, {&operand, 1}, [value, count = slice.size()](std::span<const HostArgument> arguments) {
      for (auto& element : std::span{static_cast<std::uint32_t*>(arguments[0].data), count}) element += value;
    });
  }

  Device& sim = make_sim({.memory_bytes = std::size_t{64} << 20});
  Device& other = make_sim({.memory_bytes = std::size_t{64} << 20});
  MemoryManager manager;
};

/// Uploads and downloads of one buffer, as (bytes, copies) pairs, for comparing in one line.
struct Moved {
  std::uint64_t up_bytes = 0, up = 0, down_bytes = 0, down = 0;
  friend bool operator==(Moved const&, Moved const&) = default;
  friend std::ostream& operator<<(std::ostream& out, Moved const& moved) {
    return out << moved.up_bytes << " bytes up in " << moved.up << ", " << moved.down_bytes << " bytes down in "
               << moved.down;
  }
};

inline Moved moved(BufferStatistics const& counts) {
  return {counts.host_to_device_bytes, counts.host_to_device_copies, counts.device_to_host_bytes,
          counts.device_to_host_copies};
}

/// What the device itself has carried out.
inline Moved moved(TransferCounters const& counts) {
  return {counts.host_to_device_bytes, counts.host_to_device_copies, counts.device_to_host_bytes,
          counts.device_to_host_copies};
}

}  // namespace unimem::testing
