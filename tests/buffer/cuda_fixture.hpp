#pragma once

#include <unimem/core/error.hpp>

#include "buffer/buffer_fixture.hpp"
#include "device/gate.hpp"
#include "device/standin_watch.hpp"

#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace unimem::testing {

/// A kernel argument for memory, and for a scalar as the kernel's own type.
[[nodiscard]] inline KernelArgument argument_of(DeviceMemory memory, bool writes = true) {
  KernelArgument argument;
  argument.memory = memory;
  argument.writes = writes;
  return argument;
}
template <class T>
[[nodiscard]] KernelArgument argument_of(T value) {
  KernelArgument argument;
  argument.kind = KernelArgument::Kind::scalar;
  std::memcpy(argument.scalar.data(), &value, sizeof value);
  argument.scalar_bytes = sizeof value;
  return argument;
}

/// What of the driver is in use at a moment, but for what queues and pools of events keep for the next time.
struct InUse {
  std::size_t allocations, managed, pinned, registered, reservations, mappings, handles, modules, graphs, pending;

  [[nodiscard]] static InUse now() {
    if (on_hardware) return {};  // a driver does not tell
    auto const live = standin_control().live();
    return {live.allocations, live.managed, live.pinned,  live.registered, live.reservations,
            live.mappings,    live.handles, live.modules, live.graphs,     live.pending};
  }
  friend bool operator==(InUse const&, InUse const&) = default;
  friend std::ostream& operator<<(std::ostream& out, InUse const& use) {
    return out << use.allocations << " allocations, " << use.managed << " managed, " << use.pinned << " pinned, "
               << use.registered << " registered, " << use.reservations << " reservations, " << use.mappings
               << " mappings, " << use.handles << " handles, " << use.modules << " modules, " << use.graphs
               << " graphs, " << use.pending << " pending";
  }
};

/// How often a function of the driver was called.
[[nodiscard]] inline std::size_t calls(char const* function) {
  return standin_control().calls(function);
}

/// What a device keeps for good once it has been used: made before anything is counted.
inline void warm_up(Device& gpu) {
  static_cast<void>(gpu.link_cost());
  auto& queue = gpu.default_queue();
  static_cast<void>(gpu.waiting_queue());
  {
    Gate const held{queue};  // a word for streams to wait at
  }
  {
    // The kernel that moves many pieces, and a list for it.
    constexpr std::size_t bytes = std::size_t{64} << 10;
    auto& cpu = device("cpu");
    auto const host = cpu.allocate(bytes, Location::pinned), there = gpu.allocate(bytes, Location::device);
    std::vector<CopyPiece> pieces;
    for (std::size_t i = 0; i < 100; ++i) pieces.push_back({i * 100 + i % 3, i * 100, 64});
    queue.upload(there, reinterpret_cast<void const*>(host.object), pieces).wait();
    gpu.release(there, Location::device);
    cpu.release(host, Location::pinned);
  }
  gpu.synchronize();
}

/// Work as a kernel does it, in the portable source form: data[i] = data[i] * factor + amount, over 32-bit words.
[[nodiscard]] inline std::shared_ptr<Program const> affine_program(Device& gpu) {
  return gpu.compile({"affine",
                      R"(UNIMEM_KERNEL affine(UNIMEM_BUFFER(unimem_u32, x), unimem_u32 factor, unimem_u32 amount) {
                           UNIMEM_GLOBAL unimem_u32* data = UNIMEM_DATA(unimem_u32, x);
                           data[UNIMEM_ITEM_X] = data[UNIMEM_ITEM_X] * factor + amount;
                         })",
                      {}});
}

/// Two GPUs that reach each other, and a manager of its own for every test, which ends with nothing in
/// use that was not before it.
class OnTwoGpus : public ::testing::Test {
 protected:
  OnTwoGpus() {
    for (auto* const gpu : {&first, &second}) {
      warm_up(*gpu);
      gpu->synchronize();
      programs[gpu] = affine_program(*gpu);
    }
    before = InUse::now();
    manager.emplace();
  }

  void TearDown() override {
    if (!on_hardware) standin_control().hold(false);
    for (auto* const gpu : {&first, &second}) gpu->synchronize();
    EXPECT_EQ(manager->statistics().active_bytes, 0U);
    manager.reset();
    EXPECT_EQ(InUse::now(), before);
  }

  [[nodiscard]] BufferOptions on(Device& home, std::string name = {}) {
    BufferOptions options;
    options.manager = &*manager;
    options.device = &home;
    options.name = std::move(name);
    return options;
  }

  [[nodiscard]] static std::vector<std::uint32_t> counting(std::size_t count, std::uint32_t from = 0) {
    std::vector<std::uint32_t> values(count);
    std::iota(values.begin(), values.end(), from);
    return values;
  }

  /// Counting elements, current on the host and on `home`.
  [[nodiscard]] UnifiedBuffer<std::uint32_t> synchronized(Device& home, std::size_t count = 100,
                                                          std::string name = {}) {
    UnifiedBuffer<std::uint32_t> buffer(count, on(home, std::move(name)));
    buffer.copy_from(counting(count));
    buffer.sync_to_device();
    return buffer;
  }

  /// What a GPU's own memory holds, read behind the buffer's back.
  [[nodiscard]] static std::vector<std::uint32_t> device_words(UnifiedBuffer<std::uint32_t>& buffer, Device& gpu) {
    auto const lease = buffer.device_view(gpu);
    std::vector<std::uint32_t> values(buffer.size());
    auto queue = gpu.create_queue();
    queue.download(values.data(), lease.native(), buffer.size_bytes()).wait();
    return values;
  }

  /// The kernel above on a window, as a launch does it.
  Event affine(Queue& queue, BufferSlice<std::uint32_t> const& slice, std::uint32_t factor, std::uint32_t amount) {
    auto const loaded = programs.find(&queue.device());
    auto const program = loaded == programs.end() ? affine_program(queue.device()) : loaded->second;
    Operand const operand{&slice.core(), slice.range(), Intent::read_write};
    return use_on_device(queue, {&operand, 1}, [&](std::span<const DeviceMemory> memory, std::span<const Event> needs) {
      std::array const arguments{argument_of(memory.front()), argument_of(factor), argument_of(amount)};
      return queue.run(program, Range{slice.size()}, arguments, needs);
    });
  }
  Event add(Queue& queue, BufferSlice<std::uint32_t> const& slice, std::uint32_t amount) {
    return affine(queue, slice, 1, amount);
  }

  /// Sets every element of a window, which is not brought in.
  static Event set(Queue& queue, BufferSlice<std::uint32_t> const& slice, std::uint32_t value) {
    Operand const operand{&slice.core(), slice.range(), Intent::write};
    return use_on_device(queue, {&operand, 1}, [&](std::span<const DeviceMemory> memory, std::span<const Event>) {
      return queue.fill(memory.front(), std::as_bytes(std::span{&value, 1}));
    });
  }

  Device& first = device(first_gpu());
  Device& second = device(second_gpu());
  /// The kernel of `affine`, loaded before a test holds work back: a driver that loads one waits for all work of the
  /// GPU.
  std::map<Device const*, std::shared_ptr<Program const>> programs;
  std::optional<MemoryManager> manager;
  InUse before{};
};

}  // namespace unimem::testing
