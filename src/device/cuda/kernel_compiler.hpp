#pragma once

#include <unimem/device/program.hpp>

#include "device/cuda/kernel_cache.hpp"
#include "device/cuda/nvrtc.hpp"
#include "device/cuda/parameter.hpp"

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace unimem::detail::cuda {

/// A kernel as the compiler left it: what a module is loaded from, and what a launch must know.
struct CompiledKernel {
  std::string image;  ///< machine code for the architecture, or PTX where NVRTC does not know it; ends with a zero
  std::string entry;  ///< the function's name in the image
  std::vector<Parameter> parameters;  ///< as the source has them, so one for each argument
  bool portable = false;              ///< the entry takes a range first, and deals its items out itself
  std::string compiler{};             ///< which one, with its version: "NVRTC 12.9"

  friend bool operator==(CompiledKernel const&, CompiledKernel const&) = default;
};

/// Compiles kernel sources, or finds what was compiled before. One serves all GPUs of a process; any thread may use it
/// at any time. The compiler is looked for when the first source comes, because it is large and may be missing; a GPU
/// that it does not know gets another one, where there is one.
class KernelCompiler {
 public:
  KernelCompiler(int driver_version, KernelCache cache);

  /// With a compiler that is loaded already: for tests that watch its calls.
  KernelCompiler(LoadedNvrtc nvrtc, int driver_version, KernelCache cache);

  /// Compiles for `architecture` (90 is sm_90) on behalf of the device errors name. Throws KernelError with the log if
  /// the source does not compile, or naming the kernels there are when the entry is missing; UnsupportedOperation
  /// if there is no compiler; DeviceError if the compiler itself fails.
  [[nodiscard]] CompiledKernel compile(ProgramSource const& source, int architecture, std::string_view device_id) const;

 private:
  [[nodiscard]] LoadedNvrtc const& loaded_for(int architecture) const;

  int driver_version_;
  KernelCache cache_;
  std::unique_ptr<LoadedNvrtc const> given_;
  mutable std::mutex mutex_;
  mutable std::map<int, std::unique_ptr<LoadedNvrtc const>> by_architecture_;  ///< those that were looked for
};

}  // namespace unimem::detail::cuda
