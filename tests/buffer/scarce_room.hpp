#pragma once

#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/sim.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace unimem::testing {

/// What is wrong with operations that fit their device, if little more does.
[[nodiscard]] inline std::optional<std::string> broken_by_scarce_room() try {
  constexpr std::size_t unit = std::size_t{64} << 10, some = 16 * unit, many = 100 * unit;  // bytes
  static auto& device = make_sim({.memory_bytes = many});
  MemoryManager manager;
  using Buffer = UnifiedBuffer<std::uint32_t>;
  auto const filled = [&](std::size_t units, std::uint32_t value) {
    Buffer buffer(units * unit / sizeof(std::uint32_t), {.manager = &manager, .device = &device});
    buffer.fill(value);
    return buffer;
  };
  auto const part = [](Buffer& buffer, std::size_t from, std::size_t units, Intent intent = Intent::read) {
    return Operand{&buffer.core(), {from * unit, (from + units) * unit}, intent};
  };
  auto const use = [&](std::vector<Operand> const& operands) {
    auto& queue = device.default_queue();
    use_on_device(queue, operands, [&](auto, std::span<const Event> needs) { return queue.join(needs); }).wait();
  };
  auto const refuses = [&](std::vector<Operand> const& operands) {
    try {
      use(operands);
      return false;
    } catch (OutOfMemory const&) {
      return true;
    }
  };
  manager.set_limit(device, some);
  {
    auto buffer = filled(20, 1), other = filled(1, 2);
    use({part(buffer, 0, 14), part(other, 0, 1)});
    if (refuses({part(buffer, 1, 1), part(other, 0, 1), part(buffer, 16, 2)}))
      return "a large window that was used in part did not go";
    if (other.statistics().host_to_device_bytes != unit) return "more went than what was larger than the least";
  }
  {
    auto one = filled(20, 1), other = filled(20, 2);
    if (refuses({part(one, 0, 9), part(one, 3, 9), part(other, 0, 1)})) return "reads that overlap were counted twice";
    if (refuses({part(one, 0, 12), part(one, 6, 6), part(other, 0, 1)})) return "a read in another was counted twice";
  }
  {
    auto one = filled(20, 1), other = filled(20, 2);
    use({part(one, 0, 10)});
    if (!refuses({part(one, 0, 10), part(other, 0, 7)})) return "there was room for more than there is";
    auto const before = one.statistics().host_to_device_bytes;
    use({part(one, 0, 10)});
    if (one.statistics().host_to_device_bytes != before) return "memory was taken back in vain";
  }
  {
    auto one = filled(4, 1), other = filled(4, 2);
    int times = 0;
    try {
      use_on_device(device.default_queue(), std::vector{part(one, 0, 1), part(other, 0, 1)}, [&](auto, auto) -> Event {
        ++times;
        static_cast<void>(manager.acquire(device, Location::device, many));
        return {};
      });
    } catch (OutOfMemory const&) {
      if (times != 1) return "work that was refused memory itself was submitted again";
    }
  }
  manager.set_limit(device, many);
  filled(97, 1).sync_to_device();  // what is left is a cached block
  auto one = filled(91, 1), other = filled(200, 2);
  one.sync_to_device();
  if (refuses({part(one, 0, 91), part(other, 0, 8, Intent::read_write)})) return "a block was in the way";
  auto large = filled(95, 3);
  Operand const small{&other.core(), {50 * unit, 50 * unit + 1}, Intent::read}, half{&one.core(), {0, 9 * unit / 2}};
  if (refuses({part(large, 0, 95), small, half})) return "a byte took a cell of the last memory";
  return std::nullopt;
} catch (std::exception const& violation) {
  return violation.what();
}

}  // namespace unimem::testing
