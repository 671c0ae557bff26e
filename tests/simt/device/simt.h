// CUDA C++ for g++: included before a rendered kernel, which is then compiled as it is. The runtime beside it does the work.
//
// A call is known by its place in the program, so what calls the runtime is always inlined.
#pragma once

#define __CUDACC__ 1
#define __CUDA_ARCH__ 900
#define __host__
#define __device__
#define __global__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __grid_constant__
// Every variable of the thread-local segment is shared memory: the runtime finds them all there, those of templates too.
#define __shared__ thread_local

struct uint3 {
  unsigned x, y, z;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) double2 {
  double x, y;
};

extern "C" {

#define SIMT_MATH_1(name) \
  double name(double);    \
  float name##f(float);
#define SIMT_MATH_2(name)      \
  double name(double, double); \
  float name##f(float, float);
SIMT_MATH_1(fabs)
SIMT_MATH_1(floor)
SIMT_MATH_1(ceil)
SIMT_MATH_1(rint)
SIMT_MATH_1(sqrt)
SIMT_MATH_1(exp)
SIMT_MATH_1(exp2)
SIMT_MATH_1(expm1)
SIMT_MATH_1(log)
SIMT_MATH_1(log2)
SIMT_MATH_1(log1p)
SIMT_MATH_1(tanh)
SIMT_MATH_1(sin)
SIMT_MATH_1(cos)
SIMT_MATH_1(asin)
SIMT_MATH_1(acos)
SIMT_MATH_1(atan)
SIMT_MATH_2(atan2)
SIMT_MATH_2(pow)
SIMT_MATH_2(copysign)
SIMT_MATH_2(fmax)
SIMT_MATH_2(fmin)
double fma(double, double, double);
float fmaf(float, float, float);
void* memcpy(void*, const void*, __SIZE_TYPE__);
void* memset(void*, int, __SIZE_TYPE__);

uint3 simt_thread() __attribute__((const));
uint3 simt_block() __attribute__((const));
uint3 simt_block_size() __attribute__((const));
uint3 simt_grid_size() __attribute__((const));
unsigned simt_lane() __attribute__((const));
void simt_barrier(const char* file, int line);
// Waits for the lanes of the mask, to hear of one of them or (-1) of all; `ordering` orders their accesses to memory as well.
void simt_exchange(unsigned mask, unsigned long long value, int source, bool ordering, const char* what, const char* file, int line);
unsigned simt_present();                      // the lanes that took part in the last exchange
unsigned long long simt_brought(int lane);    // what one of them brought
void simt_fence();
[[noreturn]] void simt_fail(const char* message, ...);

}  // extern "C"

enum simt_operation { SIMT_ADD, SIMT_SUB, SIMT_MIN, SIMT_MAX, SIMT_EXCHANGE, SIMT_COMPARE_AND_SWAP, SIMT_AND, SIMT_OR };
// The value before. Instances: int, unsigned, unsigned long long, float, double.
template <class T> T simt_atomic(simt_operation, T* at, T value, T compare);

#define threadIdx simt_thread()
#define blockIdx simt_block()
#define blockDim simt_block_size()
#define gridDim simt_grid_size()
constexpr int warpSize = 32;

#define SIMT_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

// --- barriers and fences ---------------------------------------------------------------------------------------------

__forceinline__ void __syncthreads(SIMT_HERE) { simt_barrier(file, line); }
__forceinline__ void __syncwarp(unsigned mask = 0xffffffffu, SIMT_HERE) { simt_exchange(mask, 0, -1, true, "__syncwarp", file, line); }
__forceinline__ void __threadfence() { simt_fence(); }
__forceinline__ void __threadfence_block() { simt_fence(); }
// All lanes that have not left must come: of diverged ones, hardware would say whatever it likes.
__forceinline__ unsigned __activemask(SIMT_HERE) {
  simt_exchange(0xffffffffu, 0, -1, false, "__activemask", file, line);
  return simt_present();
}

// --- what the lanes of a warp tell each other ------------------------------------------------------------------------

template <class T> __forceinline__ T simt_from(int lane) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a shuffle moves 4 or 8 bytes");
  const unsigned long long payload = simt_brought(lane);
  T value;
  memcpy(&value, &payload, sizeof(T));
  return value;
}

template <class T> __forceinline__ unsigned long long simt_payload(T value) {
  unsigned long long payload = 0;
  memcpy(&payload, &value, sizeof(T));
  return payload;
}

__forceinline__ int simt_segment(int width) {
  if (width < 1 || width > 32 || (width & (width - 1))) simt_fail("a shuffle of width %d, which is no power of two up to 32", width);
  return int(simt_lane()) & ~(width - 1);
}

template <class T> __forceinline__ T simt_shuffle(unsigned mask, T value, int source, const char* what, const char* file, int line) {
  simt_exchange(mask, simt_payload(value), source, false, what, file, line);
  return simt_from<T>(source);
}

template <class T> __forceinline__ T __shfl_sync(unsigned mask, T value, int source, int width = 32, SIMT_HERE) {
  return simt_shuffle(mask, value, simt_segment(width) + (source & (width - 1)), "__shfl_sync", file, line);
}

// Past the segment, a lane hears itself.
template <class T> __forceinline__ T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, SIMT_HERE) {
  const int self = simt_lane(), source = self ^ bits, end = simt_segment(width) + width;
  return simt_shuffle(mask, value, source < end ? source : self, "__shfl_xor_sync", file, line);
}

