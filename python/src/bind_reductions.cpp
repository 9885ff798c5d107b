#include <unimem/core/error.hpp>
#include <unimem/device/device.hpp>
#include <unimem/kernel/reduce.hpp>

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <span>
#include <type_traits>

#include "bindings.hpp"
#include "gil.hpp"
#include "window.hpp"

namespace unimem::python {

namespace nb = nanobind;

namespace {

template <class T, class Operation>
nb::object reduced_by(KernelOperand operand, Device* device, Operation operation) {
  operand.element = &typeid(T);
  operand.value = value_type_of<T>();
  std::array const in{operand};
  detail::ReductionResult<Operation, T> result{};
  unlocked([&] {
    if (!detail::is_reduction_of_some(in, std::is_same_v<Operation, Sum>)) return;
    detail::reduce_to_host(device == nullptr ? nullptr : &device->default_queue(),
                           detail::reduction_kernels<detail::AsItIs, Operation, T>("x", operation), in,
                           std::as_writable_bytes(std::span{&result, 1}));
  });
  return nb::cast(result);
}

template <class T>
nb::object reduced(KernelOperand const& operand, Device* device, int operation) {
  if (operation == 0) return reduced_by<T>(operand, device, Sum{});
  if (operation == 1) return reduced_by<T>(operand, device, Minimum{});
  return reduced_by<T>(operand, device, Maximum{});
}

/// Of numbers of the machine's byte order, as the package has checked; `kind` is NumPy's letter for them.
nb::object reduce(Window const& window, char kind, int operation, Device* device) {
  auto const core = window.live();
  KernelOperand const operand{{core.get(), window.range(), Intent::read}};
  auto const bytes = window.item_bytes();
  if (kind == 'f') {
    return bytes == sizeof(float) ? reduced<float>(operand, device, operation)
                                  : reduced<double>(operand, device, operation);
  }
  auto const of = [&]<class I8, class I16, class I32, class I64>(I8, I16, I32, I64) {
    return bytes == 1   ? reduced<I8>(operand, device, operation)
           : bytes == 2 ? reduced<I16>(operand, device, operation)
           : bytes == 4 ? reduced<I32>(operand, device, operation)
                        : reduced<I64>(operand, device, operation);
  };
  return kind == 'i' ? of(std::int8_t{}, std::int16_t{}, std::int32_t{}, std::int64_t{})
                     : of(std::uint8_t{}, std::uint16_t{}, std::uint32_t{}, std::uint64_t{});
}

}  // namespace

void bind_reductions(nb::module_& m) {
  m.def("_reduce", &reduce, nb::arg("window"), nb::arg("kind"), nb::arg("operation"), nb::arg("device").none(),
        nb::sig("def _reduce(window: Window, kind: str, operation: int, device: Device | None) -> int | float"));
}

}  // namespace unimem::python
