#pragma once

#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/buffer/unified_buffer.hpp>
#include <unimem/core/byte_ranges.hpp>
#include <unimem/device/detail/value_type.hpp>

#include <cstddef>
#include <type_traits>
#include <typeinfo>

namespace unimem {

/// A buffer, or a part of one, as an argument of a launch, with what the kernel will do with it. Made by `read`,
/// `write` and `readwrite`; used at once.
struct KernelOperand {
  Operand operand;
  std::type_info const* element = nullptr;  ///< `std::byte` fits every kernel
  ValueType value{};                        ///< the same for kernels in source form; bytes of any meaning if not known
};

namespace detail {
template <class T>
KernelOperand kernel_operand(UnifiedBuffer<T> const& buffer, std::size_t offset, std::size_t count, Intent intent) {
  auto const whole = buffer.range();  // not those that fit alone: the handle is of what there was
  bool const all_of_it = offset == 0 && count == all;
  auto const inner = all_of_it ? whole : checked_range(offset, count, whole.size() / sizeof(T), sizeof(T));
  return {{&buffer.core(), inner, intent}, &typeid(T), value_type_of<T>()};
}
template <class T>
KernelOperand kernel_operand(BufferSlice<T> const& slice, std::size_t offset, std::size_t count, Intent intent) {
  auto const inner = checked_range(offset, count, slice.size(), sizeof(T));
  auto const base = slice.range().begin;
  return {{&slice.core(), {base + inner.begin, base + inner.end}, intent}, &typeid(T), value_type_of<T>()};
}
}  // namespace detail

/// The kernel looks at `count` elements from `offset` on (all by default). Like the two that follow, throws
/// InvalidArgument for elements that are not there, and for a handle or slice below whose end the buffer was resized.
template <class T>
[[nodiscard]] KernelOperand read(UnifiedBuffer<T> const& buffer, std::size_t offset = 0, std::size_t count = all) {
  return detail::kernel_operand(buffer, offset, count, Intent::read);
}

/// The kernel overwrites every one of them, so nothing is brought in.
template <class T>
[[nodiscard]] KernelOperand write(UnifiedBuffer<T>& buffer, std::size_t offset = 0, std::size_t count = all) {
  return detail::kernel_operand(buffer, offset, count, Intent::write);
}

/// The kernel looks at them and may change some.
template <class T>
[[nodiscard]] KernelOperand readwrite(UnifiedBuffer<T>& buffer, std::size_t offset = 0, std::size_t count = all) {
  return detail::kernel_operand(buffer, offset, count, Intent::read_write);
}

/// The same of a slice: `offset` counts from its first element.
template <class T>
[[nodiscard]] KernelOperand read(BufferSlice<T> const& slice, std::size_t offset = 0, std::size_t count = all) {
  return detail::kernel_operand(slice, offset, count, Intent::read);
}
template <class T>
[[nodiscard]] KernelOperand write(BufferSlice<T> const& slice, std::size_t offset = 0, std::size_t count = all) {
  return detail::kernel_operand(slice, offset, count, Intent::write);
}
template <class T>
[[nodiscard]] KernelOperand readwrite(BufferSlice<T> const& slice, std::size_t offset = 0, std::size_t count = all) {
  return detail::kernel_operand(slice, offset, count, Intent::read_write);
}

}  // namespace unimem
