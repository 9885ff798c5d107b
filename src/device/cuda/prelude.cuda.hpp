#pragma once

#include <string_view>

namespace unimem::detail::cuda {

/// What stands before every kernel's source under CUDA: the portable names of docs/kernels.md in terms of CUDA C++, and
/// what makes a kernel of a function. It is compiled without any header.
///
/// A portable kernel is an ordinary function here. The entry that is launched, `unimem_run`, is a template around it:
/// it takes the function's parameters as they are, after the range, and calls the function once for each item, which is
/// what lets a kernel be written without `if (i < count)`. In which of two ways the items are dealt to threads is told
/// by the shape of the block, which the function can see wherever it asks for its item:
///
/// - blocks of one column: the threads take item after item of the whole range, numbered with x fastest, and put
///   what it comes to into shared memory. So no range is too large for a grid, and narrow ones fill warps;
/// - all others, of one row where the library chooses them: a thread's place in the grid is the item's.
///
/// A kernel that asks for its group is compiled with UNIMEM_GROUPED: a block is its group, whatever shape that has, and
/// the grid is the range. One that asks for the size of its range alone is compiled with UNIMEM_KEEPS_RANGE.
///
/// Everything is named unimem_…, so that nothing a source defines gets in the way.
inline constexpr std::string_view prelude = R"(
#define UNIMEM_CUDA 1
#define UNIMEM_DOUBLES 1

typedef unsigned char  unimem_u8;
typedef signed char    unimem_i8;
typedef unsigned short unimem_u16;
typedef short          unimem_i16;
typedef unsigned int   unimem_u32;
typedef int            unimem_i32;
typedef unsigned long  unimem_u64;
typedef long           unimem_i64;
typedef float          unimem_f32;
typedef double         unimem_f64;
static_assert(sizeof(unimem_u64) == 8, "unimem_u64 has 64 bits");

#define UNIMEM_KERNEL inline __device__ void
#define UNIMEM_FUNCTION inline __device__
#define UNIMEM_GLOBAL

#define UNIMEM_BUFFER(T, x) T* x##_data
#define UNIMEM_CONST_BUFFER(T, x) const T* x##_data
#define UNIMEM_DATA(T, x) ((T*)(x##_data))

#define UNIMEM_ITEM_X unimem_item_x()
#define UNIMEM_ITEM_Y unimem_item_y()
#define UNIMEM_ITEM_Z unimem_item_z()

#define UNIMEM_LOCAL_X ((unimem_u64)threadIdx.x)
#define UNIMEM_LOCAL_Y ((unimem_u64)threadIdx.y)
#define UNIMEM_LOCAL_Z ((unimem_u64)threadIdx.z)
#define UNIMEM_GROUP_X ((unimem_u64)blockIdx.x)
#define UNIMEM_GROUP_Y ((unimem_u64)blockIdx.y)
#define UNIMEM_GROUP_Z ((unimem_u64)blockIdx.z)
#define UNIMEM_GROUP_SIZE_X ((unimem_u64)blockDim.x)
#define UNIMEM_GROUP_SIZE_Y ((unimem_u64)blockDim.y)
#define UNIMEM_GROUP_SIZE_Z ((unimem_u64)blockDim.z)
#define UNIMEM_GROUPS_X ((unimem_u64)gridDim.x)
#define UNIMEM_GROUPS_Y ((unimem_u64)gridDim.y)
#define UNIMEM_GROUPS_Z ((unimem_u64)gridDim.z)
#define UNIMEM_LOCAL_NUMBER ((unimem_u64)((threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x))
#define UNIMEM_GROUP_ITEMS ((unimem_u64)(blockDim.x * blockDim.y * blockDim.z))
#ifdef UNIMEM_KEEPS_RANGE
#define UNIMEM_RANGE_X unimem_range_kept[0]
#define UNIMEM_RANGE_Y unimem_range_kept[1]
#define UNIMEM_RANGE_Z unimem_range_kept[2]
#else
#define UNIMEM_RANGE_X (UNIMEM_GROUPS_X * UNIMEM_GROUP_SIZE_X)
#define UNIMEM_RANGE_Y (UNIMEM_GROUPS_Y * UNIMEM_GROUP_SIZE_Y)
#define UNIMEM_RANGE_Z (UNIMEM_GROUPS_Z * UNIMEM_GROUP_SIZE_Z)
#endif

#define UNIMEM_SHARED __shared__
#define UNIMEM_SHARED_POINTER(T) T*
#define UNIMEM_BARRIER() __syncthreads()

#define UNIMEM_ATOMICS_64 1
#define UNIMEM_ATOMIC_ADD_U32(pointer, value) atomicAdd((unimem_u32*)(pointer), (unimem_u32)(value))
#define UNIMEM_ATOMIC_MIN_U32(pointer, value) atomicMin((unimem_u32*)(pointer), (unimem_u32)(value))
#define UNIMEM_ATOMIC_MAX_U32(pointer, value) atomicMax((unimem_u32*)(pointer), (unimem_u32)(value))
#define UNIMEM_ATOMIC_EXCHANGE_U32(pointer, value) atomicExch((unimem_u32*)(pointer), (unimem_u32)(value))
#define UNIMEM_ATOMIC_COMPARE_EXCHANGE_U32(pointer, expected, value) \
  atomicCAS((unimem_u32*)(pointer), (unimem_u32)(expected), (unimem_u32)(value))
#define UNIMEM_ATOMIC_ADD_I32(pointer, value) atomicAdd((unimem_i32*)(pointer), (unimem_i32)(value))
#define UNIMEM_ATOMIC_MIN_I32(pointer, value) atomicMin((unimem_i32*)(pointer), (unimem_i32)(value))
#define UNIMEM_ATOMIC_MAX_I32(pointer, value) atomicMax((unimem_i32*)(pointer), (unimem_i32)(value))
#define UNIMEM_ATOMIC_EXCHANGE_I32(pointer, value) atomicExch((unimem_i32*)(pointer), (unimem_i32)(value))
#define UNIMEM_ATOMIC_COMPARE_EXCHANGE_I32(pointer, expected, value) \
  atomicCAS((unimem_i32*)(pointer), (unimem_i32)(expected), (unimem_i32)(value))
#define UNIMEM_AS_U64(call, pointer, ...) ((unimem_u64)call((unsigned long long*)(pointer), __VA_ARGS__))
#define UNIMEM_ATOMIC_ADD_U64(pointer, value) UNIMEM_AS_U64(atomicAdd, pointer, (unsigned long long)(value))
#define UNIMEM_ATOMIC_MIN_U64(pointer, value) UNIMEM_AS_U64(atomicMin, pointer, (unsigned long long)(value))
#define UNIMEM_ATOMIC_MAX_U64(pointer, value) UNIMEM_AS_U64(atomicMax, pointer, (unsigned long long)(value))
#define UNIMEM_ATOMIC_EXCHANGE_U64(pointer, value) UNIMEM_AS_U64(atomicExch, pointer, (unsigned long long)(value))
#define UNIMEM_ATOMIC_COMPARE_EXCHANGE_U64(pointer, expected, value) \
  UNIMEM_AS_U64(atomicCAS, pointer, (unsigned long long)(expected), (unsigned long long)(value))
#define UNIMEM_ATOMIC_ADD_F32(pointer, value) atomicAdd((float*)(pointer), (float)(value))

#define UNIMEM_OVERLOADED inline __device__

extern __shared__ unimem_u64 unimem_items[];
#ifdef UNIMEM_KEEPS_RANGE
__shared__ unimem_u64 unimem_range_kept[3];
#endif

#ifdef UNIMEM_GROUPED
__device__ __forceinline__ bool unimem_in_column() { return false; }
#else
__device__ __forceinline__ bool unimem_in_column() { return blockDim.x == 1 && blockDim.y > 1; }
#endif
__device__ __forceinline__ unimem_u64 unimem_item_x() {
  return unimem_in_column() ? unimem_items[3 * threadIdx.y] : blockIdx.x * (unimem_u64)blockDim.x + threadIdx.x;
}
__device__ __forceinline__ unimem_u64 unimem_item_y() {
  return unimem_in_column() ? unimem_items[3 * threadIdx.y + 1] : blockIdx.y * (unimem_u64)blockDim.y + threadIdx.y;
}
__device__ __forceinline__ unimem_u64 unimem_item_z() {
  return unimem_in_column() ? unimem_items[3 * threadIdx.y + 2] : blockIdx.z * (unimem_u64)blockDim.z + threadIdx.z;
}

struct unimem_range { unimem_u64 x, y, z; };

template <auto unimem_body, class... unimem_p>
__global__ void unimem_run(unimem_range unimem_r, unimem_p... unimem_a) {
#ifdef UNIMEM_KEEPS_RANGE
  if (UNIMEM_LOCAL_NUMBER == 0) {
    unimem_range_kept[0] = unimem_r.x;
    unimem_range_kept[1] = unimem_r.y;
    unimem_range_kept[2] = unimem_r.z;
  }
  __syncthreads();
#endif
  unimem_u64 unimem_i = blockIdx.x * (unimem_u64)blockDim.y + threadIdx.y;
  do {
    if (!unimem_in_column()) {
      if (unimem_item_x() >= unimem_r.x) return;
    } else {
      if (unimem_i >= unimem_r.x * unimem_r.y * unimem_r.z) return;
      const unimem_u64 unimem_row = unimem_i / unimem_r.x, unimem_layer = unimem_row / unimem_r.y;
      unimem_items[3 * threadIdx.y] = unimem_i - unimem_row * unimem_r.x;
      unimem_items[3 * threadIdx.y + 1] = unimem_row - unimem_layer * unimem_r.y;
      unimem_items[3 * threadIdx.y + 2] = unimem_layer;
      unimem_i += gridDim.x * (unimem_u64)blockDim.y;
    }
    unimem_body(unimem_a...);
  } while (unimem_in_column());
}

template <auto unimem_body, class... unimem_p>
__device__ constexpr auto unimem_entry(void (*)(unimem_p...)) { return &unimem_run<unimem_body, unimem_p...>; }

template <class> struct unimem_kind { static const int value = 5; };
template <class unimem_t> struct unimem_kind<unimem_t*> { static const int value = 1; };
template <> struct unimem_kind<unsigned char> { static const int value = 2; };
template <> struct unimem_kind<unsigned short> { static const int value = 2; };
template <> struct unimem_kind<unsigned int> { static const int value = 2; };
template <> struct unimem_kind<unsigned long> { static const int value = 2; };
template <> struct unimem_kind<unsigned long long> { static const int value = 2; };
template <> struct unimem_kind<bool> { static const int value = 2; };
template <> struct unimem_kind<char> { static const int value = 3; };
template <> struct unimem_kind<signed char> { static const int value = 3; };
template <> struct unimem_kind<short> { static const int value = 3; };
template <> struct unimem_kind<int> { static const int value = 3; };
template <> struct unimem_kind<long> { static const int value = 3; };
template <> struct unimem_kind<long long> { static const int value = 3; };
template <> struct unimem_kind<float> { static const int value = 4; };
template <> struct unimem_kind<double> { static const int value = 4; };

template <class unimem_t> __device__ constexpr auto unimem_size(int) -> decltype(sizeof(unimem_t)) { return sizeof(unimem_t); }
template <class unimem_t> __device__ constexpr unimem_u64 unimem_size(long) { return 0; }

template <class unimem_t> struct unimem_element {
  static const unimem_u64 kind = unimem_kind<unimem_t>::value, bytes = unimem_size<unimem_t>(0), lanes = 1;
};
template <> struct unimem_element<void> { static const unimem_u64 kind = 5, bytes = 0, lanes = 1; };
#ifdef __CUDACC_RTC__
#define UNIMEM_VECTOR_ELEMENT(T, N) template <> struct unimem_element<T##N> { \
  static const unimem_u64 kind = unimem_kind<decltype(T##N::x)>::value, bytes = sizeof(T##N::x), lanes = N; };
#define UNIMEM_EACH_LENGTH(T) UNIMEM_VECTOR_ELEMENT(T, 2) UNIMEM_VECTOR_ELEMENT(T, 3) UNIMEM_VECTOR_ELEMENT(T, 4)
UNIMEM_EACH_LENGTH(char) UNIMEM_EACH_LENGTH(uchar) UNIMEM_EACH_LENGTH(short) UNIMEM_EACH_LENGTH(ushort) UNIMEM_EACH_LENGTH(int) UNIMEM_EACH_LENGTH(uint)
UNIMEM_EACH_LENGTH(longlong) UNIMEM_EACH_LENGTH(ulonglong) UNIMEM_EACH_LENGTH(float) UNIMEM_EACH_LENGTH(double)
#undef UNIMEM_EACH_LENGTH
#undef UNIMEM_VECTOR_ELEMENT
#endif

__device__ constexpr unimem_u64 unimem_least(unimem_u64 unimem_a, unimem_u64 unimem_b) { return unimem_a < unimem_b ? unimem_a : unimem_b; }
template <class unimem_t> struct unimem_code {
  static const unimem_u64 value = unimem_kind<unimem_t>::value | unimem_least(sizeof(unimem_t), 0xFFFF) << 3;
};
template <class unimem_e, unimem_u64 unimem_c> struct unimem_pointer_code {
  static const unimem_u64 value = 1 | sizeof(void*) << 3 | unimem_c << 19 | unimem_element<unimem_e>::kind << 20 |
                                  unimem_least(unimem_element<unimem_e>::bytes, 0xFFFFFFFF) << 23 | unimem_element<unimem_e>::lanes << 55;
};
template <class unimem_e> struct unimem_code<unimem_e*> : unimem_pointer_code<unimem_e, 0> {};
template <class unimem_e> struct unimem_code<volatile unimem_e*> : unimem_pointer_code<unimem_e, 0> {};
template <class unimem_e> struct unimem_code<const unimem_e*> : unimem_pointer_code<unimem_e, 1> {};
template <class unimem_e> struct unimem_code<const volatile unimem_e*> : unimem_pointer_code<unimem_e, 1> {};

template <unimem_u64... unimem_codes> __device__ char unimem_signature = 0;
template <class> struct unimem_parameters;
template <class... unimem_p> struct unimem_parameters<void(unimem_p...)> {
  static_assert(sizeof...(unimem_p) <= 64, "a kernel has at most 64 parameters");
  static __device__ constexpr char* signature() { return &unimem_signature<unimem_code<unimem_p>::value...>; }
};
template <class unimem_f> __device__ constexpr char* unimem_signature_of() { return unimem_parameters<unimem_f>::signature(); }
)";

/// What stands between the prelude and a source that is compiled as it is.
inline constexpr std::string_view plain_begin = "#line 1\n";

/// What stands around a source in the portable form. A namespace of its own, because CUDA has functions in the global
/// one (norm, min) that OpenCL has not, or not as functions.
///
/// There vectors have the operators that OpenCL C has for them, lane by lane.
inline constexpr std::string_view portable_begin = R"(
namespace unimem_source {
template <class> struct unimem_vector;
#define UNIMEM_VECTOR_TYPE(name, T, N) \
  typedef T##N name; \
  template <> struct unimem_vector<T##N> { typedef decltype(T##N::x) lane; static const int lanes = N; };
UNIMEM_VECTOR_TYPE(unimem_u8x2, uchar, 2) UNIMEM_VECTOR_TYPE(unimem_u8x4, uchar, 4)
UNIMEM_VECTOR_TYPE(unimem_i8x2, char, 2) UNIMEM_VECTOR_TYPE(unimem_i8x4, char, 4)
UNIMEM_VECTOR_TYPE(unimem_u16x2, ushort, 2) UNIMEM_VECTOR_TYPE(unimem_u16x4, ushort, 4)
UNIMEM_VECTOR_TYPE(unimem_i16x2, short, 2) UNIMEM_VECTOR_TYPE(unimem_i16x4, short, 4)
UNIMEM_VECTOR_TYPE(unimem_u32x2, uint, 2) UNIMEM_VECTOR_TYPE(unimem_u32x4, uint, 4)
UNIMEM_VECTOR_TYPE(unimem_i32x2, int, 2) UNIMEM_VECTOR_TYPE(unimem_i32x4, int, 4)
UNIMEM_VECTOR_TYPE(unimem_u64x2, ulonglong, 2) UNIMEM_VECTOR_TYPE(unimem_i64x2, longlong, 2)
UNIMEM_VECTOR_TYPE(unimem_f32x2, float, 2) UNIMEM_VECTOR_TYPE(unimem_f32x4, float, 4)
UNIMEM_VECTOR_TYPE(unimem_f64x2, double, 2)
#undef UNIMEM_VECTOR_TYPE

template <class unimem_v> using unimem_lane = typename unimem_vector<unimem_v>::lane;
template <class unimem_v> __device__ unimem_v unimem_make(unimem_lane<unimem_v> x) {
  if constexpr (unimem_vector<unimem_v>::lanes == 2) return {x, x}; else return {x, x, x, x};
}
template <class unimem_v> __device__ unimem_v unimem_make(unimem_lane<unimem_v> x, unimem_lane<unimem_v> y) { return {x, y}; }
template <class unimem_v> __device__ unimem_v unimem_make(unimem_lane<unimem_v> x, unimem_lane<unimem_v> y, unimem_lane<unimem_v> z,
                                                          unimem_lane<unimem_v> w) { return {x, y, z, w}; }
#define UNIMEM_VECTOR(T, ...) unimem_make<T>(__VA_ARGS__)

#define UNIMEM_VECTOR_OPERATOR(OP) \
  template <class unimem_v, class unimem_l = unimem_lane<unimem_v>> __device__ unimem_v operator OP(unimem_v a, unimem_v b) { \
    if constexpr (unimem_vector<unimem_v>::lanes == 2) return {unimem_l(a.x OP b.x), unimem_l(a.y OP b.y)}; \
    else return {unimem_l(a.x OP b.x), unimem_l(a.y OP b.y), unimem_l(a.z OP b.z), unimem_l(a.w OP b.w)}; \
  } \
  template <class unimem_v> __device__ unimem_v operator OP(unimem_v a, unimem_lane<unimem_v> b) { return a OP unimem_make<unimem_v>(b); } \
  template <class unimem_v> __device__ unimem_v operator OP(unimem_lane<unimem_v> a, unimem_v b) { return unimem_make<unimem_v>(a) OP b; } \
  template <class unimem_v, class = unimem_lane<unimem_v>> __device__ unimem_v& operator OP##=(unimem_v& a, unimem_v b) { return a = a OP b; } \
  template <class unimem_v> __device__ unimem_v& operator OP##=(unimem_v& a, unimem_lane<unimem_v> b) { return a = a OP b; }
UNIMEM_VECTOR_OPERATOR(+) UNIMEM_VECTOR_OPERATOR(-) UNIMEM_VECTOR_OPERATOR(*) UNIMEM_VECTOR_OPERATOR(/)
UNIMEM_VECTOR_OPERATOR(%) UNIMEM_VECTOR_OPERATOR(&) UNIMEM_VECTOR_OPERATOR(|) UNIMEM_VECTOR_OPERATOR(^)
#undef UNIMEM_VECTOR_OPERATOR
template <class unimem_v, class unimem_l = unimem_lane<unimem_v>> __device__ unimem_v operator-(unimem_v a) {
  if constexpr (unimem_vector<unimem_v>::lanes == 2) return {unimem_l(-a.x), unimem_l(-a.y)};
  else return {unimem_l(-a.x), unimem_l(-a.y), unimem_l(-a.z), unimem_l(-a.w)};
}
#line 1
)";
inline constexpr std::string_view portable_end = "\n}\n";

}  // namespace unimem::detail::cuda
