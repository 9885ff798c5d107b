#pragma once

#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>

#include "device/gate.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace unimem::testing {

/// Work that overwrites all of a buffer, having read it, and fails.
inline void overwrite_in_vain(Device& device, UnifiedBuffer<std::uint32_t>& buffer) {
  auto& queue = device.default_queue();
  auto const fails = device.compile({"fails", "", [](Range, std::size_t, std::size_t, std::span<const HostArgument>) {
                                       throw std::runtime_error("failed on purpose");
                                     }});
  Operand const all{&buffer.core(), {0, buffer.size_bytes()}, Intent::read_write};
  auto const end =
      use_on_device(queue, {&all, 1}, [&](std::span<const DeviceMemory> memory, std::span<const Event> needs) {
        KernelArgument argument;
        argument.memory = memory[0];
        argument.writes = true;
        return queue.run(fails, Range{1}, {&argument, 1}, needs);
      });
  static_cast<void>(end.wait_for_error());
}

/// What is wrong with buffers whose host memory is asked for in every situation, if anything is.
[[nodiscard]] inline std::optional<std::string> broken_by_spilling() try {
  constexpr std::size_t words = std::size_t{32} << 10;
  static auto& device = make_sim({.memory_bytes = std::size_t{16} << 20});
  MemoryManager manager{ManagerOptions{.spill = {.directory = std::filesystem::temp_directory_path().string()}}};
  BufferOptions options;
  options.manager = &manager;
  options.device = &device;
  std::vector const values(words, 7U), others(words, 9U);
  auto const spills = [&] { return manager.statistics().spills; };
  auto const took = [](UnifiedBuffer<std::uint32_t>& from) {
    return from.core().evict({&unimem::device("cpu"), Location::host}, {}) != 0;
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

  // Files have the only copy when work fails that was to overwrite it.
  UnifiedBuffer<std::uint32_t> kept(words, options);
  kept.copy_from(values);
  if (!took(kept)) return "memory that nobody has the address of did not go";
  overwrite_in_vain(device, kept);
  try {
    static_cast<void>(kept.to_vector());
  } catch (std::exception const&) {  // NOLINT(bugprone-empty-catch): of that work, told once
  }
  if (kept.to_vector() != values) return "other bytes came back after a failure";

  // What a device alone has follows it to the file: the host's memory stays away.
  kept.copy_from(values);
  if (!took(kept)) return "memory that nobody has the address of did not go";
  auto const in_use = [&] { return manager.pool(unimem::device("cpu"), Location::host).bytes_in_use(); };
  auto const without = in_use();
  {
    auto part = kept.slice(0, 100);
    std::ranges::fill_n(part.device(device).data(), 100, 8U);
  }
  if (kept.core().evict({&device, Location::device}, {}) == 0) return "a device's memory did not go";
  if (in_use() > without) return "all of a buffer came back for the sake of a part";
  auto changed = values;
  std::ranges::fill_n(changed.begin(), 100, 8U);
  if (kept.to_vector() != changed) return "other bytes came back from a device";

  // While an upload waits for its turn.
  UnifiedBuffer<std::uint32_t> sent(words, options);
  sent.copy_from(values);
  std::optional<Gate> gate{device.default_queue()};
  auto const there = sent.prefetch(device);
  auto const before = spills();
  std::thread asking([&] { static_cast<void>(took(sent)); });
  for (int i = 0; i < 100 && spills() == before; ++i) std::this_thread::sleep_for(std::chrono::milliseconds{1});
  if (spills() != before) {
    gate.reset();
    asking.join();
    return "memory went that an upload was yet to read";
  }
  UnifiedBuffer<std::uint32_t> next(words, options);
  next.copy_from(others);
  gate.reset();
  asking.join();
  there.wait();
  auto const lease = sent.device_view(device);
  if (lease.data()[0] != 7U) return "memory went before it had been read";

  // A copy waits a while for memory that another thread has in use.
  MemoryManager small{ManagerOptions{.spill = {.directory = std::filesystem::temp_directory_path().string()}}};
  small.set_limit(unimem::device("cpu"), Location::host, 2 * words * sizeof(std::uint32_t));
  options.manager = &small;
  UnifiedBuffer<std::uint32_t> source(words, options), target(words, options), mapped(words, options);
  source.copy_from(values);
  mapped.copy_from(others);
  auto mapping = mapped.map(MapMode::read);
  std::jthread const other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    mapping.unmap();
  });
  copy(source, target);
  if (target.to_vector() != values) return "a copy that had to wait is not one";
  return std::nullopt;
} catch (std::exception const& failure) {
  return failure.what();
}

}  // namespace unimem::testing
