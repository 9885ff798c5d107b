#include "device/cuda/cuda_program.hpp"

#include <unimem/core/error.hpp>

#include "device/group_words.hpp"
#include "device/process_end.hpp"
#include "device/scalar_type.hpp"
#include "device/source_groups.hpp"
#include "device/source_kernels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace unimem::detail::cuda {
namespace {

constexpr std::size_t most_parameters = 64;  // the prelude refuses more

/// The prelude's `unimem_range`.
struct PassedRange {
  std::uint64_t x, y, z;
};

ScalarType scalar_type(Parameter const& parameter) {
  using Number = ScalarType::Number;
  auto const number = parameter.kind == Parameter::Kind::unsigned_integer ? Number::unsigned_integer
                      : parameter.kind == Parameter::Kind::signed_integer ? Number::signed_integer
                                                                          : Number::floating;
  return {type_name(parameter), parameter.bytes, number};
}

/// "of type unimem_u32", or how large it is.
std::string described(Parameter const& parameter) {
  auto const name = type_name(parameter);
  if (!name.empty()) return fmt::format("of type {}", name);
  return parameter.bytes < Parameter::largest ? fmt::format("of {} bytes", parameter.bytes) : "of 64 KiB or more";
}

/// As launches are checked against them, with the names that a portable kernel's text has for them.
std::vector<ProgramParameter> told(std::vector<Parameter> const& parameters, ProgramSource const& source) {
  auto const text = portable_parameters(source.source, source.name);
  bool const has_names = text && text->size() == parameters.size();
  std::vector<ProgramParameter> result(parameters.size());
  for (std::size_t i = 0; i < result.size(); ++i) {
    auto const& parameter = parameters[i];
    bool const is_buffer = parameter.kind == Parameter::Kind::buffer;
    auto& one = result[i];
    one.kind = is_buffer ? ProgramParameter::Kind::buffer : ProgramParameter::Kind::scalar;
    one.value = is_buffer ? parameter.element : value_of(parameter);
    one.is_const = parameter.is_const;
    if (!has_names) continue;
    one.name = (*text)[i].name;
    one.type = (*text)[i].type + (is_buffer ? "*" : "");
  }
  return result;
}

/// By which word it asks for its group. One of the plain form has no other range than that of its blocks.
std::string asked_by(ProgramSource const& source, bool portable) {
  auto word = find_word(source.source, source.name, group_words);
  if (!word.empty()) refuse_divergent_barriers(source.source, source.name);
  return word.empty() && !portable ? find_word(source.source, source.name, range_words) : word;
}

}  // namespace

CudaProgram::CudaProgram(ContextRef context, KernelCompiler const& compiler, ProgramSource const& source)
    : context_(std::move(context)),
      name_(source.name),
      kernel_(compiler.compile(source, context_.architecture, context_.device_id)),
      parameters_(told(kernel_.parameters, source)),
      asks_group_by_(asked_by(source, kernel_.portable)) {
  CurrentContext const current{context_};
  try {
    load();
  } catch (...) {
    if (module_ != nullptr) static_cast<void>(context_.driver.cuModuleUnload(module_));
    throw;
  }
}

void CudaProgram::load() {
  auto const& driver = context_.driver;
  auto const code = driver.cuModuleLoadData(&module_, kernel_.image.c_str());
  if (code != Result::success) {
    module_ = nullptr;
    if (is_fatal(code) || code == Result::out_of_memory) check(driver, code, "cuModuleLoadData");
    throw KernelError(name_, fmt::format("the driver of {} does not load what was compiled: cuModuleLoadData: {}",
                                         context_.device_id, code_name(driver, code)));
  }
  check(driver, driver.cuModuleGetFunction(&function_, module_, kernel_.entry.c_str()), "cuModuleGetFunction");
  int grid = 0, block = 0;
  check(driver, driver.cuOccupancyMaxPotentialBlockSize(&grid, &block, function_, nullptr, 0, 0),
        "cuOccupancyMaxPotentialBlockSize");
  occupancy_ = {static_cast<unsigned>(std::max(block, 1)), static_cast<unsigned>(std::max(grid, 1))};
  int most = 0;
  check(driver, driver.cuFuncGetAttribute(&most, FunctionAttribute::max_threads_per_block, function_),
        "cuFuncGetAttribute");
  most_threads_ = static_cast<std::size_t>(std::max(most, 1));
  kernel_.image = std::string{};  // the driver has it now
}

