#pragma once

#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/device/sim.hpp>

#include "core/sizes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

// Host memory that goes to files while nobody has an address of it.

namespace unimem::testing {

constexpr std::size_t words = MiB / sizeof(std::uint32_t);

inline std::vector<std::uint32_t> filled(std::uint32_t value) {
  return std::vector(words, value);
}

/// A directory for as long as a test lasts.
class Directory {
 public:
  Directory() {
    auto name = ::testing::TempDir() + "unimem-spill-XXXXXX";
    path_ = ::mkdtemp(name.data());
  }
  Directory(Directory const&) = delete;
  Directory& operator=(Directory const&) = delete;
  ~Directory() { std::filesystem::remove_all(path_); }
  [[nodiscard]] std::string const& path() const { return path_; }
  [[nodiscard]] bool empty() const { return std::filesystem::is_empty(path_); }

 private:
  std::string path_;
};

/// Adds one to every word of an operand, as a kernel does.
inline void add_one(Queue& queue, Operand const& operand) {
  auto const program =
      queue.device().compile({"add one", "",
                              [count = operand.range.size() / sizeof(std::uint32_t)](
                                  Range, std::size_t, std::size_t, std::span<const HostArgument> arguments) {
                                for (auto& word : std::span{static_cast<std::uint32_t*>(arguments[0].data), count})
                                  ++word;
                              }});
  use_on_device(queue, {&operand, 1}, [&](std::span<const DeviceMemory> memory, std::span<const Event> needs) {
    KernelArgument argument;
    argument.memory = memory[0];
    argument.writes = true;
    return queue.run(program, Range{1}, {&argument, 1}, needs);
  }).wait();
}

class Spilling : public ::testing::Test {
 protected:
  using Buffer = UnifiedBuffer<std::uint32_t>;

  void room_for(std::size_t megabytes, Location location = Location::host) {
    manager.set_limit(device("cpu"), location, megabytes * MiB);
  }
  [[nodiscard]] BufferOptions named(std::string name) {
    BufferOptions options;
    options.manager = &manager;
    options.device = &sim;
    options.name = std::move(name);
    return options;
  }
  /// Buffers of a megabyte, each full of its number, of which nobody has an address.
  void fill(std::size_t count) {
    while (buffers.size() < count) {
      auto const value = static_cast<std::uint32_t>(buffers.size());
      buffers.emplace_back(words, named("buffer " + std::to_string(value))).copy_from(filled(value));
    }
  }
  void expect_intact() {
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      ASSERT_EQ(buffers[i].to_vector(), filled(static_cast<std::uint32_t>(i))) << i;
      buffers[i].core().validate();
    }
  }
  [[nodiscard]] std::size_t reserved(Location location = Location::host) {
    return manager.pool(device("cpu"), location).statistics().peak_reserved_bytes;
  }

  Directory directory;
  Device& sim = make_sim({.memory_bytes = 64 * MiB});
  MemoryManager manager{ManagerOptions{.spill = {.directory = directory.path()}}};
  std::deque<Buffer> buffers;
};

}  // namespace unimem::testing
