#pragma once

#include <unimem/device/program.hpp>
#include <unimem/kernel/work_group.hpp>

#include <cstddef>
#include <cstring>
#include <span>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace unimem {

/// What a kernel's host form takes at one position: checked against the launch before anything runs.
struct KernelParameter {
  bool is_buffer = false;
  std::type_info const* type = nullptr;  ///< of a buffer's elements, or of the scalar; without const
  std::size_t bytes = 0;                 ///< of an element, or of a scalar
  std::size_t alignment = 1;
  bool is_mutable = false;  ///< a buffer's elements may be written: the span is not one of const elements
};

namespace detail {

template <class F>
struct CallableParameters : CallableParameters<decltype(&F::operator())> {};
template <class R, class C, class... P>
struct CallableParameters<R (C::*)(P...) const> {
  using type = std::tuple<P...>;
};
template <class R, class C, class... P>
struct CallableParameters<R (C::*)(P...) const noexcept> {
  using type = std::tuple<P...>;
};
template <class R, class... P>
struct CallableParameters<R (*)(P...)> {
  using type = std::tuple<P...>;
};

template <class T>
inline constexpr bool is_span = false;
template <class T>
inline constexpr bool is_span<std::span<T>> = true;

template <class P>
KernelParameter kernel_parameter() {
  using Plain = std::remove_cvref_t<P>;
  if constexpr (is_span<Plain>) {
    using Element = std::remove_const_t<typename Plain::element_type>;
    return {true, &typeid(Element), sizeof(Element), alignof(Element), !std::is_const_v<typename Plain::element_type>};
  } else {
    static_assert(std::is_trivially_copyable_v<Plain>, "a kernel's scalars travel as bytes");
    return {false, &typeid(Plain), sizeof(Plain), alignof(Plain), false};
  }
}

template <class P>
std::remove_cvref_t<P> unpack(HostArgument argument) {
  using Plain = std::remove_cvref_t<P>;
  if constexpr (is_span<Plain>) {
    using Element = typename Plain::element_type;
    return {static_cast<Element*>(argument.data), argument.bytes / sizeof(Element)};
  } else {
    // Not a cast: the bytes of a scalar have no alignment of their own.
    Plain value;
    std::memcpy(&value, argument.data, sizeof value);
    return value;
  }
}

/// The groups that begin there in a range, numbered with x fastest.
template <class F>
void each_group(Range range, std::size_t begin, std::size_t end, F const& visit) {
  auto const count = range.groups();
  for (std::size_t i = begin; i < end; ++i) {
    visit(WorkGroup{range, {i % count.x, i / count.x % count.y, i / count.x / count.y}});
  }
}

/// The loop over groups, which `callable` takes whole.
template <class F, class G, class... P>
  requires std::is_same_v<std::remove_cvref_t<G>, WorkGroup>
HostLoop host_loop(F callable, std::tuple<G, P...>* /*deduction only*/) {
  return [callable = std::move(callable)](Range range, std::size_t begin, std::size_t end,
                                          std::span<const HostArgument> arguments) {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      std::tuple<std::remove_cvref_t<P>...> const unpacked{unpack<P>(arguments[I])...};
      each_group(range, begin, end, [&](WorkGroup const& group) { callable(group, std::get<I>(unpacked)...); });
    }(std::index_sequence_for<P...>{});
  };
}

/// The loop over work items, instantiated with the callable so that the compiler sees through it.
template <class F, class... P>
HostLoop host_loop(F callable, std::tuple<WorkItem, P...>* /*deduction only*/) {
  return [callable = std::move(callable)](Range range, std::size_t begin, std::size_t end,
                                          std::span<const HostArgument> arguments) {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      std::tuple<std::remove_cvref_t<P>...> const unpacked{unpack<P>(arguments[I])...};
      if (range.y == 1 && range.z == 1) {
        for (std::size_t x = begin; x < end; ++x) callable(WorkItem{x, 0, 0}, std::get<I>(unpacked)...);
        return;
      }
      WorkItem item{begin % range.x, begin / range.x % range.y, begin / range.x / range.y};
      for (std::size_t i = begin; i < end; ++i) {
        callable(item, std::get<I>(unpacked)...);
        if (++item.x < range.x) continue;
        item.x = 0;
        if (++item.y < range.y) continue;
        item.y = 0;
        ++item.z;
      }
    }(std::index_sequence_for<P...>{});
  };
}

template <class G, class... P>
std::vector<KernelParameter> kernel_parameters(std::tuple<G, P...>* /*deduction only*/) {
  return {kernel_parameter<P>()...};
}

}  // namespace detail
}  // namespace unimem
