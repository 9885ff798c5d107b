#include "device/opencl/type_probe.hpp"

#include "device/opencl/handle.hpp"
#include "device/opencl/prelude.cl.hpp"
#include "device/opencl/scalar_type.hpp"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <optional>

namespace unimem::detail::opencl {
namespace {

/// The numbers that a typedef may stand for, told apart by their place here, from 1 on.
constexpr std::array<std::string_view, 9> numbers{"uchar", "char",  "ushort", "short", "uint",
                                                  "int",   "ulong", "long",   "float"};
constexpr std::string_view wide_float = "double";  // the place after those, where the device has it

/// Stands before the probes.
constexpr std::string_view is_wide_float = R"(
#ifdef UNIMEM_DOUBLES
#define UNIMEM_IS_DOUBLE(T) __builtin_types_compatible_p(T, double)
#else
#define UNIMEM_IS_DOUBLE(T) 0
#endif
)";

/// A size is told in two parts: Rusticl keeps 16 bits of each number.
constexpr std::size_t part = 32768;

std::string probe_of(std::size_t index, std::string_view type) {
  auto number = fmt::format("1 + {} * UNIMEM_IS_DOUBLE({})", numbers.size() + 1, type);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    number += fmt::format(" + {} * __builtin_types_compatible_p({}, {})", i + 1, type, numbers[i]);
  }
  return fmt::format(
      "__kernel __attribute__((reqd_work_group_size(1 + sizeof({0}) % {1}, {2}, 1 + sizeof({0}) / {1}))) void "
      "unimem_probe_{3}(void) {{}}\n",
      type, part, number, index);
}

ValueType type_from(std::array<std::size_t, 3> const& told) {
  auto const [below, place, parts] = told;
  if (below == 0 || place == 0 || parts == 0) return {};
  if (place == 1) return {ValueType::Number::none, below - 1 + (parts - 1) * part};
  auto const name = place - 2 < numbers.size() ? numbers[place - 2] : wide_float;
  auto const type = find_scalar_type(name);
  return type ? value_type(*type) : ValueType{};
}

/// Nothing where the compiler refuses one of them.
std::optional<std::vector<ValueType>> probe_together(Api const& api, cl_context context, cl_device_id device,
                                                     std::string_view source, std::span<const std::string> names) {
  auto text = with_prelude(source).append(is_wide_float);
  for (std::size_t i = 0; i < names.size(); ++i) text += probe_of(i, names[i]);
  auto const* begin = text.c_str();
  auto const length = text.size();
  cl_int code = CL_SUCCESS;
  ProgramHandle const program{api, api.clCreateProgramWithSource(context, 1, &begin, &length, &code)};
  if (code != CL_SUCCESS || api.clBuildProgram(program.get(), 1, &device, "", nullptr, nullptr) != CL_SUCCESS) {
    return std::nullopt;
  }
  std::vector<ValueType> result(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    KernelHandle const kernel{api, api.clCreateKernel(program.get(), fmt::format("unimem_probe_{}", i).c_str(), &code)};
    std::array<std::size_t, 3> told{};
    if (code == CL_SUCCESS && api.clGetKernelWorkGroupInfo(kernel.get(), device, CL_KERNEL_COMPILE_WORK_GROUP_SIZE,
                                                           sizeof told, told.data(), nullptr) == CL_SUCCESS) {
      result[i] = type_from(told);
    }
  }
  return result;
}

}  // namespace

std::vector<ValueType> probe_types(Api const& api, cl_context context, cl_device_id device, std::string_view source,
                                   std::span<const std::string> names) {
  if (names.empty()) return {};
  if (auto const all = probe_together(api, context, device, source, names)) return *all;
  std::vector<ValueType> result(names.size());  // one that cannot be asked for says nothing of the others
  for (std::size_t i = 0; names.size() > 1 && i < names.size(); ++i) {
    if (auto const one = probe_together(api, context, device, source, names.subspan(i, 1))) result[i] = one->front();
  }
  return result;
}

}  // namespace unimem::detail::opencl
