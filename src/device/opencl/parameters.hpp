#pragma once

#include <unimem/device/program.hpp>

#include "device/opencl/api.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace unimem::detail::opencl {

/// The parameters of a kernel as the arguments of a launch meet them: a portable buffer's two are one.
struct Parameters {
  std::vector<ProgramParameter> takes;  ///< one for each argument
  std::vector<bool> with_offset;        ///< a buffer that comes as an object and an offset
  cl_uint count = 0;                    ///< as the driver counts them
};

/// Asks the driver for the parameters of `kernel`, which was built of `source` with `-cl-kernel-arg-info`. Where the
/// driver tells nothing, the text of a portable kernel does; of a plain one then nothing is known but how many there
/// are. Types that the source itself defines are looked through by a second, small program (`probe_types`). Throws
/// DeviceError if the driver fails, KernelError if a portable kernel's parameters cannot be told apart.
[[nodiscard]] Parameters read_parameters(Api const& api, cl_context context, cl_device_id device, cl_kernel kernel,
                                         ProgramSource const& source);

}  // namespace unimem::detail::opencl
