#pragma once

#include <unimem/core/error.hpp>
#include <unimem/device/detail/value_type.hpp>
#include <unimem/device/event.hpp>
#include <unimem/device/queue.hpp>
#include <unimem/kernel/detail/reduction.hpp>
#include <unimem/kernel/operand.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <typeinfo>

namespace unimem {

/// What `reduce` joins elements by. A sum of integers has 64 bits and wraps around; one of floating point is made, and
/// given, in double precision.
struct Sum {};
/// The smallest, of the elements' type; NaN if one is.
struct Minimum {};
/// The largest, of the elements' type; NaN if one is.
struct Maximum {};

/// An expression of `x`, or of `x` and `y`, in both forms of a kernel: text for the devices that compile
/// (docs/kernels.md), and a callable that says the same in C++:
///
///     Formula{"x * y", [](double x, double y) { return x * y; }}
///
/// The callable's parameters are what the text's `x` and `y` are: elements, or where it joins what it gives.
/// What the callable takes and gives are numbers, and it captures nothing, of which the text could not know. The text
/// is converted to what the callable gives. What is compiled for it is kept for the life of the process.
template <class F>
struct Formula {
  std::string text;
  F host;
};
template <class F>
Formula(char const*, F) -> Formula<F>;

namespace detail {

template <class B>
concept Reducible = KernelNumber<typename B::value_type> && requires(B const& buffer) { read(buffer); };

struct AsItIs {
  template <class T>
  T operator()(T x) const {
    return x;
  }
};

/// How `Operation` joins what comes of elements, `T`: `Joined` in a kernel, `Result` for the caller.
template <class Operation, class T>
struct Joining;
template <class T>
struct Joining<Sum, T> {
  using Joined = std::conditional_t<std::is_floating_point_v<T>, double, std::uint64_t>;
  using Result = std::conditional_t<std::is_integral_v<T> && std::is_signed_v<T>, std::int64_t, Joined>;
  Joined operator()(Joined x, Joined y) const { return x + y; }
  static std::string_view text(Sum /*operation*/) { return "x + y"; }
};
template <class T, class Before>
struct JoiningExtremes {
  using Joined = T;
  using Result = T;
  // `y != y` lets a NaN in, and no comparison ever lets it out again.
  T operator()(T x, T y) const { return Before{}(y, x) || y != y ? y : x; }
};
template <class T>
struct Joining<Minimum, T> : JoiningExtremes<T, std::less<T>> {
  static std::string_view text(Minimum /*operation*/) {
    return std::is_floating_point_v<T> ? "y < x || y != y ? y : x" : "y < x ? y : x";
  }
};
template <class T>
struct Joining<Maximum, T> : JoiningExtremes<T, std::greater<T>> {
  static std::string_view text(Maximum /*operation*/) {
    return std::is_floating_point_v<T> ? "y > x || y != y ? y : x" : "y > x ? y : x";
  }
};
template <class R, class C, class... P>
std::tuple<std::remove_cvref_t<P>...> parameters_of(R (C::*)(P...) const);
template <class R, class C, class... P>
std::tuple<std::remove_cvref_t<P>...> parameters_of(R (C::*)(P...));

/// Whether a callable's parameters are of these types, as its text's are: it would convert, and the text would not. One
/// that takes anything does.
template <class F, class... T>
consteval bool takes_as_it_is() {
  if constexpr (requires { &F::operator(); }) {
    return std::is_same_v<decltype(parameters_of(&F::operator())), std::tuple<T...>>;
  } else {
    return true;
  }
}

template <class F, class T>
struct Joining<Formula<F>, T> {
  static_assert(std::is_empty_v<F> && std::is_default_constructible_v<F>, "a formula's callable captures nothing");
  using Joined = std::remove_cvref_t<std::invoke_result_t<F, T, T>>;
  static_assert(std::is_same_v<Joined, std::remove_cvref_t<std::invoke_result_t<F, Joined, Joined>>>,
                "what is joined is joined again");
  static_assert(takes_as_it_is<F, Joined, Joined>(), "a formula's callable that joins takes what it gives");
  using Result = Joined;
  Joined operator()(Joined x, Joined y) const { return F{}(x, y); }
  static std::string_view text(Formula<F> const& operation) { return operation.text; }
};

template <class Operation, class T>
using ReducedType = typename Joining<Operation, T>::Result;

/// The kernels that join `Term`, `term` in source, of elements of types `T`.
template <class Term, class Operation, class... T>
ReductionKernels reduction_kernels(std::string_view term, Operation const& operation) {
  static_assert(takes_as_it_is<Term, T...>(), "a formula's callable takes what the elements are");
  using Join = Joining<Operation, std::remove_cvref_t<std::invoke_result_t<Term, T...>>>;
  using A = typename Join::Joined;
  using JoinAgain = Joining<Operation, A>;
  return {reduction_kernel<A, Term, Join, T...>(term, Join::text(operation)),
          reduction_kernel<A, AsItIs, JoinAgain, A>("x", JoinAgain::text(operation)), value_type_of<A>(), &typeid(A)};
}

/// Whether there is something to join. Throws SizeMismatch where the operands have not equally many elements,
/// InvalidArgument for none, of which only a sum is known, and UnsupportedOperation while the thread captures launches.
UNIMEM_API bool is_reduction_of_some(std::span<KernelOperand const> in, bool is_sum);

/// What comes of the operands' elements, which are of types `T`.
template <class Term, class... T, class Operation>
auto reduce(Queue* queue, std::string_view term, Operation const& operation,
            std::array<KernelOperand, sizeof...(T)> const& in) {
  ReducedType<Operation, std::remove_cvref_t<std::invoke_result_t<Term, T...>>> result{};
  if (is_reduction_of_some(in, std::is_same_v<Operation, Sum>)) {
    reduce_to_host(queue, reduction_kernels<Term, Operation, T...>(term, operation), in,
                   std::as_writable_bytes(std::span{&result, 1}));
  }
  return result;
}

/// The same into `out`, elements of the result's type: of which there must be one.
template <class Term, class... T, class Operation>
Event reduce_into(Queue* queue, KernelOperand const& out, std::string_view term, Operation const& operation,
                  std::array<KernelOperand, sizeof...(T)> const& in) {
  using Result = ReducedType<Operation, std::remove_cvref_t<std::invoke_result_t<Term, T...>>>;
  auto const& [buffer, range, intent] = out.operand;
  if (range.size() != sizeof(Result)) throw SizeMismatch("the result of a reduction", 1, range.size() / sizeof(Result));
  if (!is_reduction_of_some(in, std::is_same_v<Operation, Sum>)) {
    constexpr Result nothing{};
    return buffer->fill_async(range, std::as_bytes(std::span{&nothing, 1}));
  }
  return reduce_into(queue, reduction_kernels<Term, Operation, T...>(term, operation), in, out);
}

template <class Out, class T, class Operation>
concept TakesReduction = std::is_same_v<typename Out::value_type, ReducedType<Operation, T>>;

}  // namespace detail

/// Joins all elements of a buffer or a slice of numbers, on the device that lacks the least of them, the host among
/// them; of equals where the buffer is at home. What comes back is the result alone. Returns when it is there.
///
///     double const total = reduce(x);
///     float const most = reduce(x, Maximum{});
///     double const product = reduce(x, Formula{"x * y", [](double x, double y) { return x * y; }});
///
/// The order depends on the number of elements alone, and neither on the device nor on timing (docs/kernels.md): so
/// sums of floating point are the same to the last bit wherever additions are rounded as IEEE 754 says. It is another
/// one than a loop's, and a Formula must be associative and commutative, as far as one cares. Of no elements the sum is
/// 0, and everything else InvalidArgument. Thread-safe as reading the buffer is.
///
/// Throws what `launch` does; UnsupportedOperation where double precision is needed and the device has none, and while
/// the thread captures launches.
template <class Operation = Sum, detail::Reducible B>
[[nodiscard]] auto reduce(B const& x, Operation const& operation = {}) {
  return detail::reduce<detail::AsItIs, typename B::value_type>(nullptr, "x", operation, {read(x)});
}
/// The same in `queue`'s order, on its device, to which comes what that lacks.
template <class Operation = Sum, detail::Reducible B>
[[nodiscard]] auto reduce(Queue& queue, B const& x, Operation const& operation = {}) {
  return detail::reduce<detail::AsItIs, typename B::value_type>(&queue, "x", operation, {read(x)});
}

/// The same of what a formula makes of each element:
///
///     transform_reduce(x, Sum{}, Formula{"x * x", [](float x) { return x * x; }});
template <detail::Reducible B, class Operation, class F>
[[nodiscard]] auto transform_reduce(B const& x, Operation const& operation, Formula<F> const& term) {
  return detail::reduce<F, typename B::value_type>(nullptr, term.text, operation, {read(x)});
}
template <detail::Reducible B, class Operation, class F>
[[nodiscard]] auto transform_reduce(Queue& queue, B const& x, Operation const& operation, Formula<F> const& term) {
  return detail::reduce<F, typename B::value_type>(&queue, term.text, operation, {read(x)});
}
/// Or of each two elements of equally many, else SizeMismatch.
template <detail::Reducible B, detail::Reducible C, class Operation, class F>
[[nodiscard]] auto transform_reduce(B const& x, C const& y, Operation const& operation, Formula<F> const& term) {
  return detail::reduce<F, typename B::value_type, typename C::value_type>(nullptr, term.text, operation,
                                                                           {read(x), read(y)});
}
template <detail::Reducible B, detail::Reducible C, class Operation, class F>
[[nodiscard]] auto transform_reduce(Queue& queue, B const& x, C const& y, Operation const& operation,
                                    Formula<F> const& term) {
  return detail::reduce<F, typename B::value_type, typename C::value_type>(&queue, term.text, operation,
                                                                           {read(x), read(y)});
}

/// As `reduce`, without waiting: puts the result into `out`, a buffer or slice of one element of the type that `reduce`
/// gives, else SizeMismatch. Nothing comes back to the host.
template <class Out, detail::Reducible B, class Operation = Sum>
  requires detail::TakesReduction<Out, typename B::value_type, Operation>
Event reduce_into(Out& out, B const& x, Operation const& operation = {}) {
  return detail::reduce_into<detail::AsItIs, typename B::value_type>(nullptr, write(out), "x", operation, {read(x)});
}
template <class Out, detail::Reducible B, class Operation = Sum>
  requires detail::TakesReduction<Out, typename B::value_type, Operation>
Event reduce_into(Queue& queue, Out& out, B const& x, Operation const& operation = {}) {
  return detail::reduce_into<detail::AsItIs, typename B::value_type>(&queue, write(out), "x", operation, {read(x)});
}

}  // namespace unimem
