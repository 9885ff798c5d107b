#pragma once

#include "device/opencl/api.hpp"

#include <cstddef>

namespace unimem::detail::opencl {

/// How many times a driver counts a byte that a kernel shares, in CL_KERNEL_LOCAL_MEM_SIZE: twice Rusticl of Mesa 22.3,
/// once the others. Compiles a kernel to see. Once where it cannot be told.
[[nodiscard]] std::size_t times_shared_is_counted(Api const& api, cl_context context, cl_device_id device);

}  // namespace unimem::detail::opencl
