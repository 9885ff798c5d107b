#pragma once

#include <cstddef>

// What the stand-in driver takes for a compiled kernel, and what the stand-in NVRTC makes: host code that says of
// itself which kernels it has.
//
// An image begins with the 8 bytes "UMKERNEL", then a 64-bit little-endian size of what follows, then the bytes of an
// ELF shared object, which exports the two names below.

/// One kernel of an image. `parameters` holds the address of each value.
struct StandInKernel {
  char const* name;
  void (*run)(unsigned const* grid /*3*/, unsigned const* block /*3*/, void* const* parameters);
  unsigned parameter_count;
  std::size_t const* parameter_offsets;
  std::size_t const* parameter_bytes;
};

extern "C" StandInKernel const unimem_standin_kernels[];
extern "C" unsigned const unimem_standin_kernel_count;