template <class T> __forceinline__ T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32, SIMT_HERE) {
  const int self = simt_lane(), source = self + int(by), end = simt_segment(width) + width;
  return simt_shuffle(mask, value, source < end ? source : self, "__shfl_down_sync", file, line);
}

template <class T> __forceinline__ T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, SIMT_HERE) {
  const int self = simt_lane(), source = self - int(by);
  return simt_shuffle(mask, value, source >= simt_segment(width) ? source : self, "__shfl_up_sync", file, line);
}

// Folds what the lanes of the mask brought.
template <class T, class Fold>
__forceinline__ T simt_reduce(unsigned mask, T value, const char* what, const char* file, int line, Fold fold) {
  simt_exchange(mask, simt_payload(value), -1, false, what, file, line);
  T all = value;
  for (int lane = 0; lane < 32; ++lane)
    if (mask >> lane & 1 && lane != int(simt_lane())) all = fold(all, simt_from<T>(lane));
  return all;
}

#define SIMT_REDUCE(name, T, expression)                                                                         \
  __forceinline__ T name(unsigned mask, T value, SIMT_HERE) {                                                    \
    return simt_reduce(mask, value, #name, file, line, [](T a, T b) __attribute__((always_inline)) { return expression; }); \
  }
SIMT_REDUCE(__reduce_add_sync, unsigned, a + b)
SIMT_REDUCE(__reduce_add_sync, int, int(unsigned(a) + unsigned(b)))
SIMT_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
SIMT_REDUCE(__reduce_min_sync, int, a < b ? a : b)
SIMT_REDUCE(__reduce_max_sync, unsigned, a > b ? a : b)
SIMT_REDUCE(__reduce_max_sync, int, a > b ? a : b)
SIMT_REDUCE(__reduce_and_sync, unsigned, a & b)
SIMT_REDUCE(__reduce_or_sync, unsigned, a | b)
SIMT_REDUCE(__reduce_xor_sync, unsigned, a ^ b)

__forceinline__ unsigned __ballot_sync(unsigned mask, int holds, SIMT_HERE) {
  return simt_reduce(mask, holds ? 1u << simt_lane() : 0u, "__ballot_sync", file, line, [](unsigned a, unsigned b) { return a | b; });
}
__forceinline__ int __any_sync(unsigned mask, int holds, SIMT_HERE) { return __ballot_sync(mask, holds, file, line) != 0; }
__forceinline__ int __all_sync(unsigned mask, int holds, SIMT_HERE) { return __ballot_sync(mask, !holds, file, line) == 0; }

// --- memory ----------------------------------------------------------------------------------------------------------

template <class T> __forceinline__ T __ldg(const T* from) { return *from; }
template <class T> __forceinline__ T __ldca(const T* from) { return *from; }
template <class T> __forceinline__ T __ldcg(const T* from) { return *from; }
template <class T> __forceinline__ T __ldcs(const T* from) { return *from; }
template <class T> __forceinline__ T __ldlu(const T* from) { return *from; }
template <class T> __forceinline__ void __stwb(T* into, T value) { *into = value; }
template <class T> __forceinline__ void __stcg(T* into, T value) { *into = value; }
template <class T> __forceinline__ void __stcs(T* into, T value) { *into = value; }

#define SIMT_ATOMIC(T)                                                                                            \
  __forceinline__ T atomicAdd(T* at, T value) { return simt_atomic<T>(SIMT_ADD, at, value, value); }                \
  __forceinline__ T atomicExch(T* at, T value) { return simt_atomic<T>(SIMT_EXCHANGE, at, value, value); }
#define SIMT_ATOMIC_INTEGER(T)                                                                                    \
  SIMT_ATOMIC(T)                                                                                                  \
  __forceinline__ T atomicSub(T* at, T value) { return simt_atomic<T>(SIMT_SUB, at, value, value); }                \
  __forceinline__ T atomicMin(T* at, T value) { return simt_atomic<T>(SIMT_MIN, at, value, value); }                \
  __forceinline__ T atomicMax(T* at, T value) { return simt_atomic<T>(SIMT_MAX, at, value, value); }                \
  __forceinline__ T atomicAnd(T* at, T value) { return simt_atomic<T>(SIMT_AND, at, value, value); }                \
  __forceinline__ T atomicOr(T* at, T value) { return simt_atomic<T>(SIMT_OR, at, value, value); }                  \
  __forceinline__ T atomicCAS(T* at, T compare, T value) { return simt_atomic<T>(SIMT_COMPARE_AND_SWAP, at, value, compare); }
SIMT_ATOMIC(float)
SIMT_ATOMIC(double)
SIMT_ATOMIC_INTEGER(int)
SIMT_ATOMIC_INTEGER(unsigned)
SIMT_ATOMIC_INTEGER(unsigned long long)

// --- arithmetic ------------------------------------------------------------------------------------------------------

// The C library has functions of these names, declared or not.
#define __expf(x) expf(x)
#define __exp2f(x) exp2f(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
__forceinline__ float __fdividef(float x, float y) { return x / y; }
__forceinline__ float __frcp_rn(float x) { return 1 / x; }
__forceinline__ float rsqrtf(float x) { return 1 / sqrtf(x); }
__forceinline__ double rsqrt(double x) { return 1 / sqrt(x); }
__forceinline__ int __popc(unsigned x) { return __builtin_popcount(x); }
__forceinline__ int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
__forceinline__ int __ffs(int x) { return __builtin_ffs(x); }
template <class T> __forceinline__ T min(T a, T b) { return b < a ? b : a; }
template <class T> __forceinline__ T max(T a, T b) { return a < b ? b : a; }
