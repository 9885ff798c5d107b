#include "device/opencl/parameters.hpp"

#include <unimem/core/error.hpp>

#include "device/opencl/code.hpp"
#include "device/opencl/prelude.cl.hpp"
#include "device/opencl/scalar_type.hpp"
#include "device/opencl/type_probe.hpp"
#include "device/source_kernels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <utility>

namespace unimem::detail::opencl {
namespace {

using Kind = ProgramParameter::Kind;

/// One parameter as the driver counts them.
struct Told {
  cl_kernel_arg_address_qualifier space = 0;
  cl_kernel_arg_type_qualifier qualifiers = 0;
  std::string type;
  std::string name;
};

/// Nothing where the driver keeps no argument information, which the specification leaves to it.
std::optional<Told> ask(Api const& api, cl_kernel kernel, cl_uint index) {
  Told told;
  std::array<char, 256> type{}, name{};
  auto const get = [&](cl_kernel_arg_info what, std::size_t bytes, void* to) {
    return api.clGetKernelArgInfo(kernel, index, what, bytes, to, nullptr) == CL_SUCCESS;
  };
  if (!get(CL_KERNEL_ARG_ADDRESS_QUALIFIER, sizeof told.space, &told.space) ||
      !get(CL_KERNEL_ARG_TYPE_QUALIFIER, sizeof told.qualifiers, &told.qualifiers) ||
      !get(CL_KERNEL_ARG_TYPE_NAME, type.size() - 1, type.data()) ||
      !get(CL_KERNEL_ARG_NAME, name.size() - 1, name.data())) {
    return std::nullopt;
  }
  told.type = type.data();
  told.name = name.data();
  return told;
}

/// "const float *" → "float": the type that is pointed to, or the scalar's.
std::string bare(std::string type) {
  for (std::string_view const word : {"const ", "volatile ", "restrict ", "__global ", "__constant ", "__private "}) {
    for (auto at = type.find(word); at != std::string::npos; at = type.find(word)) type.erase(at, word.size());
  }
  while (!type.empty() && (type.back() == '*' || type.back() == ' ')) type.pop_back();
  return type;
}

/// Objects of OpenCL's own, which drivers list as if they were buffers or scalars.
bool is_opaque(std::string_view type, cl_kernel_arg_type_qualifier qualifiers) {
  return (type.starts_with("image") && type.ends_with("_t")) || type == "sampler_t" || type == "event_t" ||
         type == "queue_t" || type == "reserve_id_t" || (qualifiers & CL_KERNEL_ARG_TYPE_PIPE) != 0;
}

ProgramParameter parameter_from(Told const& told) {
  ProgramParameter parameter;
  parameter.type = told.type;
  parameter.name = told.name;
  bool const is_constant = told.space == CL_KERNEL_ARG_ADDRESS_CONSTANT;
  if (told.space == CL_KERNEL_ARG_ADDRESS_LOCAL || is_opaque(bare(told.type), told.qualifiers)) {
    parameter.kind = Kind::other;
    if (told.space == CL_KERNEL_ARG_ADDRESS_LOCAL) parameter.type += " in local memory";
  } else if (is_constant || told.space == CL_KERNEL_ARG_ADDRESS_GLOBAL) {
    parameter.kind = Kind::buffer;
    parameter.is_const = is_constant || (told.qualifiers & CL_KERNEL_ARG_TYPE_CONST) != 0;
  } else {
    parameter.kind = Kind::scalar;
  }
  return parameter;
}

/// The two parameters that the prelude makes of a buffer, `second` being behind `first`.
bool are_one(Told const& first, Told const& second) {
  return first.name.ends_with(object_ending) && second.name.ends_with(offset_ending) &&
         first.name.substr(0, first.name.size() - object_ending.size()) ==
             second.name.substr(0, second.name.size() - offset_ending.size());
}

Parameters from_driver(std::vector<Told> const& told) {
  Parameters result;
  for (std::size_t i = 0; i < told.size(); ++i) {
    auto& parameter = result.takes.emplace_back(parameter_from(told[i]));
    bool const with_offset = i + 1 < told.size() && are_one(told[i], told[i + 1]);
    if (with_offset) {
      parameter.name.resize(parameter.name.size() - object_ending.size());
      ++i;
    }
    result.with_offset.push_back(with_offset);
  }
  return result;
}

Parameters from_text(std::vector<TextParameter> const& parameters) {
  Parameters result;
  for (auto const& [is_buffer, is_const, type, name] : parameters) {
    result.takes.push_back(
        {is_buffer ? Kind::buffer : Kind::scalar, {}, is_const, type + (is_buffer ? "*" : ""), name});
    result.with_offset.push_back(is_buffer);
  }
  return result;
}

/// What no table names is asked of the compiler.
void find_values(Parameters& parameters, Api const& api, cl_context context, cl_device_id device,
                 ProgramSource const& source) {
  std::vector<std::string> names;
  std::vector<ProgramParameter*> unknown;
  for (auto& parameter : parameters.takes) {
    if (parameter.kind != Kind::buffer && parameter.kind != Kind::scalar) continue;
    auto type = bare(parameter.type);
    parameter.value = find_value_type(type);
    if (parameter.value.is_known() || type == "void") continue;
    unknown.push_back(&parameter);
    names.push_back(std::move(type));
  }
  auto const found = probe_types(api, context, device, source.source, names);
  for (std::size_t i = 0; i < unknown.size(); ++i) {
    unknown[i]->value = found[i];
    // Of a buffer too little may be known, as of one of void. A scalar is copied, and PoCL never looks how much of it.
    if (found[i].is_known() || unknown[i]->kind != Kind::scalar) continue;
    throw KernelError(source.name,
                      fmt::format("parameter '{}' ({}) is of a type that the compiler tells nothing of, so "
                                  "no argument can be checked against it",
                                  unknown[i]->name, unknown[i]->type));
  }
}

}  // namespace

Parameters read_parameters(Api const& api, cl_context context, cl_device_id device, cl_kernel kernel,
                           ProgramSource const& source) {
  cl_uint count = 0;
  check(api.clGetKernelInfo(kernel, CL_KERNEL_NUM_ARGS, sizeof count, &count, nullptr), "clGetKernelInfo");
  std::vector<Told> told;
  for (cl_uint i = 0; i < count; ++i) {
    auto one = ask(api, kernel, i);
    if (!one) break;
    told.push_back(std::move(*one));
  }
  Parameters result;
  if (told.size() == count) {
    result = from_driver(told);
  } else if (auto const text = portable_parameters(source.source, source.name)) {
    result = from_text(*text);
    auto const buffers = static_cast<std::size_t>(std::ranges::count(result.with_offset, true));
    if (result.takes.size() + buffers != count) {
      throw KernelError(source.name, "the driver tells nothing of its parameters, and the source's text not enough");
    }
  } else {
    result.takes.resize(count);
    result.with_offset.resize(count, false);
  }
  result.count = count;
  find_values(result, api, context, device, source);
  return result;
}

}  // namespace unimem::detail::opencl
