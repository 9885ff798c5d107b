#include "device/opencl/opencl_program.hpp"

#include <unimem/core/error.hpp>

#include "device/opencl/code.hpp"
#include "device/opencl/opencl_device.hpp"
#include "device/opencl/prelude.cl.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>

namespace unimem::detail::opencl {
namespace {

enum class Number : std::uint8_t { unsigned_integer, signed_integer, floating };

struct ScalarType {
  std::string_view name;
  std::size_t bytes;
  Number number;
};

/// How compilers spell a parameter's type: typedefs may or may not have been looked through.
constexpr ScalarType scalar_types[] = {
    {"uchar", 1, Number::unsigned_integer},   {"unsigned char", 1, Number::unsigned_integer},
    {"ushort", 2, Number::unsigned_integer},  {"unsigned short", 2, Number::unsigned_integer},
    {"uint", 4, Number::unsigned_integer},    {"unsigned int", 4, Number::unsigned_integer},
    {"ulong", 8, Number::unsigned_integer},   {"unsigned long", 8, Number::unsigned_integer},
    {"unimem_u8", 1, Number::unsigned_integer},  {"unimem_u16", 2, Number::unsigned_integer},
    {"unimem_u32", 4, Number::unsigned_integer}, {"unimem_u64", 8, Number::unsigned_integer},
    {"char", 1, Number::signed_integer},      {"short", 2, Number::signed_integer},
    {"int", 4, Number::signed_integer},       {"long", 8, Number::signed_integer},
    {"unimem_i8", 1, Number::signed_integer}, {"unimem_i16", 2, Number::signed_integer},
    {"unimem_i32", 4, Number::signed_integer}, {"unimem_i64", 8, Number::signed_integer},
    {"half", 2, Number::floating},            {"float", 4, Number::floating},
    {"double", 8, Number::floating},          {"unimem_f32", 4, Number::floating},
    {"unimem_f64", 8, Number::floating},
};

/// The scalar type of this name, null for anything else (vectors, structures, typedefs of the source).
ScalarType const* find_scalar_type(std::string_view name) {
  auto const* const found = std::ranges::find(scalar_types, name, &ScalarType::name);
  return found == std::end(scalar_types) ? nullptr : found;
}

std::string build_log(Api const& api, cl_program program, cl_device_id device) {
  std::size_t size = 0;
  if (api.clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, 0, nullptr, &size) != CL_SUCCESS) return {};
  std::string log(size, '\0');
  if (size != 0) api.clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, size, log.data(), nullptr);
  log.resize(std::min(log.find('\0'), log.size()));
  while (!log.empty() && log.back() == '\n') log.pop_back();
  return log;
}

/// The kernels a program has, as "a, b"; empty if there are none or the driver does not tell.
std::string kernel_names(Api const& api, cl_program program) {
  std::size_t size = 0;
  if (api.clGetProgramInfo(program, CL_PROGRAM_KERNEL_NAMES, 0, nullptr, &size) != CL_SUCCESS || size == 0) return {};
  std::string names(size, '\0');
  api.clGetProgramInfo(program, CL_PROGRAM_KERNEL_NAMES, size, names.data(), nullptr);
  names.resize(std::min(names.find('\0'), names.size()));
  std::string result;
  for (auto const letter : names) result += letter == ';' ? std::string{", "} : std::string{letter};
  return result;
}

std::string as_hex(std::span<const std::byte> bytes) {
  std::string text = "0x";
  for (auto byte = bytes.rbegin(); byte != bytes.rend(); ++byte) text += fmt::format("{:02x}", std::to_integer<int>(*byte));
  return text;
}

/// The same integer in `bytes` bytes, or nothing if it does not fit. Whether the value given is signed is not known: made wider,
/// a set top bit is refused where it would have to be guessed, for a signed parameter; made narrower, it is a sign only if
/// all that is cut off are copies of it.
std::optional<std::uint64_t> convert(std::span<const std::byte> given, std::size_t bytes, bool is_signed) {
  static_assert(std::endian::native == std::endian::little, "the value's first bytes are its lowest");
  std::uint64_t value = 0;
  std::memcpy(&value, given.data(), given.size());
  auto const magnitude_bits = 8 * std::min(bytes, given.size()) - (is_signed ? 1 : 0);
  if (bytes > given.size() && !is_signed) return value;
  auto const rest = value >> magnitude_bits;
  if (rest == 0) return value;
  auto const all_ones = (std::numeric_limits<std::uint64_t>::max() >> (64 - 8 * given.size())) >> magnitude_bits;
  bool const is_narrowed_negative = is_signed && bytes < given.size() && rest == all_ones;
  return is_narrowed_negative ? std::optional{value} : std::nullopt;
}

}  // namespace

