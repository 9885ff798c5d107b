#pragma once

#include <unimem/core/export.hpp>
#include <unimem/device/detail/value_type.hpp>
#include <unimem/device/event.hpp>
#include <unimem/device/queue.hpp>
#include <unimem/kernel/kernel.hpp>
#include <unimem/kernel/operand.hpp>
#include <unimem/kernel/work_group.hpp>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <typeindex>
#include <typeinfo>

namespace unimem::detail {

/// Elements are joined in blocks, each of which has as many lanes: a lane takes every 32nd element of its block, from
/// the first on, and the lanes are joined as a group's values are. What comes of the blocks is joined in the same way.
/// So the order depends on positions alone; a device has a group for each block, of as many items as it can, up to one
/// a lane, which every device known can. Rusticl ends the loops of an item after 65,535 iterations: of these there are
/// 128 at most.
inline constexpr std::size_t reduction_block = 4096;
inline constexpr std::size_t reduction_lanes = 32;

/// What the kernel languages have, too.
template <class T>
concept KernelNumber = std::is_arithmetic_v<T> && value_type_of<T>().number != ValueType::Number::none;

/// As the kernel languages convert: of signed integers, the sign is kept.
template <class A, class T>
constexpr A joined_as(T x) noexcept {
  if constexpr (std::unsigned_integral<A> && std::signed_integral<T>) {
    return static_cast<A>(std::int64_t{x});
  } else {
    return static_cast<A>(x);
  }
}

/// The host form for one block, which is not empty; its elements begin at `x`.
template <class A, class Term, class Join, class... T>
A reduce_block(std::size_t count, Term const& term, Join const& join, T const*... x) {
  std::array<A, reduction_lanes> lanes{};
  auto const filled = std::min(count, reduction_lanes);
  for (std::size_t i = 0; i < filled; ++i) lanes[i] = joined_as<A>(term(x[i]...));
  auto i = reduction_lanes;
  for (; i + reduction_lanes <= count; i += reduction_lanes) {
    for (std::size_t lane = 0; lane < reduction_lanes; ++lane) {
      lanes[lane] = join(lanes[lane], joined_as<A>(term(x[i + lane]...)));
    }
  }
  for (; i < count; ++i) {
    auto& lane = lanes[i % reduction_lanes];
    lane = join(lane, joined_as<A>(term(x[i]...)));
  }
  return group_reduction(std::span{lanes}.first(filled), join);
}

/// The source form: `term` is an expression of `x`, or of `x` and `y`, of the types of the elements, and becomes a
/// `termed`; `join` is one of `x` and `y` of the type `joined`.
[[nodiscard]] UNIMEM_API std::string reduction_source(std::span<ValueType const> elements, ValueType termed,
                                                      ValueType joined, std::string_view term, std::string_view join);

/// The kernel with that source, and with a host form of those types: made at the first call and kept. Thread-safe.
[[nodiscard]] UNIMEM_API Kernel kept_reduction(std::string source, std::type_index host,
                                               void (*set_host)(Kernel& kernel));

/// `Term` and `Join` hold nothing.
template <class A, class Term, class Join, class... T>
[[nodiscard]] Kernel reduction_kernel(std::string_view term, std::string_view join) {
  using Termed = std::remove_cvref_t<std::invoke_result_t<Term, T...>>;
  static_assert(KernelNumber<Termed> && KernelNumber<A>, "numbers are joined");
  std::array const elements{value_type_of<T>()...};
  // A boolean is a byte there; a line's end behind what was given, which may end with a comment.
  auto const as_truth = [](bool is_boolean, std::string_view text) {
    return is_boolean ? "((" + std::string(text) + "\n) != 0)" : std::string(text);
  };
  return kept_reduction(
      reduction_source(elements, value_type_of<Termed>(), value_type_of<A>(),
                       as_truth(std::is_same_v<Termed, bool>, term), as_truth(std::is_same_v<A, bool>, join)),
      typeid(std::tuple<A, Term, Join, T...>), [](Kernel& kernel) {
        kernel.host([](WorkGroup const& group, std::span<T const>... x, std::span<A> joined, std::uint64_t count) {
          auto const block = group.index().x;
          auto const begin = block * reduction_block;
          joined[block] = reduce_block<A>(std::min<std::size_t>(reduction_block, count - begin), Term{}, Join{},
                                          x.data() + begin...);
        });
      });
}

/// What one reduction launches: of elements, and of what has come of blocks of them.
struct ReductionKernels {
  Kernel first;
  Kernel rest;
  ValueType joined;
  std::type_info const* joined_type = nullptr;
};

/// Puts what comes of all elements of `in`, which are equally many and not none, into `out`, one element of the type
/// that is joined. `queue` null: on the device that lacks the least of them, the host among them.
UNIMEM_API Event reduce_into(Queue* queue, ReductionKernels const& kernels, std::span<KernelOperand const> in,
                             KernelOperand out);
/// The same into the caller's memory; returns when it is there.
UNIMEM_API void reduce_to_host(Queue* queue, ReductionKernels const& kernels, std::span<KernelOperand const> in,
                               std::span<std::byte> result);

}  // namespace unimem::detail
