#pragma once

#include <unimem/device/detail/value_type.hpp>

#include "device/opencl/api.hpp"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unimem::detail::opencl {

/// What the types called `names` are in `source`, which is compiled once more with a kernel for each of them: the size
/// of the groups that such a kernel demands tells the type's size, and which number it stands for. Nothing runs. A type
/// that the compiler cannot say so much of stays unknown.
[[nodiscard]] std::vector<ValueType> probe_types(Api const& api, cl_context context, cl_device_id device,
                                                 std::string_view source, std::span<const std::string> names);

}  // namespace unimem::detail::opencl
