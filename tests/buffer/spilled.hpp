#pragma once

#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>

#include "device/gate.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace unimem::testing {

/// What is wrong with buffers whose host memory is asked for in every situation, if anything is.
[[nodiscard]] inline std::optional<std::string> broken_by_spilling() {
  constexpr std::size_t words = std::size_t{32} << 10;
  static auto& device = make_sim({.memory_bytes = std::size_t{16} << 20});
  MemoryManager manager{ManagerOptions{.spill = {.directory = std::filesystem::temp_directory_path().string()}}};
  BufferOptions options;
  options.manager = &manager;
  options.device = &device;
  std::vector const values(words, 7U), others(words, 9U);
  auto const spills = [&] { return manager.statistics().spills; };
  auto const took = [](UnifiedBuffer<std::uint32_t>& from) {
    return from.core().evict({&unimem::device("cpu"), Location::host}) != 0;
  };

  UnifiedBuffer<std::uint32_t> buffer(words, options);
  buffer.copy_from(values);
  if (!took(buffer)) return "memory that nobody has the address of did not go";
  {
    UnifiedBuffer<std::uint32_t> next(words, options);
    next.copy_from(others);  // in the same memory, as likely as not
    if (buffer.to_vector() != values) return "other bytes came back";
  }
  {
    auto const mapping = buffer.map(MapMode::read);
    if (took(buffer)) return "memory went from under a mapping";
  }
  if (!took(buffer)) return "memory did not go when the mapping had ended";
  auto const view = buffer.host_view();
  if (took(buffer)) return "memory went from under an address";
  if (view[words - 1] != 7U) return "other bytes came back";

  // While an upload waits for its turn.
  UnifiedBuffer<std::uint32_t> sent(words, options);
  sent.copy_from(values);
  std::optional<Gate> gate{device.default_queue()};
  auto const there = sent.prefetch(device);
  auto const before = spills();
  std::thread asking([&] { static_cast<void>(took(sent)); });
  for (int i = 0; i < 100 && spills() == before; ++i) std::this_thread::sleep_for(std::chrono::milliseconds{1});
  UnifiedBuffer<std::uint32_t> next(words, options);
  next.copy_from(others);
  gate.reset();
  asking.join();
  there.wait();
  auto const lease = sent.device_view(device);
  if (lease.data()[0] != 7U) return "memory went before it had been read";
  return std::nullopt;
}

}  // namespace unimem::testing
