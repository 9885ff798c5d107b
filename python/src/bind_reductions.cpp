#include <unimem/buffer/detail/buffer_core.hpp>
#include <unimem/core/byte_ranges.hpp>
#include <unimem/device/device.hpp>
#include <unimem/device/event.hpp>
#include <unimem/kernel/reduce.hpp>

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <typeinfo>

#include "bindings.hpp"
#include "gil.hpp"
#include "window.hpp"

namespace unimem::python {

namespace nb = nanobind;

namespace {

/// Calls `use` with what an element is, of NumPy's letter `kind` and so many bytes, and with the operation.
template <class F>
auto with_reduction(char kind, std::size_t bytes, int operation, F const& use) {
  auto const by = [&]<class T>(std::type_identity<T> element) {
    if (operation == 0) return use(element, Sum{});
    if (operation == 1) return use(element, Minimum{});
    return use(element, Maximum{});
  };
  auto const of_one = [&]<class I8, class I16, class I32, class I64>(I8, I16, I32, I64) {
    if (bytes == 1) return by(std::type_identity<I8>{});
    if (bytes == 2) return by(std::type_identity<I16>{});
    if (bytes == 4) return by(std::type_identity<I32>{});
    return by(std::type_identity<I64>{});
  };
  if (kind == 'f') return bytes == sizeof(float) ? by(std::type_identity<float>{}) : by(std::type_identity<double>{});
  if (kind == 'i') return of_one(std::int8_t{}, std::int16_t{}, std::int32_t{}, std::int64_t{});
  return of_one(std::uint8_t{}, std::uint16_t{}, std::uint32_t{}, std::uint64_t{});
}

template <class T>
KernelOperand operand_of(BufferCore& core, ByteRange range, Intent intent) {
  return {{&core, range, intent}, &typeid(T), value_type_of<T>()};
}

Queue* queue_of(Device* device) {
  return device == nullptr ? nullptr : &device->default_queue();
}

nb::object reduce(Window const& window, char kind, int operation, Device* device) {
  auto const core = window.live();
  auto const range = window.range();
  return with_reduction(kind, window.item_bytes(), operation, [&]<class T>(std::type_identity<T>, auto by) {
    return nb::cast(unlocked([&] {
      return detail::reduce<detail::AsItIs, T>(queue_of(device), "x", by, {operand_of<T>(*core, range, Intent::read)});
    }));
  });
}

/// `out` has elements of the result's type, as the package has checked.
Event reduce_into(Window const& out, Window const& window, char kind, int operation, Device* device) {
  auto const core = window.live();
  auto const range = window.range();
  auto const target = out.live();
  auto const there = out.range();
  return with_reduction(kind, window.item_bytes(), operation, [&]<class T>(std::type_identity<T>, auto by) {
    return unlocked([&] {
      return detail::reduce_into<detail::AsItIs, T>(
          queue_of(device), operand_of<detail::ReducedType<decltype(by), T>>(*target, there, Intent::write), "x", by,
          {operand_of<T>(*core, range, Intent::read)});
    });
  });
}

}  // namespace

void bind_reductions(nb::module_& m) {
  m.def("_reduce", &reduce, nb::arg("window"), nb::arg("kind"), nb::arg("operation"), nb::arg("device").none(),
        nb::sig("def _reduce(window: Window, kind: str, operation: int, device: Device | None) -> int | float"));
  m.def("_reduce_into", &reduce_into, nb::arg("out"), nb::arg("window"), nb::arg("kind"), nb::arg("operation"),
        nb::arg("device").none(),
        nb::sig("def _reduce_into(out: Window, window: Window, kind: str, operation: int, device: Device | None) "
                "-> Event"));
}

}  // namespace unimem::python
