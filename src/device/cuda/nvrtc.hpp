#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

namespace unimem::detail::cuda {

/// What a call of NVRTC says. Only what the library acts upon has a name here; NVRTC knows the names of all.
enum class NvrtcResult : int { success = 0, compilation = 6 };

using NvrtcProgram = struct NvrtcProgramTag*;

}  // namespace unimem::detail::cuda

// clang-format off
// Every function of NVRTC that this library calls: each(name, parameters). One list, so that what is declared, loaded
// and compared with nvrtc.h cannot drift apart.
#define UNIMEM_NVRTC_FUNCTIONS(each)                                                                                   \
  each(nvrtcVersion, int* major, int* minor)                                                                           \
  each(nvrtcGetNumSupportedArchs, int* count)                                                                          \
  each(nvrtcGetSupportedArchs, int* architectures)                                                                     \
  each(nvrtcCreateProgram, NvrtcProgram* program, char const* source, char const* name, int header_count,              \
       char const* const* headers, char const* const* header_names)                                                    \
  each(nvrtcDestroyProgram, NvrtcProgram* program)                                                                     \
  each(nvrtcAddNameExpression, NvrtcProgram program, char const* expression)                                           \
  each(nvrtcCompileProgram, NvrtcProgram program, int option_count, char const* const* options)                        \
  each(nvrtcGetLoweredName, NvrtcProgram program, char const* expression, char const** lowered)                        \
  each(nvrtcGetProgramLogSize, NvrtcProgram program, std::size_t* bytes)                                               \
  each(nvrtcGetProgramLog, NvrtcProgram program, char* log)                                                            \
  each(nvrtcGetCUBINSize, NvrtcProgram program, std::size_t* bytes)                                                    \
  each(nvrtcGetCUBIN, NvrtcProgram program, char* cubin)                                                               \
  each(nvrtcGetPTXSize, NvrtcProgram program, std::size_t* bytes)                                                      \
  each(nvrtcGetPTX, NvrtcProgram program, char* ptx)
// clang-format on

namespace unimem::detail::cuda {

/// CUDA's run-time compiler as a table filled at run time. It comes with toolkits and not with drivers, so it may be
/// missing where everything else works, and a program that compiles no kernel never looks for it.
struct Nvrtc {
  // NOLINTBEGIN(readability-identifier-naming, bugprone-macro-parentheses): NVRTC chose the names
#define UNIMEM_DECLARE(function, ...) NvrtcResult (*function)(__VA_ARGS__) = nullptr;
  UNIMEM_NVRTC_FUNCTIONS(UNIMEM_DECLARE)
#undef UNIMEM_DECLARE
  char const* (*nvrtcGetErrorString)(NvrtcResult result) = nullptr;
  // NOLINTEND(readability-identifier-naming, bugprone-macro-parentheses)
};

/// The table of the compiler that was found, or why there is none.
struct LoadedNvrtc {
  Nvrtc nvrtc;
  int version = 0;                 ///< as the driver counts: 12090 is 12.9
  std::vector<int> architectures;  ///< it makes code for, rising: 90 is sm_90
  std::string problem;             ///< empty when the table is complete; else says what was looked for

  /// Whether it makes what a GPU of that architecture can run.
  [[nodiscard]] bool serves(int architecture) const noexcept {
    return problem.empty() && architectures.front() <= architecture;
  }
};

/// Where toolkits are, in the order to look: what `CUDA_HOME` and `CUDA_PATH` name, the loader's own search (the empty
/// folder), and where they are usually installed.
[[nodiscard]] std::vector<std::string> toolkit_folders();

/// Loads the compiler: `UNIMEM_NVRTC_LIBRARY` if set, else libnvrtc.so from one of the folders, which end with a slash.
/// A driver cannot load what a newer compiler made, so a compiler of the driver's own major version is preferred, then
/// an older one, and a newer one comes last. The first that is whole and makes code for `architecture` (90 is sm_90) is
/// taken, as newer ones no longer know old GPUs; where none does, the first of all. None is unloaded.
[[nodiscard]] LoadedNvrtc load_nvrtc(int driver_version, std::vector<std::string> folders = toolkit_folders(),
                                     int architecture = std::numeric_limits<int>::max());

/// What NVRTC calls a result, e.g. "NVRTC_ERROR_COMPILATION".
[[nodiscard]] std::string code_name(Nvrtc const& nvrtc, NvrtcResult code);

/// Throws DeviceError unless `code` is success. `call` is NVRTC's function.
void check(Nvrtc const& nvrtc, NvrtcResult code, char const* call);

}  // namespace unimem::detail::cuda
