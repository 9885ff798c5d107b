#pragma once

#include <string_view>

namespace unimem::detail::opencl {

/// What stands before every kernel's source under OpenCL: the portable names of docs/kernels.md in terms of OpenCL C. A
/// source that uses none of them is compiled as the plain OpenCL C it is. A buffer's parameters have its element's type
/// and names of their own, by which the driver tells them from others.
inline constexpr std::string_view object_ending = "_unimem_object";
inline constexpr std::string_view offset_ending = "_unimem_offset";
inline constexpr std::string_view prelude = R"(
#define UNIMEM_OPENCL 1
#pragma OPENCL FP_CONTRACT OFF
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
#if defined(cl_khr_fp64) || defined(__opencl_c_fp64)
#define UNIMEM_DOUBLES 1
typedef double unimem_f64;
#endif

#define UNIMEM_KERNEL __kernel void
#define UNIMEM_FUNCTION static inline
#define UNIMEM_GLOBAL __global

#define UNIMEM_BUFFER(T, x) __global T* x##_unimem_object, ulong x##_unimem_offset
#define UNIMEM_CONST_BUFFER(T, x) __global const T* x##_unimem_object, ulong x##_unimem_offset
#define UNIMEM_DATA(T, x) ((__global T*)((__global uchar*)x##_unimem_object + x##_unimem_offset))

#define UNIMEM_ITEM_X get_global_id(0)
#define UNIMEM_ITEM_Y get_global_id(1)
#define UNIMEM_ITEM_Z get_global_id(2)

#define UNIMEM_ATOMIC_ADD_U32(pointer, value) atomic_add((volatile __global uint*)(pointer), (uint)(value))

#line 1
)";

}  // namespace unimem::detail::opencl
