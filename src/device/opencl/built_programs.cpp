#include "device/opencl/built_programs.hpp"

#include <unimem/core/error.hpp>

#include "device/fast_math.hpp"
#include "device/opencl/code.hpp"
#include "device/opencl/opencl_device.hpp"
#include "device/opencl/prelude.cl.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace unimem::detail::opencl {
namespace {

std::string build_log(Api const& api, cl_program program, cl_device_id device) {
  std::size_t size = 0;
  if (api.clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, 0, nullptr, &size) != CL_SUCCESS) return {};
  std::string log(size, '\0');
  if (size != 0) api.clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, size, log.data(), nullptr);
  log.resize(std::min(log.find('\0'), log.size()));
  while (!log.empty() && log.back() == '\n') log.pop_back();
  return log;
}

ProgramHandle compile(OpenClDevice const& device, ProgramSource const& source) {
  auto const& api = device.api();
  auto const whole = with_prelude(source.source, device.info().is_gpu);
  auto const* text = whole.c_str();
  auto const length = whole.size();
  cl_int code = CL_SUCCESS;
  ProgramHandle program{api, api.clCreateProgramWithSource(device.context(), 1, &text, &length, &code)};
  check(code, "clCreateProgramWithSource");
  auto* const hardware = device.native_id();
  auto const* const options =
      asks_fast_math(source.source) ? "-cl-kernel-arg-info -cl-fast-relaxed-math" : "-cl-kernel-arg-info";
  code = api.clBuildProgram(program.get(), 1, &hardware, options, nullptr, nullptr);
  if (code != CL_SUCCESS) {
    throw KernelError(source.name, fmt::format("does not build on {} ({})", device.id(), code_name(code)),
                      build_log(api, program.get(), hardware));
  }
  return program;
}

}  // namespace

std::shared_ptr<ProgramHandle const> BuiltPrograms::get(OpenClDevice const& device, ProgramSource const& source) {
  auto& sources = sources_.get();
  auto const program = [&] {
    std::lock_guard const lock{sources.mutex};
    std::erase_if(sources.by_text, [](auto const& entry) { return entry.second.expired(); });
    auto& known = sources.by_text[source.source];
    auto there = known.lock();
    if (!there) known = there = std::make_shared<Lazy<ProgramHandle>>();
    return there;
  }();
  auto& handle = program->get([&] { return std::make_unique<ProgramHandle>(compile(device, source)); });
  return {program, &handle};
}

}  // namespace unimem::detail::opencl
