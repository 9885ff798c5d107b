#pragma once

#include <string>
#include <string_view>

namespace unimem::detail::opencl {

/// What stands before every kernel's source under OpenCL: the portable names of docs/kernels.md in terms of OpenCL C. A
/// source that uses none of them is compiled as the plain OpenCL C it is. A buffer's parameters have its element's type
/// and names of their own, by which the driver tells them from others. Functions are always inlined: PoCL 3.1 loses a
/// barrier in one that is not, without a word.
inline constexpr std::string_view object_ending = "_unimem_object";
inline constexpr std::string_view offset_ending = "_unimem_offset";
inline constexpr std::string_view prelude = R"(
#define UNIMEM_OPENCL 1
#ifndef __FAST_RELAXED_MATH__
#pragma OPENCL FP_CONTRACT OFF
#endif
#if defined(cl_khr_fp64) && __OPENCL_C_VERSION__ < 120
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif

typedef uchar  unimem_u8;
typedef char   unimem_i8;
typedef ushort unimem_u16;
typedef short  unimem_i16;
typedef uint   unimem_u32;
typedef int    unimem_i32;
typedef ulong  unimem_u64;
typedef long   unimem_i64;
typedef float  unimem_f32;

typedef uchar2  unimem_u8x2;
typedef uchar4  unimem_u8x4;
typedef char2   unimem_i8x2;
typedef char4   unimem_i8x4;
typedef ushort2 unimem_u16x2;
typedef ushort4 unimem_u16x4;
typedef short2  unimem_i16x2;
typedef short4  unimem_i16x4;
typedef uint2   unimem_u32x2;
typedef uint4   unimem_u32x4;
typedef int2    unimem_i32x2;
typedef int4    unimem_i32x4;
typedef ulong2  unimem_u64x2;
typedef long2   unimem_i64x2;
typedef float2  unimem_f32x2;
typedef float4  unimem_f32x4;
#define UNIMEM_VECTOR(T, ...) ((T)(__VA_ARGS__))

#if defined(cl_khr_fp64) || defined(__opencl_c_fp64)
#define UNIMEM_DOUBLES 1
typedef double unimem_f64;
typedef double2 unimem_f64x2;
#endif

#define UNIMEM_KERNEL __kernel void
#define UNIMEM_FUNCTION static inline __attribute__((always_inline))
#define UNIMEM_GLOBAL __global

#define UNIMEM_BUFFER(T, x) __global T* x##_unimem_object, ulong x##_unimem_offset
#define UNIMEM_CONST_BUFFER(T, x) __global const T* x##_unimem_object, ulong x##_unimem_offset
#define UNIMEM_DATA(T, x) ((__global T*)((__global uchar*)x##_unimem_object + x##_unimem_offset))

#define UNIMEM_ITEM_X get_global_id(0)
#define UNIMEM_ITEM_Y get_global_id(1)
#define UNIMEM_ITEM_Z get_global_id(2)

#define UNIMEM_LOCAL_X get_local_id(0)
#define UNIMEM_LOCAL_Y get_local_id(1)
#define UNIMEM_LOCAL_Z get_local_id(2)
#define UNIMEM_GROUP_X get_group_id(0)
#define UNIMEM_GROUP_Y get_group_id(1)
#define UNIMEM_GROUP_Z get_group_id(2)
#define UNIMEM_GROUP_SIZE_X get_local_size(0)
#define UNIMEM_GROUP_SIZE_Y get_local_size(1)
#define UNIMEM_GROUP_SIZE_Z get_local_size(2)
#define UNIMEM_GROUPS_X get_num_groups(0)
#define UNIMEM_GROUPS_Y get_num_groups(1)
#define UNIMEM_GROUPS_Z get_num_groups(2)
#define UNIMEM_LOCAL_NUMBER ((UNIMEM_LOCAL_Z * UNIMEM_GROUP_SIZE_Y + UNIMEM_LOCAL_Y) * UNIMEM_GROUP_SIZE_X + UNIMEM_LOCAL_X)
#define UNIMEM_GROUP_ITEMS (UNIMEM_GROUP_SIZE_X * UNIMEM_GROUP_SIZE_Y * UNIMEM_GROUP_SIZE_Z)
#define UNIMEM_RANGE_X get_global_size(0)
#define UNIMEM_RANGE_Y get_global_size(1)
#define UNIMEM_RANGE_Z get_global_size(2)

#define UNIMEM_SHARED __local
#define UNIMEM_SHARED_POINTER(T) __local T*
#define UNIMEM_BARRIER() barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)

#define UNIMEM_ATOMIC_ADD_U32(pointer, value) atomic_add(pointer, (uint)(value))
#define UNIMEM_ATOMIC_MIN_U32(pointer, value) atomic_min(pointer, (uint)(value))
#define UNIMEM_ATOMIC_MAX_U32(pointer, value) atomic_max(pointer, (uint)(value))
#define UNIMEM_ATOMIC_EXCHANGE_U32(pointer, value) atomic_xchg(pointer, (uint)(value))
#define UNIMEM_ATOMIC_COMPARE_EXCHANGE_U32(pointer, expected, value) atomic_cmpxchg(pointer, (uint)(expected), (uint)(value))
#define UNIMEM_ATOMIC_ADD_I32(pointer, value) atomic_add(pointer, (int)(value))
#define UNIMEM_ATOMIC_MIN_I32(pointer, value) atomic_min(pointer, (int)(value))
#define UNIMEM_ATOMIC_MAX_I32(pointer, value) atomic_max(pointer, (int)(value))
#define UNIMEM_ATOMIC_EXCHANGE_I32(pointer, value) atomic_xchg(pointer, (int)(value))
#define UNIMEM_ATOMIC_COMPARE_EXCHANGE_I32(pointer, expected, value) atomic_cmpxchg(pointer, (int)(expected), (int)(value))
#if defined(cl_khr_int64_base_atomics) && defined(cl_khr_int64_extended_atomics)
#define UNIMEM_ATOMICS_64 1
#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable
#pragma OPENCL EXTENSION cl_khr_int64_extended_atomics : enable
#define UNIMEM_ATOMIC_ADD_U64(pointer, value) atom_add(pointer, (ulong)(value))
#define UNIMEM_ATOMIC_MIN_U64(pointer, value) atom_min(pointer, (ulong)(value))
#define UNIMEM_ATOMIC_MAX_U64(pointer, value) atom_max(pointer, (ulong)(value))
#define UNIMEM_ATOMIC_EXCHANGE_U64(pointer, value) atom_xchg(pointer, (ulong)(value))
#define UNIMEM_ATOMIC_COMPARE_EXCHANGE_U64(pointer, expected, value) atom_cmpxchg(pointer, (ulong)(expected), (ulong)(value))
#endif

#define UNIMEM_OVERLOADED static inline __attribute__((overloadable, always_inline))
)";

