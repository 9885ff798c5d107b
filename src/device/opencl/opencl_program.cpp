#include "device/opencl/opencl_program.hpp"

#include <unimem/core/error.hpp>

#include "device/group_words.hpp"
#include "device/opencl/code.hpp"
#include "device/opencl/opencl_device.hpp"
#include "device/opencl/scalar_type.hpp"
#include "device/opencl/shared_probe.hpp"
#include "device/source_groups.hpp"
#include "device/source_kernels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

namespace unimem::detail::opencl {
namespace {

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

}  // namespace

OpenClProgram::OpenClProgram(OpenClDevice& device, ProgramSource const& source)
    : api_(device.api()),
      name_(source.name),
      device_id_(device.id()),
      compiler_(device.compiler()),
      alignment_(device.info().alignment),
      context_(device.context()) {
  if (source.source.empty()) {
    throw KernelError(name_, fmt::format("has no source form, which {} needs", device_id_));
  }
  auto* const hardware = device.native_id();
  program_ = device.programs().get(device, source);
  cl_int code = CL_SUCCESS;
  kernel_ = {api_, api_.clCreateKernel(program_->get(), name_.c_str(), &code)};
  if (code == CL_INVALID_KERNEL_NAME) {
    auto const names = kernel_names(api_, program_->get());
    throw KernelError(name_, names.empty() ? "the source defines no kernel"
                                           : fmt::format("the source has no such entry; it defines {}", names));
  }
  check(code, "clCreateKernel");
  parameters_ = read_parameters(api_, context_, hardware, kernel_.get(), source);
  // Without a buffer the two forms are one but for their groups.
  portable_ = std::ranges::count(parameters_.with_offset, true) != 0 || kernels_in(source.source).is_portable(name_);
  read_groups(hardware);
  if (portable_ && fixed_group_[0] == 0) refuse_groups(source.source);
  asks_group_by_ = find_word(source.source, name_, group_words);
  if (!asks_group_by_.empty()) refuse_divergent_barriers(source.source, name_);
  asks_range_ = !find_word(source.source, name_, range_words).empty();
  if (device.is_pocl()) order_ = PoclRunOrder::of(api_, source.source, name_);
}

OpenClProgram::~OpenClProgram() {
  if (order_) order_->drop_ended();
}

void OpenClProgram::read_groups(cl_device_id device) {
  check(api_.clGetKernelWorkGroupInfo(kernel_.get(), device, CL_KERNEL_COMPILE_WORK_GROUP_SIZE, sizeof fixed_group_,
                                      fixed_group_.data(), nullptr),
        "clGetKernelWorkGroupInfo");
  std::size_t most = 0;
  check(api_.clGetKernelWorkGroupInfo(kernel_.get(), device, CL_KERNEL_WORK_GROUP_SIZE, sizeof most, &most, nullptr),
        "clGetKernelWorkGroupInfo");
  constexpr std::size_t enough = 256;  // fills a GPU's compute unit, and amortizes what a group costs a CPU
  group_ = std::min(enough, std::bit_floor(most));
  most_items_ = most;
  check(
      api_.clGetDeviceInfo(device, CL_DEVICE_MAX_WORK_ITEM_SIZES, sizeof group_limits_, group_limits_.data(), nullptr),
      "clGetDeviceInfo");
  cl_ulong shared = 0, has = 0;
  check(api_.clGetKernelWorkGroupInfo(kernel_.get(), device, CL_KERNEL_LOCAL_MEM_SIZE, sizeof shared, &shared, nullptr),
        "clGetKernelWorkGroupInfo");
  check(api_.clGetDeviceInfo(device, CL_DEVICE_LOCAL_MEM_SIZE, sizeof has, &has, nullptr), "clGetDeviceInfo");
  if (shared > has) shared /= times_shared_is_counted(api_, context_, device);
  if (shared > has) {
    throw KernelError(
        name_, fmt::format("needs {} bytes of memory shared by a group, and {} has {}", shared, device_id_, has));
  }
}

void OpenClProgram::check_range(Range range) const {
  bool const is_fixed = fixed_group_[0] != 0;
  auto const [x, y, z] = range.group_size;
  std::array const items{range.x, range.y, range.z};
  for (std::size_t i = 0; is_fixed && i < items.size(); ++i) {
    if (items[i] % fixed_group_[i] == 0) continue;
    throw KernelError(name_,
                      fmt::format("states groups of {} × {} × {}, and a range of {} × {} × {} is not whole groups",
                                  fixed_group_[0], fixed_group_[1], fixed_group_[2], items[0], items[1], items[2]));
  }
  if (!range.has_group()) {
    if (asks_group_by_.empty() || is_fixed) return;
    throw_without_group(name_, asks_group_by_);
  }
  std::array const group{x, y, z};
  if (is_fixed && group != fixed_group_) {
    throw KernelError(name_, fmt::format("states groups of {} × {} × {}, and {} × {} × {} are asked for",
                                         fixed_group_[0], fixed_group_[1], fixed_group_[2], x, y, z));
  }
  bool const too_long = x > group_limits_[0] || y > group_limits_[1] || z > group_limits_[2];
  if (too_long || range.group_size.items() > most_items_) {
    throw KernelError(
        name_, fmt::format("groups of {} × {} × {} are larger than {} can make them for it: {} items, {} × "
                           "{} × {} at the most",
                           x, y, z, device_id_, most_items_, group_limits_[0], group_limits_[1], group_limits_[2]));
  }
}

std::array<std::size_t, 3> OpenClProgram::group_of(Range range) const noexcept {
  std::array<std::size_t, 3> const items{range.x, range.y, range.z};
  std::array<std::size_t, 3> group{1, 1, 1};
  auto left = std::max<std::size_t>(group_, 1);
  for (std::size_t i = 0; i < group.size(); ++i) {
    auto size = std::max<std::size_t>(1, std::min({left, items[i], group_limits_[i]}));
    while (items[i] % size != 0) --size;
    group[i] = size;
    left /= size;
  }
  return group;
}

void OpenClProgram::refuse_groups(std::string_view source) const {
  constexpr std::array<std::string_view, 20> words{"get_local_id",
                                                   "get_local_size",
                                                   "get_group_id",
                                                   "get_num_groups",
                                                   "get_global_size",
                                                   "get_global_offset",
                                                   "get_enqueued_local_size",
                                                   "get_local_linear_id",
                                                   "get_global_linear_id",
                                                   "barrier",
                                                   "work_group_barrier",
                                                   "__local",
                                                   "local",
                                                   "work_group_all",
                                                   "work_group_any",
                                                   "work_group_broadcast",
                                                   "sub_group_barrier",
                                                   "get_sub_group_id",
                                                   "async_work_group_copy",
                                                   "wait_group_events"};
  auto const word = find_word(source, name_, words);
  if (word.empty()) return;
  throw KernelError(name_, fmt::format("uses {}, and states no size of its groups: the portable form runs in groups of "
                                       "the library's choice. Use the portable names (UNIMEM_LOCAL_X, UNIMEM_SHARED, "
                                       "UNIMEM_BARRIER), add __attribute__((reqd_work_group_size(x, y, z))), or write "
                                       "it as plain OpenCL C",
                                       word));
}

void OpenClProgram::check_count(std::span<const KernelArgument> arguments) const {
  if (arguments.size() == parameters_.takes.size()) return;
  throw KernelError(
      name_, fmt::format("has {} parameters, and {} arguments were given", parameters_.takes.size(), arguments.size()));
}

std::vector<MemoryHandle> OpenClProgram::windows(std::span<const KernelArgument> arguments) const {
  std::vector<MemoryHandle> result(arguments.size());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    auto const& memory = arguments[i].memory;
    bool const is_memory = arguments[i].kind == KernelArgument::Kind::memory && memory.object != 0;
    if (is_memory && memory.offset != 0 && !parameters_.with_offset[i]) result[i] = window(i, memory);
  }
  return result;
}