OpenClProgram::OpenClProgram(OpenClDevice const& device, ProgramSource const& source)
    : api_(device.api()),
      name_(source.name),
      device_id_(device.id()),
      alignment_(device.info().alignment),
      context_(device.context()) {
  if (source.source.empty()) {
    throw KernelError(name_, fmt::format("has no source form, which {} needs", device_id_));
  }
  std::array<char const*, 2> const texts{prelude.data(), source.source.data()};
  std::array<std::size_t, 2> const lengths{prelude.size(), source.source.size()};
  cl_int code = CL_SUCCESS;
  program_ = {api_, api_.clCreateProgramWithSource(context_, 2, const_cast<char const**>(texts.data()), lengths.data(), &code)};
  check(code, "clCreateProgramWithSource");
  auto* const hardware = device.hardware_id();
  code = api_.clBuildProgram(program_.get(), 1, &hardware, "-cl-kernel-arg-info", nullptr, nullptr);
  if (code != CL_SUCCESS) {
    throw KernelError(name_, fmt::format("does not build on {} ({})", device_id_, code_name(code)),
                      build_log(api_, program_.get(), hardware));
  }
  kernel_ = {api_, api_.clCreateKernel(program_.get(), name_.c_str(), &code)};
  if (code == CL_INVALID_KERNEL_NAME) {
    auto const names = kernel_names(api_, program_.get());
    throw KernelError(name_, names.empty() ? "the source defines no kernel"
                                           : fmt::format("the source has no such entry; it defines {}", names));
  }
  check(code, "clCreateKernel");
  read_parameters();
}

void OpenClProgram::read_parameters() {
  cl_uint count = 0;
  check(api_.clGetKernelInfo(kernel_.get(), CL_KERNEL_NUM_ARGS, sizeof count, &count, nullptr), "clGetKernelInfo");
  parameters_.resize(count);
  for (cl_uint i = 0; i < count; ++i) {
    auto& parameter = parameters_[i];
    cl_kernel_arg_address_qualifier space = 0;
    std::array<char, 256> type{};
    // Optional by the specification: without it a parameter's kind is the driver's to check, as far as it does.
    if (api_.clGetKernelArgInfo(kernel_.get(), i, CL_KERNEL_ARG_ADDRESS_QUALIFIER, sizeof space, &space, nullptr) != CL_SUCCESS ||
        api_.clGetKernelArgInfo(kernel_.get(), i, CL_KERNEL_ARG_TYPE_NAME, type.size() - 1, type.data(), nullptr) != CL_SUCCESS) {
      continue;
    }
    parameter.known = true;
    parameter.is_pointer = space == CL_KERNEL_ARG_ADDRESS_GLOBAL || space == CL_KERNEL_ARG_ADDRESS_CONSTANT;
    parameter.is_local = space == CL_KERNEL_ARG_ADDRESS_LOCAL;
    parameter.type = type.data();
  }
}

bool OpenClProgram::is_portable(std::span<const KernelArgument> arguments) const {
  auto const memory = static_cast<std::size_t>(std::ranges::count(arguments, KernelArgument::Kind::memory, &KernelArgument::kind));
  auto const has = parameters_.size(), plain = arguments.size(), portable = arguments.size() + memory;
  if (has == portable) return true;  // also where there is no memory and the forms are one
  if (has == plain) return false;
  throw KernelError(name_, fmt::format("has {} parameters, but {} arguments need {} (portable form: two for a buffer) or {} "
                                       "(plain OpenCL C)",
                                       has, arguments.size(), portable, plain));
}

std::vector<MemoryHandle> OpenClProgram::windows(std::span<const KernelArgument> arguments) const {
  std::vector<MemoryHandle> result(arguments.size());
  if (is_portable(arguments)) return result;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    auto const& memory = arguments[i].memory;
    bool const is_memory = arguments[i].kind == KernelArgument::Kind::memory && memory.object != 0;
    if (is_memory && memory.offset != 0) result[i] = window(i, memory);
  }
  return result;
}

