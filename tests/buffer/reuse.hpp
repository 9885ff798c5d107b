#pragma once

#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/device/sim.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace unimem::testing {

/// Two queues of a slow device, and buffers that are dropped as soon as their last work has been submitted: every
/// block, on both sides, is handed out again while work of the one queue still uses it, to be used next by the other.
class Reuse {
 public:
  static constexpr std::size_t count = 1024;  ///< words of a buffer

  Reuse() {
    options_.manager = &manager_;
    options_.device = &slow_;
    set_ = slow_.compile({"set", "", [](Range, std::size_t, std::size_t, std::span<const HostArgument> arguments) {
                            std::uint32_t first = 0;
                            std::memcpy(&first, arguments[1].data, sizeof first);
                            auto* const words = static_cast<std::uint32_t*>(arguments[0].data);
                            for (std::size_t i = 0; i < arguments[0].bytes / sizeof first; ++i) {
                              words[i] = first + static_cast<std::uint32_t>(i);
                            }
                          }});
  }

  /// Recycles blocks for `rounds` rounds. Returns what was found wrong, if anything was.
  std::optional<std::string> run(std::uint32_t rounds) {
    std::vector<UnifiedBuffer<std::uint32_t>> kept;
    for (std::uint32_t round = 0; round < rounds; ++round) {
      auto& queue = round / 2 % 2 == 0 ? first_ : second_;
      auto& other = round / 2 % 2 == 0 ? second_ : first_;
      for (int from_host = 0; from_host < 2; ++from_host) {
        kept.emplace_back(Shape(count), options_);
        UnifiedBuffer<std::uint32_t> passing(Shape(count), options_);
        if (from_host == 0) {
          set(queue, passing.slice(0, count / 2), pattern(round));
          // Of a block that was taken in the one queue's order.
          set(other, passing.slice(count / 2), pattern(round) + count / 2);
        } else {
          auto const view = passing.host_overwrite();
          for (std::size_t i = 0; i < count; ++i) view[i] = pattern(round) + static_cast<std::uint32_t>(i);
          passing.prefetch(queue);
        }
        copy_on(queue, passing, kept.back());
      }
    }
    for (std::uint32_t i = 0; i < kept.size(); ++i) {
      auto const seen = kept[i].to_vector();
      for (std::uint32_t at = 0; at < count; ++at) {
        if (seen[at] == pattern(i / 2) + at) continue;
        return "round " + std::to_string(i / 2) + " of " + std::to_string(rounds) + ": word " + std::to_string(at) +
               " of what passed through a recycled block is " + std::to_string(seen[at]) + " and not " +
               std::to_string(pattern(i / 2) + at);
      }
    }
    return std::nullopt;
  }

  [[nodiscard]] MemoryManager const& manager() const noexcept { return manager_; }

 private:
  static std::uint32_t pattern(std::uint32_t round) { return (round + 1) * 0x10000U; }

  void set(Queue& queue, BufferSlice<std::uint32_t> const& part, std::uint32_t first) {
    Operand const operand{&part.core(), part.range(), Intent::write};
    use_on_device(queue, {&operand, 1}, [&](std::span<const DeviceMemory> memory, std::span<const Event> needs) {
      std::array<KernelArgument, 2> arguments;
      arguments[0].memory = memory.front();
      arguments[1].kind = KernelArgument::Kind::scalar;
      std::memcpy(arguments[1].scalar.data(), &first, sizeof first);
      arguments[1].scalar_bytes = sizeof first;
      return queue.run(set_, Range{1}, arguments, needs);
    });
  }

  static void copy_on(Queue& queue, UnifiedBuffer<std::uint32_t>& from, UnifiedBuffer<std::uint32_t>& to) {
    std::array const operands{Operand{&from.core(), {0, from.size_bytes()}, Intent::read},
                              Operand{&to.core(), {0, to.size_bytes()}, Intent::write}};
    use_on_device(queue, operands, [&](std::span<const DeviceMemory> memory, std::span<const Event> needs) {
      return queue.copy(memory[1], memory[0], memory[0].bytes, needs);
    });
  }

  Device& slow_ = make_sim({.memory_bytes = std::size_t{16} << 20, .latency = std::chrono::milliseconds(10)});
  MemoryManager manager_;
  BufferOptions options_;
  Queue first_ = slow_.create_queue();
  Queue second_ = slow_.create_queue();
  std::shared_ptr<Program const> set_;
};

}  // namespace unimem::testing
