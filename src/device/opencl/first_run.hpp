#pragma once

#include "device/opencl/api.hpp"

namespace unimem::detail::opencl {

/// Compiles a kernel that does nothing and runs it to its end, on a queue of its own. For drivers that load their code
/// generator with the first run instead of the first program, on a thread of theirs: what that registers for the end of
/// the process is then registered when this returns. What the driver refuses is left to the first real run to tell.
void run_to_the_end_once(Api const& api, cl_context context, cl_device_id device);

}  // namespace unimem::detail::opencl
