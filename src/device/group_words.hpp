#pragma once

#include <array>
#include <string_view>

namespace unimem::detail {

/// The portable names (docs/kernels.md) by which a kernel asks for its group, and so needs one of a known size. Also
/// the beginnings that a macro puts them together from: UNIMEM_LOCAL_##x.
inline constexpr std::array<std::string_view, 27> group_words{
    "UNIMEM_BARRIER",
    "UNIMEM_SHARED",
    "UNIMEM_SHARED_POINTER",
    "UNIMEM_LOCAL_X",
    "UNIMEM_LOCAL_Y",
    "UNIMEM_LOCAL_Z",
    "UNIMEM_GROUP_X",
    "UNIMEM_GROUP_Y",
    "UNIMEM_GROUP_Z",
    "UNIMEM_GROUP_SIZE_X",
    "UNIMEM_GROUP_SIZE_Y",
    "UNIMEM_GROUP_SIZE_Z",
    "UNIMEM_GROUPS_X",
    "UNIMEM_GROUPS_Y",
    "UNIMEM_GROUPS_Z",
    "UNIMEM_LOCAL_NUMBER",
    "UNIMEM_GROUP_ITEMS",
    "unimem_group_sum",
    "unimem_group_min",
    "unimem_group_max",
    "unimem_group_inclusive_sum",
    "unimem_group_exclusive_sum",
    "UNIMEM_LOCAL_",
    "UNIMEM_GROUP_",
    "UNIMEM_GROUP_SIZE_",
    "UNIMEM_GROUPS_",
    "unimem_group_",
};

/// Of these, those that differ from item to item of a group, what they are taken from where a group begins, and those
/// at which each item waits for all.
inline constexpr std::array<std::string_view, 4> places_in_group{"UNIMEM_LOCAL_X", "UNIMEM_LOCAL_Y", "UNIMEM_LOCAL_Z",
                                                                 "UNIMEM_LOCAL_NUMBER"};
inline constexpr std::array<std::string_view, 3> places_in_range{"UNIMEM_ITEM_X", "UNIMEM_ITEM_Y", "UNIMEM_ITEM_Z"};
inline constexpr std::array<std::string_view, 6> waits_for_group{
    "UNIMEM_BARRIER",   "unimem_group_sum",           "unimem_group_min",
    "unimem_group_max", "unimem_group_inclusive_sum", "unimem_group_exclusive_sum"};

/// Those by which it asks for the size of its range.
inline constexpr std::array<std::string_view, 4> range_words{"UNIMEM_RANGE_X", "UNIMEM_RANGE_Y", "UNIMEM_RANGE_Z",
                                                             "UNIMEM_RANGE_"};

/// A reduction by the items of a group together, a tree of halves: for devices whose items run side by side.
inline constexpr std::string_view group_tree = R"(
#define UNIMEM_GROUP_INDEX unimem_u32
#define UNIMEM_GROUP_REDUCTION(T, name, join)                                                 \
  UNIMEM_OVERLOADED T name(T unimem_value, UNIMEM_SHARED_POINTER(T) unimem_scratch) {         \
    const unimem_u32 unimem_i = (unimem_u32)UNIMEM_LOCAL_NUMBER;                              \
    const unimem_u32 unimem_n = (unimem_u32)UNIMEM_GROUP_ITEMS;                               \
    unimem_u32 unimem_half = 1;                                                               \
    unimem_scratch[unimem_i] = unimem_value;                                                  \
    while (unimem_half < unimem_n) unimem_half *= 2;                                          \
    for (unimem_half /= 2; unimem_half > 0; unimem_half /= 2) {                               \
      UNIMEM_BARRIER();                                                                       \
      if (unimem_i < unimem_half && unimem_i + unimem_half < unimem_n) {                      \
        const T unimem_a = unimem_scratch[unimem_i];                                          \
        const T unimem_b = unimem_scratch[unimem_i + unimem_half];                            \
        unimem_scratch[unimem_i] = join;                                                      \
      }                                                                                       \
    }                                                                                         \
    UNIMEM_BARRIER();                                                                         \
    unimem_value = unimem_scratch[0];                                                         \
    UNIMEM_BARRIER();                                                                         \
    return unimem_value;                                                                      \
  }
)";