CudaProgram::~CudaProgram() {
  if (driver_gone()) return;
  try {
    CurrentContext const current{context_};
    static_cast<void>(context_.driver.cuModuleUnload(module_));
  } catch (DeviceError const&) {
    return;  // the context is gone, and the module with it
  }
}

std::optional<std::uint64_t> CudaProgram::passed(std::size_t index, KernelArgument const& argument) const {
  auto const& parameter = kernel_.parameters[index];
  bool const is_buffer = argument.kind == KernelArgument::Kind::memory;
  if (is_buffer != (parameter.kind == Parameter::Kind::buffer)) {
    throw KernelError(name_, is_buffer
                                 ? fmt::format("argument {} is a buffer, but parameter {} is a scalar {}", index, index,
                                               described(parameter))
                                 : fmt::format("argument {} is a scalar, but parameter {} is a buffer", index, index));
  }
  if (is_buffer) return argument.memory.object == 0 ? 0 : argument.memory.object + argument.memory.offset;
  if (argument.scalar_bytes == parameter.bytes) return std::nullopt;
  auto const given = std::span{argument.scalar}.first(argument.scalar_bytes);
  auto const converted = convert_scalar(given, scalar_type(parameter));
  if (!converted) {
    throw KernelError(name_, fmt::format("argument {} is {} ({} bytes), which does not fit parameter {} {}", index,
                                         as_hex(given), given.size(), index, described(parameter)));
  }
  return converted;
}

void CudaProgram::check_range(Range range) const {
  if (!range.has_group()) {
    if (asks_group_by_.empty()) return;
    throw_without_group(name_, asks_group_by_);
  }
  if (!can_be_block(range.group_size, most_threads_)) {
    auto const [x, y, z] = range.group_size;
    throw KernelError(name_,
                      fmt::format("groups of {} × {} × {} are larger than {} can make them for it: {} items, 1024 × "
                                  "1024 × 64 at the most",
                                  x, y, z, context_.device_id, most_threads_));
  }
  if (range.items() != 0) static_cast<void>(shape_for(range));
}

LaunchShape CudaProgram::shape_for(Range range) const {
  // To a portable kernel that does not ask for its group, a column of threads would be the other way of dealing.
  bool const as_given = range.has_group() && (!kernel_.portable || !asks_group_by_.empty() || range.group_size.x > 1);
  if (kernel_.portable && !as_given) return portable_shape(range, occupancy_);
  if (auto const shape = as_given ? group_shape(range) : plain_shape(range, occupancy_)) return *shape;
  throw KernelError(name_, fmt::format("a range of {} × {} × {} items is larger than a grid of blocks can be; the "
                                       "portable form without groups has no such limit",
                                       range.x, range.y, range.z));
}

void CudaProgram::check_count(std::size_t arguments) const {
  if (arguments == kernel_.parameters.size()) return;
  throw KernelError(
      name_, fmt::format("has {} parameters, and {} arguments were given", kernel_.parameters.size(), arguments));
}

void CudaProgram::check_fit(Range range, std::span<const KernelArgument> arguments) const {
  check_count(arguments.size());
  for (std::size_t i = 0; i < arguments.size(); ++i) static_cast<void>(passed(i, arguments[i]));
  if (range.items() != 0) static_cast<void>(shape_for(range));
}

void CudaProgram::launch(Stream stream, Range range, std::span<const KernelArgument> arguments) const {
  check_count(arguments.size());
  PassedRange passed_range{range.x, range.y, range.z};
  std::array<std::uint64_t, most_parameters> values;  // NOLINT(*-member-init): written before it is read
  std::array<void*, most_parameters + 1> parameters;  // NOLINT(*-member-init): written before it is read
  std::size_t count = 0;
  if (kernel_.portable) parameters[count++] = &passed_range;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    auto const value = passed(i, arguments[i]);
    values[i] = value.value_or(0);
    // The driver's parameters are not const, and it only reads them.
    parameters[count++] = value ? static_cast<void*>(&values[i]) : const_cast<std::byte*>(arguments[i].scalar.data());
  }
  check_range(range);
  if (range.items() == 0) return;
  auto const shape = shape_for(range);
  auto const& [grid, block, shared_bytes] = shape;
  auto const& driver = context_.driver;
  check(driver,
        driver.cuLaunchKernel(function_, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared_bytes, stream,
                              parameters.data(), nullptr),
        "cuLaunchKernel");
}

}  // namespace unimem::detail::cuda
