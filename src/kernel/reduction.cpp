#include <unimem/core/error.hpp>
#include <unimem/device/discovery.hpp>
#include <unimem/kernel/launch.hpp>
#include <unimem/kernel/orchestrator.hpp>
#include <unimem/kernel/reduce.hpp>

#include "kernel/recording.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace unimem::detail {
namespace {

constexpr std::string_view reducing = "reducing a buffer";

/// In the portable form: "unimem_u8", ….
std::string source_name(ValueType type) {
  return "unimem_" + to_string(type);
}

std::size_t count_of(KernelOperand const& operand) {
  return operand.operand.range.size() / operand.value.total_bytes();
}

std::size_t blocks_of(std::size_t count) {
  return (count + reduction_block - 1) / reduction_block;
}

/// How many items make a group there. In the host form a group is one call, whatever its items are.
std::size_t items_on(Device const& device) {
  auto const& info = device.info();
  if (info.runs_host_form) return 1;
  return info.max_group_items == 0 ? reduction_lanes : std::min(reduction_lanes, std::bit_floor(info.max_group_items));
}

/// What the operands lack there.
std::size_t missing_on(Device& device, std::span<KernelOperand const> in) {
  std::size_t bytes = 0;
  for (auto const& each : in) bytes += each.operand.buffer->missing_on(device, each.operand.range);
  return bytes;
}

Queue& queue_of(Queue* queue, Kernel const& kernel, std::span<KernelOperand const> in) {
  if (queue != nullptr) return *queue;
  std::vector<LaunchArgument> arguments;
  for (auto const& each : in) arguments.push_back(launch_argument(each));
  auto* const chosen = choose_device(kernel, arguments).device;
  auto& cpu = device("cpu");
  auto const lacking = missing_on(*chosen, in);
  return (lacking > 0 && missing_on(cpu, in) < lacking ? cpu : *chosen).default_queue();
}

/// One launch: a block of elements becomes one of `out`.
Event launch_blocks(Queue& queue, Kernel const& kernel, std::span<KernelOperand const> in, KernelOperand const& out) {
  auto const count = count_of(in.front());
  std::vector<LaunchArgument> arguments;
  for (auto const& each : in) arguments.push_back(launch_argument(each));
  arguments.push_back(launch_argument(out));
  arguments.push_back(launch_argument(std::uint64_t{count}));
  auto const items = items_on(queue.device());
  return launch_kernel(&queue, kernel, Range{blocks_of(count) * items}.group({items}), arguments);
}

/// What has come of blocks, on the device where it came.
UnifiedBuffer<std::byte> results_on(Queue& queue, KernelOperand const& of, std::size_t bytes) {
  BufferOptions options;
  options.manager = &of.operand.buffer->manager();
  options.device = &queue.device();
  options.name = "reduction";
  return UnifiedBuffer<std::byte>(Shape(bytes), std::move(options));
}

KernelOperand taken_as(KernelOperand operand, ReductionKernels const& kernels) {
  operand.element = kernels.joined_type;
  operand.value = kernels.joined;
  return operand;
}

void check_doubles(Device const& device, ReductionKernels const& kernels, std::span<KernelOperand const> in) {
  auto const is_double = [](ValueType type) {
    return type.number == ValueType::Number::floating && type.bytes == sizeof(double);
  };
  bool const needs_doubles = is_double(kernels.joined) || std::ranges::any_of(in, is_double, &KernelOperand::value);
  if (needs_doubles && !device.info().doubles) {
    throw UnsupportedOperation(std::string(reducing), std::string(device.id()),
                               "its kernels have no 64-bit floating point, in which this is computed");
  }
}

Event reduce_on(Queue& queue, ReductionKernels const& kernels, std::span<KernelOperand const> in,
                KernelOperand const& out) {
  check_doubles(queue.device(), kernels, in);
  auto const* kernel = &kernels.first;
  std::vector<KernelOperand> from(in.begin(), in.end());
  std::vector<UnifiedBuffer<std::byte>> kept;  // until they are read, which launches see to
  for (auto count = blocks_of(count_of(in.front())); count > 1; count = blocks_of(count)) {
    auto& results = kept.emplace_back(results_on(queue, in.front(), count * kernels.joined.total_bytes()));
    static_cast<void>(launch_blocks(queue, *kernel, from, taken_as(write(results), kernels)));
    kernel = &kernels.rest;
    from.assign(1, taken_as(read(results), kernels));
  }
  return launch_blocks(queue, *kernel, from, out);
}

}  // namespace