/// Functions over the values of a group's items, in both languages, each of which calls them with the same `scratch`,
/// one element an item; behind a UNIMEM_GROUP_REDUCTION and the type in which it counts items. UNIMEM_OVERLOADED begins
/// one of several functions of a name. Sums of floating point have one order, whatever the device: `group_reduction` of
/// unimem/kernel/work_group.hpp has the same.
inline constexpr std::string_view group_functions = R"(
#define UNIMEM_GROUP_SCAN(T)                                                                  \
  UNIMEM_OVERLOADED T unimem_group_inclusive_sum(T unimem_value, UNIMEM_SHARED_POINTER(T) unimem_scratch) { \
    const UNIMEM_GROUP_INDEX unimem_i = (UNIMEM_GROUP_INDEX)UNIMEM_LOCAL_NUMBER;              \
    const UNIMEM_GROUP_INDEX unimem_n = (UNIMEM_GROUP_INDEX)UNIMEM_GROUP_ITEMS;               \
    UNIMEM_GROUP_INDEX unimem_step = 1;                                                       \
    unimem_scratch[unimem_i] = unimem_value;                                                  \
    UNIMEM_BARRIER();                                                                         \
    for (; unimem_step < unimem_n; unimem_step *= 2) {                                        \
      if (unimem_i >= unimem_step) unimem_value = unimem_scratch[unimem_i - unimem_step] + unimem_value; \
      UNIMEM_BARRIER();                                                                       \
      unimem_scratch[unimem_i] = unimem_value;                                                \
      UNIMEM_BARRIER();                                                                       \
    }                                                                                         \
    return unimem_value;                                                                      \
  }                                                                                           \
  UNIMEM_OVERLOADED T unimem_group_exclusive_sum(T unimem_value, UNIMEM_SHARED_POINTER(T) unimem_scratch) { \
    unimem_group_inclusive_sum(unimem_value, unimem_scratch);                                 \
    unimem_value = 0;                                                                         \
    if (UNIMEM_LOCAL_NUMBER > 0) unimem_value = unimem_scratch[UNIMEM_LOCAL_NUMBER - 1];      \
    UNIMEM_BARRIER();                                                                         \
    return unimem_value;                                                                      \
  }

#define UNIMEM_GROUP_FUNCTIONS(T)                                                             \
  UNIMEM_GROUP_REDUCTION(T, unimem_group_sum, unimem_a + unimem_b)                            \
  UNIMEM_GROUP_REDUCTION(T, unimem_group_min, unimem_b < unimem_a ? unimem_b : unimem_a)      \
  UNIMEM_GROUP_REDUCTION(T, unimem_group_max, unimem_a < unimem_b ? unimem_b : unimem_a)      \
  UNIMEM_GROUP_SCAN(T)

UNIMEM_GROUP_FUNCTIONS(unimem_u32)
UNIMEM_GROUP_FUNCTIONS(unimem_i32)
UNIMEM_GROUP_FUNCTIONS(unimem_u64)
UNIMEM_GROUP_FUNCTIONS(unimem_i64)
UNIMEM_GROUP_FUNCTIONS(unimem_f32)
#ifdef UNIMEM_DOUBLES
UNIMEM_GROUP_FUNCTIONS(unimem_f64)
#endif
)";

/// Whether a source may call them: what is not called is not compiled either.
[[nodiscard]] inline bool calls_group_functions(std::string_view source) {
  return source.find("unimem_group_") != std::string_view::npos;
}

}  // namespace unimem::detail
