#pragma once

#include <unimem/core/export.hpp>
#include <unimem/device/memory.hpp>
#include <unimem/device/queue.hpp>
#include <unimem/kernel/detail/host_form.hpp>
#include <unimem/kernel/operand.hpp>

#include <array>
#include <cstddef>
#include <functional>
#include <span>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>

namespace unimem {

/// How the user's own code takes one buffer.
struct NativeParameter {
  bool is_pointer = false;               ///< an address on the device; else DeviceMemory, an object and an offset
  std::type_info const* type = nullptr;  ///< of a pointer: what it points to, without const
  std::size_t alignment = 1;
  bool is_mutable = false;  ///< the code may write through it
};

/// Untyped form of `with_native`: `submit` gets the driver's queue and, for each operand, its address, or its memory
/// where the parameter takes that.
UNIMEM_API Event
run_native(Queue& queue, std::span<const KernelOperand> operands, std::span<const NativeParameter> parameters,
           std::function<void(void*, std::span<const DeviceMemory>, std::span<void* const>)> const& submit);

namespace detail {

template <class P>
constexpr bool is_native_parameter = std::is_pointer_v<P> || std::is_same_v<P, DeviceMemory>;

template <class P>
NativeParameter native_parameter() {
  if constexpr (std::is_pointer_v<P>) {
    using Element = std::remove_pointer_t<P>;
    using Plain = std::conditional_t<std::is_void_v<Element>, std::byte, std::remove_const_t<Element>>;
    return {true, &typeid(Plain), alignof(Plain), !std::is_const_v<Element>};
  } else {
    return {false, nullptr, 1, true};
  }
}

template <class P>
P native_argument(DeviceMemory memory, void* address) {
  if constexpr (std::is_pointer_v<P>) {
    return static_cast<P>(address);
  } else {
    return memory;
  }
}

template <class F, class Handle, class... P>
Event with_native(Queue& queue, F& submit, std::span<const KernelOperand> operands,
                  std::tuple<Handle, P...>* /*deduction only*/) {
  static_assert(std::is_pointer_v<Handle>, "the first parameter is the driver's queue: cudaStream_t, cl_command_queue");
  static_assert((is_native_parameter<std::remove_cvref_t<P>> && ...),
                "buffers arrive as pointers to their elements, or as unimem::DeviceMemory");
  std::array<NativeParameter, sizeof...(P)> const parameters{native_parameter<std::remove_cvref_t<P>>()...};
  return run_native(queue, operands, parameters,
                    [&](void* native, std::span<const DeviceMemory> memory, std::span<void* const> addresses) {
                      [&]<std::size_t... I>(std::index_sequence<I...>) {
                        submit(static_cast<Handle>(native),
                               native_argument<std::remove_cvref_t<P>>(memory[I], addresses[I])...);
                      }(std::index_sequence_for<P...>{});
                    });
}

}  // namespace detail

/// Your own kernels, and libraries, on buffers of ours:
///
///     with_native(queue, [&](cudaStream_t s, float* x, float const* y) { mine<<<grid, block, 0, s>>>(x, y); },
///                 readwrite(x), read(y));
///
/// Makes every operand ready as a launch does, then calls `submit` once, now, with the driver's own queue and, for each
/// operand, a pointer to its elements on the device, or, where its parameter is a `DeviceMemory`, the driver's object
/// and the byte offset of the window (OpenCL). What `submit` puts into the driver's queue is this queue's work, and the
/// returned event is its end; it must put it nowhere else, not wait for it, and not use `queue` or these buffers.
///
/// Throws KernelError if `submit` takes other operands than it is given: their number, elements of another type (bytes
/// and void fit every one), a pointer to mutable elements for what is passed as `read`; UnsupportedOperation where
/// devices have no queue of a driver's, or memory has no address and a pointer is taken. Nothing ran then. What
/// `submit` itself throws is thrown on: what it had put into the queue has ended by then, and counts for nothing. The
/// buffers hold their last good copies again, and no later access raises it once more.
template <class F, class... Operands>
Event with_native(Queue& queue, F&& submit, Operands const&... operands) {
  static_assert((std::is_same_v<Operands, KernelOperand> && ...), "pass buffers as read(b), write(b) or readwrite(b)");
  using Parameters = typename detail::CallableParameters<std::remove_cvref_t<F>>::type;
  static_assert(std::tuple_size_v<Parameters> == sizeof...(Operands) + 1,
                "the callable takes the driver's queue and one parameter for each operand");
  std::array<KernelOperand, sizeof...(Operands)> const list{operands...};
  return detail::with_native(queue, submit, list, static_cast<Parameters*>(nullptr));
}

}  // namespace unimem
