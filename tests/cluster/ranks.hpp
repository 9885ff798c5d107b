#pragma once

#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/device/sim.hpp>
#include <unimem/kernel/kernel.hpp>
#include <unimem/kernel/launch.hpp>
#include <unimem/manager/memory_manager.hpp>
#include <unimem/mpi.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace unimem::testing {

/// Ranks that are a ring, each with a simulated device, whose fresh memory reads 0xCD, and a manager of its own.
class RanksTest : public ::testing::Test {
 protected:
  static constexpr int tag = 5;

  static int rank() {
    int number = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &number);
    return number;
  }
  static int ranks() {
    int count = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &count);
    return count;
  }
  /// Pairs of an even rank and the odd one behind it; the last of an odd number has none.
  static bool is_first() { return rank() % 2 == 0; }
  static int partner() { return is_first() ? rank() + 1 : rank() - 1; }
  static bool has_partner() { return partner() < ranks(); }

  /// Numbers that differ from rank to rank.
  template <class T = std::uint32_t>
  static std::vector<T> numbers_of(int of_rank, std::size_t count) {
    std::vector<T> numbers(count);
    for (std::size_t i = 0; i < count; ++i)
      numbers[i] = static_cast<T>(i * 7 + static_cast<std::size_t>(of_rank) * 1000 + 1);
    return numbers;
  }

  BufferOptions on_sim(std::string name = {}) {
    BufferOptions options;
    options.manager = &manager;
    options.device = &sim;
    options.name = std::move(name);
    return options;
  }

  template <class T>
  UnifiedBuffer<T> holding(std::vector<T> const& numbers) {
    UnifiedBuffer<T> buffer(numbers.size(), on_sim());
    buffer.copy_from(numbers);
    return buffer;
  }

  /// The numbers are on the device alone, made there by a kernel: this buffer has no host memory yet.
  template <class T>
  UnifiedBuffer<T> holding_on_device(T first, std::size_t count) {
    UnifiedBuffer<T> buffer(count, on_sim());
    launch(sim.default_queue(), Kernel("count").host([](WorkItem i, std::span<T> x, T begin) {
      x[i.x] = static_cast<T>(begin + static_cast<T>(i.x));
    }),
           Range{count}, write(buffer), first);
    return buffer;
  }
  template <class T>
  static std::vector<T> counting(T first, std::size_t count) {
    std::vector<T> numbers(count);
    for (std::size_t i = 0; i < count; ++i) numbers[i] = static_cast<T>(first + static_cast<T>(i));
    return numbers;
  }

  Device& sim = make_sim({.memory_bytes = std::size_t{64} << 20});
  MemoryManager manager;
};

}  // namespace unimem::testing
