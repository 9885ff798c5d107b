#pragma once

#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/error.hpp>
#include <unimem/device/sim.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace unimem::testing {

/// More buffers than a device has room for, and what must hold of those that go and those that stay: found without
/// looking inside.
class Evicting {
 public:
  /// What is wrong, if anything is.
  [[nodiscard]] static std::optional<std::string> run() {
    for (std::size_t favourite = 0; favourite < count; ++favourite) {
      for (auto const later : {false, true}) {
        Evicting scene;
        if (auto broken = scene.favour(favourite, later)) return broken;
      }
    }
    for (auto const check : {&Evicting::loop, &Evicting::hints, &Evicting::refusal}) {
      Evicting scene;
      if (auto broken = (scene.*check)()) return broken;
    }
    return std::nullopt;
  }

 private:
  static constexpr std::size_t count = 8;
  static constexpr std::size_t words = std::size_t{64} << 10;
  static constexpr std::size_t bytes = words * sizeof(std::uint32_t);

  Evicting() {
    manager_.set_limit(device_, 4 * bytes);
    BufferOptions options;
    options.manager = &manager_;
    options.device = &device_;
    for (std::uint32_t i = 0; i < count; ++i) buffers_.emplace_back(words, options).fill(100 * i);
  }

  /// Adds one to every word.
  void use(std::size_t which) {
    Operand const operand{&buffers_[which].core(), {0, bytes}, Intent::read_write};
    use_all({&operand, 1});
  }

  void use_all(std::span<const Operand> operands) {
    auto& queue = device_.default_queue();
    use_on_device(queue, operands, [&](std::span<const DeviceMemory> memory, std::span<const Event> needs) {
      std::vector<KernelArgument> arguments(memory.size());
      for (std::size_t i = 0; i < memory.size(); ++i) {
        arguments[i].memory = memory[i];
        arguments[i].writes = operands[i].intent != Intent::read;
      }
      return queue.run(add_one_, Range{1}, arguments, needs);
    }).wait();
  }

  [[nodiscard]] std::optional<std::string> check_words(std::size_t which, std::uint32_t used) {
    auto const seen = buffers_[which].to_vector();
    auto const expected = static_cast<std::uint32_t>(100 * which) + used;
    if (std::ranges::all_of(seen, [&](std::uint32_t word) { return word == expected; })) return std::nullopt;
    return fmt::format("buffer {} holds {} and not {}", which, seen[0], expected);
  }

  /// One is used by turns with all the others, whichever it is, from the beginning or later: it has no reason to go.
  [[nodiscard]] std::optional<std::string> favour(std::size_t favourite, bool later) {
    for (std::size_t i = 0; i < count && later; ++i) {
      if (i != favourite) use(i);
    }
    for (int pass = 0; pass < 4; ++pass) {
      for (std::size_t i = 0; i < count; ++i) {
        if (i == favourite) continue;
        use(favourite);
        use(i);
      }
    }
    auto const loads = buffers_[favourite].statistics().host_to_device_copies;
    if (loads > 2) return fmt::format("a favourite was loaded {} times", loads);
    return std::nullopt;
  }

  [[nodiscard]] std::optional<std::string> loop() {
    constexpr std::uint32_t passes = 6;
    for (std::uint32_t pass = 0; pass < passes; ++pass) {
      for (std::size_t i = 0; i < buffers_.size(); ++i) use(i);
    }
    auto const loads = device_.transfers().host_to_device_copies;
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      if (auto broken = check_words(i, passes)) return broken;
    }
    // All of them once, and five of eight in every pass after that.
    if (loads > 40) return fmt::format("a loop took {} loads, and 33 would do", loads);
    return std::nullopt;
  }

  [[nodiscard]] std::optional<std::string> hints() {
    for (std::size_t i = 0; i < 4; ++i) use(i);
    buffers_[2].wont_use(device_);
    use(4);
    if (buffers_[2].valid_on(device_)) return "what was not to be used stayed";
    for (auto const i : {0U, 1U, 3U}) buffers_[i].will_use(device_);
    use(5);
    if (buffers_[4].valid_on(device_)) return "what was about to be used went";
    buffers_[5].set_priority(1);
    use(6);
    if (!buffers_[5].valid_on(device_)) return "what has priority went first";
    return std::nullopt;
  }

  [[nodiscard]] std::optional<std::string> refusal() {
    for (std::size_t i = 0; i < 4; ++i) use(i);
    auto const first = buffers_[0].device_view(device_);
    auto const second = buffers_[1].device_view(device_);
    std::array<Operand, 3> operands{};
    for (std::size_t i = 0; i < operands.size(); ++i) {
      operands[i] = {&buffers_[4 + i].core(), {0, bytes}, Intent::read};
    }
    try {
      use_all(operands);
      return "three buffers fit where there is room for two";
    } catch (OutOfMemory const& refused) {
      if (refused.facts().leased != 2 * bytes) return fmt::format("{} bytes were leased", refused.facts().leased);
    }
    if (!buffers_[2].valid_on(device_) || !buffers_[3].valid_on(device_)) return "room was made in vain";
    return std::nullopt;
  }

  Device& device_ = make_sim({.memory_bytes = std::size_t{16} << 20});
  MemoryManager manager_;
  std::deque<UnifiedBuffer<std::uint32_t>> buffers_;
  std::shared_ptr<Program const> add_one_ =
      device_.compile({"add one", "", [](Range, std::size_t, std::size_t, std::span<const HostArgument> arguments) {
                         for (auto& word : std::span{static_cast<std::uint32_t*>(arguments[0].data), words}) ++word;
                       }});
};

}  // namespace unimem::testing
