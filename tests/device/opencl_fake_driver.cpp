// A driver that does what UNIMEM_FAKE_DRIVER says as soon as the OpenCL loader asks it for its platforms: what a broken
// installation looks like from inside.

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl_icd.h>

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string_view>

// A platform begins with its dispatch table (cl_khr_icd); the loader calls through it.
struct _cl_platform_id {
  cl_icd_dispatch const* dispatch;
};

namespace {

cl_int CL_API_CALL platform_info(cl_platform_id, cl_platform_info name, std::size_t size, void* value,
                                 std::size_t* used) {
  std::string_view const text = name == CL_PLATFORM_NAME         ? "Fake"
                                : name == CL_PLATFORM_EXTENSIONS ? "cl_khr_icd"
                                : name == CL_PLATFORM_VERSION    ? "OpenCL 1.2 fake"
                                                                 : "FAKE";
  if (used != nullptr) *used = text.size() + 1;
  if (value == nullptr) return CL_SUCCESS;
  if (size < text.size() + 1) return CL_INVALID_VALUE;
  std::memcpy(value, text.data(), text.size());
  static_cast<char*>(value)[text.size()] = '\0';
  return CL_SUCCESS;
}

cl_int CL_API_CALL no_devices(cl_platform_id, cl_device_type, cl_uint, cl_device_id*, cl_uint* count) {
  if (count != nullptr) *count = 0;
  return CL_DEVICE_NOT_FOUND;
}

cl_int CL_API_CALL platforms(cl_uint room, cl_platform_id* list, cl_uint* count) {
  auto const* const told = std::getenv("UNIMEM_FAKE_DRIVER");
  std::string_view const what = told == nullptr ? "" : told;
  if (what == "abort") std::abort();
  if (what == "segfault") std::raise(SIGSEGV);
  if (what == "exit") _exit(3);
  while (what == "hang") pause();
  static auto const dispatch = [] {
    cl_icd_dispatch table{};
    table.clGetPlatformInfo = platform_info;
    table.clGetDeviceIDs = no_devices;
    return table;
  }();
  static _cl_platform_id platform{&dispatch};
  if (count != nullptr) *count = 1;
  if (list != nullptr && room > 0) list[0] = &platform;
  return CL_SUCCESS;
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) void* CL_API_CALL clGetExtensionFunctionAddress(char const* name) {
  return std::strcmp(name, "clIcdGetPlatformIDsKHR") == 0 ? reinterpret_cast<void*>(platforms) : nullptr;
}

__attribute__((visibility("default"))) cl_int CL_API_CALL clIcdGetPlatformIDsKHR(cl_uint room, cl_platform_id* list,
                                                                                 cl_uint* count) {
  return platforms(room, list, count);
}

__attribute__((visibility("default"))) cl_int CL_API_CALL clGetPlatformInfo(cl_platform_id platform,
                                                                            cl_platform_info name, std::size_t size,
                                                                            void* value, std::size_t* used) {
  return platform_info(platform, name, size, value, used);
}

}  // extern "C"
