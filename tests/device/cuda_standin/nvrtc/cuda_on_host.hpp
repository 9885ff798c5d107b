#pragma once

#include <string_view>

namespace standin {

/// What stands before a CUDA source to make it a host's: the words of the language, and of what NVRTC knows without
/// headers the part that kernels here use. No header is included, so that a kernel compiles in a blink.
///
/// The threads of a block run one after the other, each until it ends or comes to a __syncthreads: there the next one
/// goes on, on a stack of its own.
inline constexpr std::string_view cuda_on_host = R"(
#define __device__
#define __host__
#define __global__
#define __constant__ static const
#define __shared__ thread_local
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __CUDACC_RTC__ 1

typedef decltype(sizeof 0) size_t;

#define UNIMEM_STANDIN_VECTORS(T, name)                                                              \
  struct alignas(2 * sizeof(T)) name##2 { T x, y; };                                                 \
  struct name##3 { T x, y, z; };                                                                     \
  struct alignas(4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16) name##4 { T x, y, z, w; };                 \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                         \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
UNIMEM_STANDIN_VECTORS(int, int)
UNIMEM_STANDIN_VECTORS(unsigned int, uint)
UNIMEM_STANDIN_VECTORS(float, float)
UNIMEM_STANDIN_VECTORS(double, double)
UNIMEM_STANDIN_VECTORS(signed char, char)
UNIMEM_STANDIN_VECTORS(unsigned char, uchar)
UNIMEM_STANDIN_VECTORS(short, short)
UNIMEM_STANDIN_VECTORS(unsigned short, ushort)
UNIMEM_STANDIN_VECTORS(long long, longlong)
UNIMEM_STANDIN_VECTORS(unsigned long long, ulonglong)

typedef uint3 dim3;
static thread_local uint3 threadIdx, blockIdx;
static thread_local dim3 blockDim, gridDim;

#define UNIMEM_STANDIN_MATH1(name)                                              \
  inline double name(double x) { return __builtin_##name(x); }                  \
  inline float name(float x) { return __builtin_##name##f(x); }                 \
  inline float name##f(float x) { return __builtin_##name##f(x); }
#define UNIMEM_STANDIN_MATH2(name)                                              \
  inline double name(double x, double y) { return __builtin_##name(x, y); }     \
  inline float name(float x, float y) { return __builtin_##name##f(x, y); }     \
  inline float name##f(float x, float y) { return __builtin_##name##f(x, y); }
UNIMEM_STANDIN_MATH1(sqrt) UNIMEM_STANDIN_MATH1(cbrt) UNIMEM_STANDIN_MATH1(fabs) UNIMEM_STANDIN_MATH1(exp)
UNIMEM_STANDIN_MATH1(exp2) UNIMEM_STANDIN_MATH1(expm1) UNIMEM_STANDIN_MATH1(log) UNIMEM_STANDIN_MATH1(log2)
UNIMEM_STANDIN_MATH1(log10) UNIMEM_STANDIN_MATH1(log1p) UNIMEM_STANDIN_MATH1(sin) UNIMEM_STANDIN_MATH1(cos)
UNIMEM_STANDIN_MATH1(tan) UNIMEM_STANDIN_MATH1(asin) UNIMEM_STANDIN_MATH1(acos) UNIMEM_STANDIN_MATH1(atan)
UNIMEM_STANDIN_MATH1(sinh) UNIMEM_STANDIN_MATH1(cosh) UNIMEM_STANDIN_MATH1(tanh) UNIMEM_STANDIN_MATH1(floor)
UNIMEM_STANDIN_MATH1(ceil) UNIMEM_STANDIN_MATH1(trunc) UNIMEM_STANDIN_MATH1(round) UNIMEM_STANDIN_MATH1(rint)
UNIMEM_STANDIN_MATH2(pow) UNIMEM_STANDIN_MATH2(fmod) UNIMEM_STANDIN_MATH2(fmin) UNIMEM_STANDIN_MATH2(fmax)
UNIMEM_STANDIN_MATH2(hypot) UNIMEM_STANDIN_MATH2(atan2) UNIMEM_STANDIN_MATH2(copysign)
inline double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
inline float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
inline float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
inline bool isnan(double x) { return x != x; }
inline bool isinf(double x) { return __builtin_isinf(x); }
inline int abs(int x) { return x < 0 ? -x : x; }
inline long abs(long x) { return x < 0 ? -x : x; }
template <class unimem_t> inline unimem_t min(unimem_t x, unimem_t y) { return y < x ? y : x; }
template <class unimem_t> inline unimem_t max(unimem_t x, unimem_t y) { return x < y ? y : x; }
inline float rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline float __fmaf_rn(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
inline int __popc(unsigned int x) { return __builtin_popcount(x); }

template <class unimem_t> inline unimem_t __ldg(const unimem_t* p) { return *p; }
#define UNIMEM_STANDIN_ATOMICS(T)                                                                               \
  inline T atomicAdd(T* p, T v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }                          \
  inline T atomicExch(T* p, T v) { return __atomic_exchange_n(p, v, __ATOMIC_RELAXED); }                        \
  inline T atomicCAS(T* p, T expected, T v) {                                                                   \
    __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);                    \
    return expected;                                                                                            \
  }                                                                                                             \
  inline T atomicMax(T* p, T v) {                                                                               \
    T old = *p;                                                                                                 \
    while (old < v && !__atomic_compare_exchange_n(p, &old, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}   \
    return old;                                                                                                 \
  }                                                                                                             \
  inline T atomicMin(T* p, T v) {                                                                               \
    T old = *p;                                                                                                 \
    while (v < old && !__atomic_compare_exchange_n(p, &old, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}   \
    return old;                                                                                                 \
  }
UNIMEM_STANDIN_ATOMICS(int)
UNIMEM_STANDIN_ATOMICS(unsigned int)
UNIMEM_STANDIN_ATOMICS(unsigned long long)
inline float atomicAdd(float* p, float v) {
  float old = *p, sum = old + v;
  while (!__atomic_compare_exchange(p, &old, &sum, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) sum = old + v;
  return old;
}

extern "C" {
struct UnimemStandInContext {  // glibc's ucontext_t, as far as it is filled in here
  unsigned long flags;
  UnimemStandInContext* link;
  struct { void* begin; int flags; size_t bytes; } stack;
  alignas(16) char rest[8192];
};
int getcontext(UnimemStandInContext*);
void makecontext(UnimemStandInContext*, void (*)(), int, ...);
int swapcontext(UnimemStandInContext*, const UnimemStandInContext*);
void* mmap(void*, size_t, int, int, int, long);
}

struct UnimemStandInFibre {
  UnimemStandInContext context;
  uint3 thread;
  bool ended;
};
static thread_local struct UnimemStandInBlock {
  UnimemStandInFibre* fibres[1025];  // kept for the next block
  UnimemStandInContext scheduler;
  UnimemStandInFibre* running;
  unsigned next, count;  // of the threads that have not begun
  void (*body)(void* const*);
  void* const* parameters;

  static void work() {
    UnimemStandInBlock& block = current();
    UnimemStandInFibre* const own = block.running;
    while (block.next < block.count) {
      const unsigned i = block.next++;
      threadIdx = {i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
      block.body(block.parameters);
    }
    own->ended = true;
    swapcontext(&own->context, &block.scheduler);
  }
  static UnimemStandInBlock& current();
  void resume(UnimemStandInFibre* fibre) {
    running = fibre;
    swapcontext(&scheduler, &fibre->context);
  }
  UnimemStandInFibre* begin(unsigned number) {
    const size_t bytes = 256 << 10;
    if (fibres[number] == nullptr) {
      fibres[number] = static_cast<UnimemStandInFibre*>(mmap(nullptr, bytes, 3, 0x4022, -1, 0));
    }
    UnimemStandInFibre* const fibre = fibres[number];
    getcontext(&fibre->context);
    fibre->context.stack = {reinterpret_cast<char*>(fibre) + sizeof *fibre, 0, bytes - sizeof *fibre};
    fibre->context.link = nullptr;
    fibre->ended = false;
    makecontext(&fibre->context, &work, 0);
    return fibre;
  }
  void run(void (*of)(void* const*), void* const* given) {
    body = of;
    parameters = given;
    next = 0;
    count = blockDim.x * blockDim.y * blockDim.z;
    unsigned begun = 0;
    while (next < count) resume(begin(begun++));
    for (bool some = true; some;) {
      some = false;
      for (unsigned i = 0; i < begun; ++i) {
        if (fibres[i]->ended) continue;
        some = true;
        resume(fibres[i]);
      }
    }
  }
} unimem_standin_block;
inline UnimemStandInBlock& UnimemStandInBlock::current() { return unimem_standin_block; }
inline void __syncthreads() {
  UnimemStandInFibre* const own = unimem_standin_block.running;
  own->thread = threadIdx;
  swapcontext(&own->context, &unimem_standin_block.scheduler);
  threadIdx = own->thread;
}

struct UnimemStandInName { const char* file; void* base; const char* name; void* address; };
extern "C" int dladdr(const void* address, UnimemStandInName* found);
struct UnimemStandInKernel {
  const char* name;
  void (*run)(const unsigned* grid, const unsigned* block, void* const* parameters);
  unsigned parameter_count;
  const size_t* parameter_offsets;
  const size_t* parameter_bytes;
};

template <unsigned...> struct unimem_standin_indices {};
template <unsigned N, unsigned... I> struct unimem_standin_count : unimem_standin_count<N - 1, N - 1, I...> {};
template <unsigned... I> struct unimem_standin_count<0, I...> { typedef unimem_standin_indices<I...> type; };

/// What a name expression stands for: by itself a variable, and nothing to run.
template <auto unimem_value> struct unimem_standin_named {
  static const void* address() { return unimem_value; }
  static UnimemStandInKernel kernel(const char*) { return {}; }
};

template <class... unimem_p, void (*unimem_f)(unimem_p...)> struct unimem_standin_named<unimem_f> {
  static const void* address() { return reinterpret_cast<const void*>(unimem_f); }
  static UnimemStandInKernel kernel(const char* name) {
    return {name, &run, sizeof...(unimem_p), layout.offsets, layout.bytes};
  }

 private:
  struct Layout {
    size_t offsets[sizeof...(unimem_p) + 1] = {};
    size_t bytes[sizeof...(unimem_p) + 1] = {sizeof(unimem_p)...};
    constexpr Layout() {
      const size_t alignments[] = {alignof(unimem_p)..., 1};
      size_t end = 0;
      for (size_t i = 0; i < sizeof...(unimem_p); ++i) {
        offsets[i] = (end + alignments[i] - 1) / alignments[i] * alignments[i];
        end = offsets[i] + bytes[i];
      }
    }
  };
  static constexpr Layout layout{};

  template <unsigned... I>
  static void run_thread(void* const* parameters, unimem_standin_indices<I...>) {
    unimem_f(*static_cast<unimem_p*>(parameters[I])...);
  }
  static void run_thread(void* const* parameters) {
    run_thread(parameters, typename unimem_standin_count<sizeof...(unimem_p)>::type{});
  }

  static void run(const unsigned* grid, const unsigned* block, void* const* parameters) {
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    for (unsigned z = 0; z < grid[2]; ++z)
      for (unsigned y = 0; y < grid[1]; ++y)
        for (unsigned x = 0; x < grid[0]; ++x) {
          blockIdx = {x, y, z};
          unimem_standin_block.run(&run_thread, parameters);
        }
  }
};

inline const char* unimem_standin_name_of(const void* address, const char* otherwise) {
  UnimemStandInName found = {};
  return dladdr(address, &found) != 0 && found.name != nullptr && found.address == address ? found.name : otherwise;
}
)";

/// What stands behind it, before one `UNIMEM_STANDIN_EXPORT(number, expression)` for each name expression and the
/// brace that ends the function: it lists the kernels when the image is loaded, since only then they know what the
/// compiler called them.
inline constexpr std::string_view exports_begin = R"(
#line 1 "name expressions"
extern "C" {
UnimemStandInKernel unimem_standin_kernels[64];
unsigned unimem_standin_kernel_count;
const char* unimem_standin_names[64];
}
#define UNIMEM_STANDIN_EXPORT(number, ...)                                                                          \
  {                                                                                                                 \
    typedef unimem_standin_named<(__VA_ARGS__)> named;                                                              \
    unimem_standin_names[number] = unimem_standin_name_of(named::address(), "unimem_standin_entry_" #number);       \
    const UnimemStandInKernel kernel = named::kernel(unimem_standin_names[number]);                                 \
    if (kernel.run != nullptr) unimem_standin_kernels[unimem_standin_kernel_count++] = kernel;                      \
  }
__attribute__((constructor)) static void unimem_standin_export() {
)";

/// The memory behind the prelude's `unimem_items`, which a launch would bring: enough for the largest block.
inline constexpr std::string_view shared_items = "thread_local unimem_u64 unimem_items[3 * 1024];\n";

}  // namespace standin
