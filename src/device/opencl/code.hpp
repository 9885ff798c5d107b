#pragma once

#include "device/opencl/api.hpp"

#include <exception>
#include <string_view>

namespace unimem::detail::opencl {

/// What the specification calls an error code, e.g. "CL_OUT_OF_RESOURCES".
[[nodiscard]] std::string_view code_name(cl_int code) noexcept;

/// Throws DeviceError unless `code` is CL_SUCCESS. `call` is the driver function's name.
void check(cl_int code, char const* call);

/// The DeviceError that `check` would throw. For failures that belong to a ticket.
[[nodiscard]] std::exception_ptr failure_of(cl_int code, char const* call) noexcept;

}  // namespace unimem::detail::opencl
