#include "device/opencl/hardware.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "device/opencl/code.hpp"
#include "device/opencl/pocl_cache.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

namespace unimem::detail::opencl {
namespace {

/// Reads a text property through the two-call dance that clGet…Info wants. A property that cannot be read is empty.
template <class Get, class Object>
std::string text(Get get, Object object, cl_uint name) {
  std::size_t size = 0;
  if (get(object, name, 0, nullptr, &size) != CL_SUCCESS || size == 0) return {};
  std::string result(size, '\0');
  if (get(object, name, size, result.data(), nullptr) != CL_SUCCESS) return {};
  result.resize(std::min(result.find('\0'), result.size()));
  auto const first = result.find_first_not_of(' ');
  return first == std::string::npos ? std::string{} : result.substr(first, result.find_last_not_of(' ') + 1 - first);
}

template <class Value>
std::optional<Value> value(Api const& api, cl_device_id device, cl_device_info name) {
  Value result{};
  if (api.clGetDeviceInfo(device, name, sizeof result, &result, nullptr) != CL_SUCCESS) return std::nullopt;
  return result;
}

/// "OpenCL 1.2 …" is 12, "OpenCL 3.0 …" is 30; 0 if it is spelled otherwise.
unsigned version_of(std::string_view spelled) {
  constexpr std::string_view prefix = "OpenCL ";
  if (!spelled.starts_with(prefix)) return 0;
  spelled.remove_prefix(prefix.size());
  unsigned major = 0, minor = 0;
  auto const* const begin = spelled.data();
  auto const* const end = begin + spelled.size();
  auto const dot = std::from_chars(begin, end, major);
  if (dot.ec != std::errc{} || dot.ptr == end || *dot.ptr != '.') return 0;
  if (std::from_chars(dot.ptr + 1, end, minor).ec != std::errc{}) return 0;
  return major * 10 + minor;
}

bool has_atomics64(std::string_view extensions) {
  return extensions.find("cl_khr_int64_base_atomics") != std::string_view::npos &&
         extensions.find("cl_khr_int64_extended_atomics") != std::string_view::npos;
}

/// Fills `hardware` from the driver; why the device cannot be used, or nothing.
std::optional<std::string> describe(Hardware& hardware) {
  auto const& api = *hardware.api;
  auto const device = hardware.device;
  auto& info = hardware.info;
  info.name = text(api.clGetDeviceInfo, device, CL_DEVICE_NAME);
  info.vendor = text(api.clGetDeviceInfo, device, CL_DEVICE_VENDOR);
  info.driver = text(api.clGetDeviceInfo, device, CL_DRIVER_VERSION);
  auto const version = version_of(text(api.clGetDeviceInfo, device, CL_DEVICE_VERSION));
  if (version < 12) return fmt::format("{} is older than OpenCL 1.2", info.name);
  if (!value<cl_bool>(api, device, CL_DEVICE_AVAILABLE).value_or(CL_FALSE)) {
    return fmt::format("{} is not available", info.name);
  }
  auto const memory = value<cl_ulong>(api, device, CL_DEVICE_GLOBAL_MEM_SIZE).value_or(0);
  if (memory == 0) return fmt::format("{} reports no memory", info.name);
  info.total_bytes = memory;
  info.max_allocation =
      std::min<std::size_t>(memory, value<cl_ulong>(api, device, CL_DEVICE_MAX_MEM_ALLOC_SIZE).value_or(memory));
  info.alignment = std::max<std::size_t>(1, value<cl_uint>(api, device, CL_DEVICE_MEM_BASE_ADDR_ALIGN).value_or(8) / 8);
  info.compute_units = std::max(1U, value<cl_uint>(api, device, CL_DEVICE_MAX_COMPUTE_UNITS).value_or(1));
  auto const type = value<cl_device_type>(api, device, CL_DEVICE_TYPE).value_or(0);
  // A simulator (Oclgrind) claims to be everything at once: what is also a CPU is no GPU worth preferring.
  info.is_gpu = (type & CL_DEVICE_TYPE_GPU) != 0 && (type & CL_DEVICE_TYPE_CPU) == 0;
  info.integrated = value<cl_bool>(api, device, CL_DEVICE_HOST_UNIFIED_MEMORY).value_or(CL_FALSE) != CL_FALSE;
  info.doubles = value<cl_device_fp_config>(api, device, CL_DEVICE_DOUBLE_FP_CONFIG).value_or(0) != 0;
  info.atomics64 = has_atomics64(text(api.clGetDeviceInfo, device, CL_DEVICE_EXTENSIONS));
  info.max_group_items = value<std::size_t>(api, device, CL_DEVICE_MAX_WORK_GROUP_SIZE).value_or(1);
  info.group_memory_bytes = value<cl_ulong>(api, device, CL_DEVICE_LOCAL_MEM_SIZE).value_or(0);
  info.compiles_source = value<cl_bool>(api, device, CL_DEVICE_COMPILER_AVAILABLE).value_or(CL_FALSE) != CL_FALSE;
  hardware.fine_grain_memory = version >= 20 && api.clSVMAlloc != nullptr && api.clSVMFree != nullptr &&
                               (value<cl_device_svm_capabilities>(api, device, CL_DEVICE_SVM_CAPABILITIES).value_or(0) &
                                CL_DEVICE_SVM_FINE_GRAIN_BUFFER) != 0;
  hardware.budget = std::make_shared<MemoryBudget>(info.total_bytes);
  return std::nullopt;
}

}  // namespace

Survey survey(Api const& api, Api const& serial, std::function<void(std::string const&)> const& announce) {
  Survey result;
  announce("listing the platforms");
  cl_uint count = 0;
  auto code = api.clGetPlatformIDs(0, nullptr, &count);
  std::vector<cl_platform_id> platforms(code == CL_SUCCESS ? count : 0);
  if (!platforms.empty()) code = api.clGetPlatformIDs(count, platforms.data(), nullptr);
  if (code != CL_SUCCESS || platforms.empty()) {
    result.reason = fmt::format("no OpenCL platform is installed (clGetPlatformIDs: {})", code_name(code));
    return result;
  }

  std::vector<std::string> reasons;
  for (auto* const platform : platforms) {
    auto const name = text(api.clGetPlatformInfo, platform, CL_PLATFORM_NAME);
    bool const is_pocl = name == "Portable Computing Language";
    if (is_pocl) {
      if (auto problem = pocl_cache_problem()) {
        reasons.push_back(*std::move(problem));
        continue;
      }
    }
    auto const& table = name == "Oclgrind" ? serial : api;
    announce(fmt::format("asking platform '{}' for its devices", name));
    auto const compiler = fmt::format("{}, {}", name, text(table.clGetPlatformInfo, platform, CL_PLATFORM_VERSION));
    code = table.clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, nullptr, &count);
    std::vector<cl_device_id> devices(code == CL_SUCCESS ? count : 0);
    if (!devices.empty()) code = table.clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, count, devices.data(), nullptr);
    if (code != CL_SUCCESS || devices.empty()) {
      reasons.push_back(fmt::format("platform '{}' has no device (clGetDeviceIDs: {})", name, code_name(code)));
      continue;
    }
    for (auto* const device : devices) {
      announce(fmt::format("asking a device of platform '{}' what it is", name));
      Hardware hardware;
      hardware.api = &table;
      hardware.platform = platform;
      hardware.device = device;
      hardware.is_pocl = is_pocl;
      hardware.loads_with_first_run = name == "rusticl";
      hardware.compiler = compiler;
      if (auto problem = describe(hardware)) {
        reasons.push_back(fmt::format("platform '{}': {}", name, *problem));
      } else {
        result.hardware.push_back(std::move(hardware));
      }
    }
  }
  if (result.hardware.empty()) result.reason = fmt::format("{}", fmt::join(reasons, "; "));
  return result;
}

}  // namespace unimem::detail::opencl
