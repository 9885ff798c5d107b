#pragma once

#include "device/cuda_standin/kernel_image.hpp"
#include "device/cuda_standin/machine.hpp"

namespace unimem::standin {

/// A loaded image. Kept by its queued kernels too: unloading under them is a violation and not a crash.
struct ModuleState {
  ModuleState() = default;
  ModuleState(ModuleState const&) = delete;
  ModuleState& operator=(ModuleState const&) = delete;
  ~ModuleState();

  std::shared_ptr<ContextState> context;
  int file = -1;  ///< open as long as the library is loaded: the loader knows libraries by the path through it
  void* library = nullptr;
  StandInKernel const* kernels = nullptr;
  unsigned count = 0;
  std::map<std::string, Function, std::less<>> handles;  ///< of the kernels asked for so far
};

struct FunctionState {
  std::shared_ptr<ModuleState> module;
  StandInKernel const* kernel = nullptr;
};

}  // namespace unimem::standin