MemoryHandle OpenClProgram::window(std::size_t index, DeviceMemory memory) const {
  if (memory.offset % alignment_ != 0) {
    throw KernelError(name_, fmt::format("argument {} starts {} bytes into its memory: a plain OpenCL kernel takes memory from "
                                         "multiples of {} bytes on {}; the portable form takes it from anywhere",
                                         index, memory.offset, alignment_, device_id_));
  }
  cl_buffer_region const region{memory.offset, memory.bytes};
  cl_int code = CL_SUCCESS;
  MemoryHandle handle{api_, api_.clCreateSubBuffer(reinterpret_cast<cl_mem>(memory.object), CL_MEM_READ_WRITE,
                                                   CL_BUFFER_CREATE_TYPE_REGION, &region, &code)};
  check(code, "clCreateSubBuffer");
  return handle;
}

cl_int OpenClProgram::enqueue(cl_command_queue queue, Range range, std::span<const KernelArgument> arguments,
                              std::span<const MemoryHandle> windows, cl_event* event) const {
  bool const portable = is_portable(arguments);
  std::lock_guard const lock{mutex_};
  std::size_t parameter = 0;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    auto const& argument = arguments[i];
    check_kind(parameter, i, argument.kind);
    if (argument.kind == KernelArgument::Kind::scalar) {
      set_scalar(parameter++, i, argument);
      continue;
    }
    auto const object = windows[i] ? windows[i].get() : reinterpret_cast<cl_mem>(argument.memory.object);
    set(parameter++, i, sizeof object, argument.memory.object == 0 ? nullptr : &object);
    if (portable) {
      cl_ulong const offset = argument.memory.offset;
      set(parameter++, i, sizeof offset, &offset);
    }
  }
  std::array<std::size_t, 3> const sizes{range.x, range.y, range.z};
  cl_uint const dimensions = range.z > 1 ? 3 : range.y > 1 ? 2 : 1;
  return api_.clEnqueueNDRangeKernel(queue, kernel_.get(), dimensions, nullptr, sizes.data(), nullptr, 0, nullptr, event);
}

void OpenClProgram::check_kind(std::size_t parameter, std::size_t argument, KernelArgument::Kind kind) const {
  auto const& wants = parameters_[parameter];
  bool const is_memory = kind == KernelArgument::Kind::memory;
  if (!wants.known || (wants.is_pointer == is_memory && !wants.is_local)) return;
  throw KernelError(name_, fmt::format("argument {} is {}, but parameter {} is a {}{}", argument,
                                       is_memory ? "a buffer" : "a scalar", parameter, wants.type,
                                       wants.is_local ? " in local memory" : ""));
}

void OpenClProgram::set_scalar(std::size_t parameter, std::size_t argument, KernelArgument const& scalar) const {
  auto const bytes = scalar.scalar_bytes;
  auto const given = std::span{scalar.scalar}.first(bytes);
  auto const* const type = find_scalar_type(parameters_[parameter].type);
  if (type == nullptr || type->bytes == bytes) return set(parameter, argument, bytes, given.data());
  // Not left to the driver: PoCL reads as many bytes as the parameter has, whatever it was given.
  bool const both_integers = type->number != Number::floating && std::has_single_bit(bytes) && bytes <= 8;
  auto const converted =
      both_integers ? convert(given, type->bytes, type->number == Number::signed_integer) : std::nullopt;
  if (!converted) {
    throw KernelError(name_, fmt::format("argument {} is {} ({} bytes), which does not fit parameter {} of type {}", argument,
                                         as_hex(given), bytes, parameter, type->name));
  }
  set(parameter, argument, type->bytes, &*converted);
}

void OpenClProgram::set(std::size_t parameter, std::size_t argument, std::size_t bytes, void const* value) const {
  auto const code = api_.clSetKernelArg(kernel_.get(), static_cast<cl_uint>(parameter), bytes, value);
  if (code == CL_SUCCESS) return;
  throw KernelError(name_, fmt::format("argument {} ({} bytes) does not fit parameter {}{}: clSetKernelArg: {}", argument, bytes,
                                       parameter, parameters_[parameter].known ? " of type " + parameters_[parameter].type : "",
                                       code_name(code)));
}

}  // namespace unimem::detail::opencl
