// Kernels as the stand-in NVRTC would have compiled them: an image of the stand-in driver is this object with its size
// in front.

#include "device/cuda_standin/kernel_image.hpp"

#include <atomic>
#include <thread>

namespace {

template <class Value>
Value parameter(void* const* parameters, unsigned index) {
  return *static_cast<Value const*>(parameters[index]);
}

/// data[i] += amount, for every i of the grid below count.
void add(unsigned const* grid, unsigned const* block, void* const* parameters) {
  auto* const data = parameter<int*>(parameters, 0);
  auto const amount = parameter<int>(parameters, 1);
  auto const count = parameter<unsigned long>(parameters, 2);
  for (unsigned long at = 0; at < count && at < static_cast<unsigned long>(grid[0]) * block[0]; ++at)
    data[at] += amount;
}

void nothing(unsigned const*, unsigned const*, void* const*) {}

/// Looks until the host opens it, as a kernel would: flag is pinned memory. (To sleep on it would be to sleep in this
/// library's copy of what std::atomic keeps of sleepers, which the program that wakes knows nothing of.)
void gate(unsigned const*, unsigned const*, void* const* parameters) {
  while (parameter<std::atomic<int>*>(parameters, 0)->load() == 0) std::this_thread::yield();
}

constexpr std::size_t add_offsets[] = {0, 8, 16};
constexpr std::size_t add_bytes[] = {8, 4, 8};
constexpr std::size_t gate_offsets[] = {0};
constexpr std::size_t gate_bytes[] = {8};

}  // namespace

extern "C" {

StandInKernel const unimem_standin_kernels[] = {
    {"add", add, 3, add_offsets, add_bytes},
    {"nothing", nothing, 0, nullptr, nullptr},
    {"gate", gate, 1, gate_offsets, gate_bytes},
};
unsigned const unimem_standin_kernel_count = 3;

}  // extern "C"
