#pragma once

#include <unimem/core/export.hpp>
#include <unimem/device/detail/value_type.hpp>
#include <unimem/device/device.hpp>
#include <unimem/device/program.hpp>
#include <unimem/device/queue.hpp>
#include <unimem/kernel/kernel.hpp>
#include <unimem/kernel/operand.hpp>

#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <utility>

namespace unimem {

/// One argument of a launch: an operand, or a scalar's bytes with their type.
struct LaunchArgument {
  KernelOperand buffer;  ///< `buffer.operand.buffer` is null for a scalar
  std::array<std::byte, 16> scalar{};
  std::size_t scalar_bytes = 0;
  std::type_info const* scalar_type = nullptr;
  ValueType scalar_value{};  ///< the same for kernels in source form; not known: they check the size alone
};

/// The default queue of the device that the first buffer names; of the default device without buffers.
[[nodiscard]] UNIMEM_API Queue& queue_for(std::span<const LaunchArgument> arguments);

/// Untyped form of `launch`. `queue` null: `queue_for(arguments)`. Throws
/// InvalidArgument for an argument that is neither, or lacks its type.
UNIMEM_API Event launch_kernel(Queue* queue, Kernel const& kernel, Range range,
                               std::span<const LaunchArgument> arguments);

namespace detail {

class Fills;

/// A host program that runs another on copies of its operands, and what says then which bytes that has not written.
struct CheckedProgram {
  std::shared_ptr<Program const> program;  ///< null where nothing is checked
  std::shared_ptr<Fills> fills;

  /// To be called once, by the `submit` of `use_on_device`, before the program is run: what its `write` operands leave
  /// is then reported where it is read.
  UNIMEM_API void begin() const;
};

/// Under UNIMEM_CHECK=2, for host programs that are submitted by `use_on_device` (`launch_kernel` does so itself): a
/// program that runs `program` on copies of its operands between red zones, and reports what it did outside of their
/// intents; to be run over `Range{1}`. Operands of which one writes and which overlap in part are reported at once, and
/// then it runs `program` as it is.
[[nodiscard]] UNIMEM_API CheckedProgram checked_program(std::shared_ptr<Program const> const& program, Device& device,
                                                        std::string_view kernel, Range range,
                                                        std::span<const LaunchArgument> arguments);

template <class A>
LaunchArgument launch_argument(A const& argument) {
  LaunchArgument result;
  if constexpr (std::is_same_v<A, KernelOperand>) {
    result.buffer = argument;
  } else {
    static_assert(std::is_trivially_copyable_v<A> && !std::is_pointer_v<A>,
                  "pass buffers as read(b), write(b) or readwrite(b), everything else by value");
    static_assert(sizeof(A) <= sizeof result.scalar, "a scalar argument has at most 16 bytes");
    std::memcpy(result.scalar.data(), &argument, sizeof argument);
    result.scalar_bytes = sizeof argument;
    result.scalar_type = &typeid(A);
    result.scalar_value = value_type_of<A>();
  }
  return result;
}

template <class... A>
Event launch(Queue* queue, Kernel const& kernel, Range range, A const&... arguments) {
  std::array<LaunchArgument, sizeof...(A)> const list{launch_argument(arguments)...};
  return launch_kernel(queue, kernel, range, list);
}

}  // namespace detail

/// Runs a kernel over `range`, asynchronously, in `queue`'s order: `launch(queue, kernel, Range{n}, read(a),
/// write(b), 2.0f)`. Brings in what is read and lacking, nothing else; what is written is then current on the queue's
/// device alone. Later accesses to these buffers, from the host or any queue, wait for it by themselves.
///
/// Throws KernelError when the kernel lacks the form the device needs, does not build, or was given other arguments
/// than it takes: another number of them, elements or scalars of another type, `read` of what it may write, or `write`
/// of what it cannot (docs/kernels.md, "Arguments"); InvalidArgument for a kernel or queue that was moved from; and
/// whatever making the buffers ready can throw. Nothing was written then. An error of the kernel itself sticks to the
/// returned event, and surfaces at the next access to a buffer it touched.
template <class... A>
Event launch(Queue& queue, Kernel const& kernel, Range range, A const&... arguments) {
  return detail::launch(&queue, kernel, range, arguments...);
}

/// The same on the default queue of the device that the first buffer names in its options.
template <class... A>
Event launch(Kernel const& kernel, Range range, A const&... arguments) {
  return detail::launch(nullptr, kernel, range, arguments...);
}

}  // namespace unimem