std::string reduction_source(std::span<ValueType const> elements, ValueType termed, ValueType joined,
                             std::string_view term, std::string_view join) {
  auto const a = source_name(joined);
  std::string buffers, values, begins, here;
  for (std::size_t i = 0; i < elements.size(); ++i) {
    auto const t = source_name(elements[i]);
    auto const name = i == 0 ? "x" : "y";
    auto const comma = i == 0 ? "" : ", ";
    buffers += fmt::format("UNIMEM_CONST_BUFFER({}, {}), ", t, name);
    values += fmt::format("{}{} {}", comma, t, name);
    begins += fmt::format("  UNIMEM_GLOBAL const {0}* {1}_at = UNIMEM_DATA(const {0}, {1}) + begin;\n", t, name);
    here += fmt::format("{}{}_at[i]", comma, name);
  }
  // A line's end behind what was given, which may end with a comment.
  return fmt::format(R"(
UNIMEM_FUNCTION {termed} unimem_reduced_term({values}) {{ return {term}
; }}
UNIMEM_FUNCTION {a} unimem_reduced_join({a} x, {a} y) {{ return {join}
; }}
UNIMEM_KERNEL unimem_reduce({buffers}UNIMEM_BUFFER({a}, joined), unimem_u64 size) {{
  UNIMEM_SHARED {a} lanes[{lanes}];
  const unimem_u64 begin = UNIMEM_GROUP_X * {block};
  const unimem_u32 count = (unimem_u32)(size - begin < {block} ? size - begin : {block});
  const unimem_u32 items = (unimem_u32)UNIMEM_GROUP_SIZE_X;
{begins}
  for (unimem_u32 lane = (unimem_u32)UNIMEM_LOCAL_X; lane < {lanes} && lane < count; lane += items) {{
    unimem_u32 i = lane;
    {a} all = ({a})unimem_reduced_term({here});
    for (i += {lanes}; i < count; i += {lanes}) all = unimem_reduced_join(all, ({a})unimem_reduced_term({here}));
    lanes[lane] = all;
  }}
  for (unimem_u32 step = {lanes} / 2; step > 0; step /= 2) {{
    UNIMEM_BARRIER();
    for (unimem_u32 lane = (unimem_u32)UNIMEM_LOCAL_X; lane < step; lane += items) {{
      if (lane + step < count) lanes[lane] = unimem_reduced_join(lanes[lane], lanes[lane + step]);
    }}
  }}
  if (UNIMEM_LOCAL_X == 0) UNIMEM_DATA({a}, joined)[UNIMEM_GROUP_X] = lanes[0];
}}
)",
                     fmt::arg("a", a), fmt::arg("termed", source_name(termed)), fmt::arg("values", values),
                     fmt::arg("term", term), fmt::arg("join", join), fmt::arg("buffers", buffers),
                     fmt::arg("lanes", reduction_lanes), fmt::arg("block", reduction_block), fmt::arg("begins", begins),
                     fmt::arg("here", here));
}

Kernel kept_reduction(std::string source, std::type_index host, void (*set_host)(Kernel& kernel)) {
  struct Kept {
    std::mutex mutex;
    std::map<std::pair<std::string, std::type_index>, Kernel> kernels;
  };
  static auto& kept = *new Kept;  // never destroyed: threads may reduce while the process ends
  std::lock_guard const lock{kept.mutex};
  auto const [there, is_new] = kept.kernels.try_emplace({std::move(source), host}, "unimem_reduce");
  if (is_new) {
    there->second.source(there->first.first);
    set_host(there->second);
  }
  return there->second;
}

bool is_reduction_of_some(std::span<KernelOperand const> in, bool is_sum) {
  if (Recording::of_this_thread() != nullptr) {
    throw UnsupportedOperation(std::string(reducing), std::string(in.front().operand.buffer->default_device().id()),
                               "this thread captures launches, and the memory of partial results would not stay");
  }
  auto const count = count_of(in.front());
  for (auto const& other : in.subspan(1)) {
    if (count_of(other) != count) throw SizeMismatch(std::string(reducing), count, count_of(other));
  }
  if (count == 0 && !is_sum) throw InvalidArgument("what is reduced", "no elements", "one at least, or a sum");
  return count > 0;
}

Event reduce_into(Queue* queue, ReductionKernels const& kernels, std::span<KernelOperand const> in, KernelOperand out) {
  return reduce_on(queue_of(queue, kernels.first, in), kernels, in, taken_as(out, kernels));
}

void reduce_to_host(Queue* queue, ReductionKernels const& kernels, std::span<KernelOperand const> in,
                    std::span<std::byte> result) {
  auto& on = queue_of(queue, kernels.first, in);
  auto out = results_on(on, in.front(), result.size());
  static_cast<void>(reduce_on(on, kernels, in, taken_as(write(out), kernels)));
  out.copy_to(result);
}

}  // namespace unimem::detail
