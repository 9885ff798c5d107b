#pragma once

#include <unimem/kernel/launch.hpp>

#include "stream/chunk_work.hpp"

#include <type_traits>
#include <typeinfo>

namespace unimem::detail {

/// Says what the bytes of an operand are, to kernels in either form.
inline void take_as(KernelOperand& operand, ElementType element) {
  operand.value = value_type(element);
  operand.element = with_element_type(element, []<class T>(std::type_identity<T>) { return &typeid(T); });
}

}  // namespace unimem::detail