/// For sources that add to floats, of which OpenCL 1.2 has no atomic form. What is there is seen by the first attempt:
/// to read it before would be a race.
inline constexpr std::string_view float_addition_word = "UNIMEM_ATOMIC_ADD_F32";
inline constexpr std::string_view float_addition = R"(
#define UNIMEM_ATOMIC_ADD_F32(pointer, value) unimem_atomic_add_f32(pointer, (float)(value))
#define UNIMEM_FLOAT_ADDITION(SPACE)                                                                           \
  UNIMEM_OVERLOADED float unimem_atomic_add_f32(volatile SPACE float* unimem_at, float unimem_value) {         \
    volatile SPACE uint* const unimem_bits = (volatile SPACE uint*)unimem_at;                                  \
    uint unimem_seen = 0, unimem_expected;                                                                     \
    do {                                                                                                       \
      unimem_expected = unimem_seen;                                                                           \
      unimem_seen = atomic_cmpxchg(unimem_bits, unimem_expected, as_uint(as_float(unimem_expected) + unimem_value)); \
    } while (unimem_seen != unimem_expected);                                                                  \
    return as_float(unimem_seen);                                                                              \
  }
UNIMEM_FLOAT_ADDITION(__global)
UNIMEM_FLOAT_ADDITION(__local)
)";

/// The reduction of `group_tree`, join for join, by one item: for devices that run the items of a group one after
/// another, where a barrier costs more than a step for all items. They also vectorize over items, for which indices
/// must have the width of addresses.
inline constexpr std::string_view group_loop = R"(
#define UNIMEM_GROUP_INDEX size_t
#define UNIMEM_GROUP_REDUCTION(T, name, join)                                                 \
  UNIMEM_OVERLOADED T name(T unimem_value, UNIMEM_SHARED_POINTER(T) unimem_scratch) {         \
    const size_t unimem_n = UNIMEM_GROUP_ITEMS;                                               \
    unimem_scratch[UNIMEM_LOCAL_NUMBER] = unimem_value;                                       \
    UNIMEM_BARRIER();                                                                         \
    if (UNIMEM_LOCAL_NUMBER == 0) {                                                           \
      size_t unimem_half = 1, unimem_i;                                                       \
      while (unimem_half < unimem_n) unimem_half *= 2;                                        \
      for (unimem_half /= 2; unimem_half > 0; unimem_half /= 2) {                             \
        const size_t unimem_pairs = min(unimem_half, unimem_n - unimem_half);                 \
        for (unimem_i = 0; unimem_i < unimem_pairs; ++unimem_i) {                             \
          const T unimem_a = unimem_scratch[unimem_i];                                        \
          const T unimem_b = unimem_scratch[unimem_i + unimem_half];                          \
          unimem_scratch[unimem_i] = join;                                                    \
        }                                                                                     \
      }                                                                                       \
    }                                                                                         \
    UNIMEM_BARRIER();                                                                         \
    unimem_value = unimem_scratch[0];                                                         \
    UNIMEM_BARRIER();                                                                         \
    return unimem_value;                                                                      \
  }
)";

/// For sources that call the functions of a group: in C, shared memory of another type goes with a warning.
inline constexpr std::string_view strict_pointers = "#pragma clang diagnostic error \"-Wincompatible-pointer-types\"\n";

/// Before the first line of the source.
inline constexpr std::string_view source_begin = "#line 1\n";

/// A source as it is compiled: behind the prelude, and what else of the portable names it uses. `side_by_side` if the
/// items of a group run so, and not one after another.
[[nodiscard]] std::string with_prelude(std::string_view source, bool side_by_side = true);

}  // namespace unimem::detail::opencl