MemoryHandle OpenClProgram::window(std::size_t index, DeviceMemory memory) const {
  if (memory.offset % alignment_ != 0) {
    throw KernelError(
        name_, fmt::format("argument {} starts {} bytes into its memory: a plain OpenCL kernel takes memory from "
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

void OpenClProgram::enqueue(Command& command, cl_command_queue queue, Range range,
                            std::span<const KernelArgument> arguments) const {
  check_range(range);
  check_count(arguments);
  command.windows = windows(arguments);
  std::lock_guard const lock{mutex_};
  set_arguments(kernel_.get(), arguments, command.windows);
  enqueue(command, queue, range, kernel_.get());
}

OpenClProgram::ReadyKernel OpenClProgram::ready(Range range, std::span<const KernelArgument> arguments) const {
  check_range(range);
  check_count(arguments);
  cl_int code = CL_SUCCESS;
  ReadyKernel made{{api_, api_.clCreateKernel(program_->get(), name_.c_str(), &code)}, windows(arguments)};
  check(code, "clCreateKernel");
  set_arguments(made.kernel.get(), arguments, made.windows);
  return made;
}

void OpenClProgram::enqueue(Command& command, cl_command_queue queue, Range range, ReadyKernel const& ready) const {
  std::lock_guard const lock{mutex_};
  enqueue(command, queue, range, ready.kernel.get());
}

void OpenClProgram::enqueue(Command& command, cl_command_queue queue, Range range, cl_kernel kernel) const {
  bool const is_fixed = fixed_group_[0] != 0;
  bool const given = range.has_group();
  if (!portable_ || is_fixed || given || asks_range_ || group_ == 0 || range.y > 1 || range.z > 1) {
    std::array const items{range.x, range.y, range.z};
    cl_uint const dimensions = range.z > 1 ? 3 : range.y > 1 ? 2 : 1;
    // The order must know the groups; elsewhere the driver knows best.
    auto const group = is_fixed ? fixed_group_
                       : given  ? std::array{range.group_size.x, range.group_size.y, range.group_size.z}
                       : order_ ? group_of(range)
                                : std::array<std::size_t, 3>{};
    return add(command, queue, kernel, dimensions, nullptr, items.data(), group[0] != 0 ? group.data() : nullptr);
  }
  // Groups must divide the range, and a driver left to choose takes groups of one for a prime: sixty times slower on
  // PoCL, which also compiles anew for each size it chooses. So: whole groups, then what is left one by one. A portable
  // kernel cannot tell, because it knows its item and not its range.
  std::size_t const one = 1, left = range.x % group_, full = range.x - left;
  // Of many items a driver makes better groups itself, unless the order must know them; of few, choosing costs it more
  // than that gains (Intel's: 0.6 µs).
  constexpr std::size_t many = std::size_t{1} << 16;
  bool const drivers_choice = !order_ && full >= many;
  if (full != 0) add(command, queue, kernel, 1, nullptr, &full, drivers_choice ? nullptr : &group_);
  if (left != 0) add(command, queue, kernel, 1, &full, &left, &one);
}

void OpenClProgram::add(Command& command, cl_command_queue queue, cl_kernel kernel, cl_uint dimensions,
                        std::size_t const* from, std::size_t const* items, std::size_t const* group) const {
  command.add("clEnqueueNDRangeKernel", [&](cl_event* event) {
    auto const call = [&](cl_uint count, cl_event const* awaited) {
      return api_.clEnqueueNDRangeKernel(queue, kernel, dimensions, from, items, group, count, awaited, event);
    };
    if (!order_) return call(0, nullptr);
    PoclRunOrder::Run run{context_, queue};
    std::copy_n(items, dimensions, run.items.begin());
    std::copy_n(group, dimensions, run.local.begin());
    run.from_zero = from == nullptr || std::all_of(from, from + dimensions, [](std::size_t at) { return at == 0; });
    return order_->enqueue(run, event, call);
  });
}

void OpenClProgram::set_arguments(cl_kernel kernel, std::span<const KernelArgument> arguments,
                                  std::span<const MemoryHandle> windows) const {
  cl_uint index = 0;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    auto const& argument = arguments[i];
    check_kind(i, argument.kind);
    if (argument.kind == KernelArgument::Kind::scalar) {
      set_scalar(kernel, index++, i, argument);
      continue;
    }
    auto* const object = windows[i] ? windows[i].get() : reinterpret_cast<cl_mem>(argument.memory.object);
    set(kernel, index++, i, sizeof(cl_mem), argument.memory.object == 0 ? nullptr : static_cast<void const*>(&object));
    if (parameters_.with_offset[i]) {
      cl_ulong const offset = argument.memory.offset;
      set(kernel, index++, i, sizeof offset, &offset);
    }
  }
}

void OpenClProgram::check_kind(std::size_t argument, KernelArgument::Kind kind) const {
  using Kind = ProgramParameter::Kind;
  auto const& wants = parameters_.takes[argument];
  bool const is_memory = kind == KernelArgument::Kind::memory;
  if (wants.kind == Kind::unknown || wants.kind == (is_memory ? Kind::buffer : Kind::scalar)) return;
  throw KernelError(name_, fmt::format("argument {} is {}, but parameter {} is a {}", argument,
                                       is_memory ? "a buffer" : "a scalar", argument, wants.type));
}

void OpenClProgram::set_scalar(cl_kernel kernel, cl_uint index, std::size_t argument,
                               KernelArgument const& scalar) const {
  auto const bytes = scalar.scalar_bytes;
  auto const given = std::span{scalar.scalar}.first(bytes);
  auto const type = find_scalar_type(parameters_.takes[argument].type);
  if (!type || type->bytes == bytes) return set(kernel, index, argument, bytes, given.data());
  // Not left to the driver: PoCL reads as many bytes as the parameter has, whatever it was given.
  auto const converted = convert_scalar(given, *type);
  if (!converted) {
    throw KernelError(name_, fmt::format("argument {} is {} ({} bytes), which does not fit parameter {} of type {}",
                                         argument, as_hex(given), bytes, argument, type->name));
  }
  set(kernel, index, argument, type->bytes, &*converted);
}

void OpenClProgram::set(cl_kernel kernel, cl_uint index, std::size_t argument, std::size_t bytes,
                        void const* value) const {
  auto const code = api_.clSetKernelArg(kernel, index, bytes, value);
  if (code == CL_SUCCESS) return;
  auto const& type = parameters_.takes[argument].type;
  throw KernelError(
      name_, fmt::format("argument {} ({} bytes) does not fit parameter {}{}: clSetKernelArg: {}", argument, bytes,
                         argument, type.empty() ? "" : " of type " + type, code_name(code)));
}

OpenClProgram const& own_program(OpenClDevice const& device, Program const* program) {
  auto const* const ours = dynamic_cast<OpenClProgram const*>(program);
  if (ours != nullptr && ours->context() == device.context()) return *ours;
  throw KernelError(ours == nullptr ? "program" : ours->name(), fmt::format("was not made by {}", device.id()));
}

}  // namespace unimem::detail::opencl
