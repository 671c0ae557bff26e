// What differs between the compilers that read these headers: g++ and clang++ for CPU kernels, NVRTC and nvcc for CUDA.
// No header of the host is included: NVRTC has none, and without them a CPU build takes half the time.
#pragma once

#if defined(__CUDACC__)
#define LZ_CUDA 1
#define LZ_FN __device__ __forceinline__
#define LZ_METHOD __device__ __forceinline__
#define LZ_UNROLL _Pragma("unroll")
#else
#define LZ_CUDA 0
#define LZ_FN static inline __attribute__((always_inline))
#define LZ_METHOD inline __attribute__((always_inline))
#define LZ_UNROLL
#if !defined(__clang__)
// No loop is made several of, for a condition that is the same for all of it, a stride that may be 1, or a part of its range: templates do
// so where it is worth it, and GCC takes a fifth longer over what is not. Here, as clang knows no such flags.
#pragma GCC optimize("no-unswitch-loops", "no-version-loops-for-strides", "no-split-loops")
#endif
#endif

namespace lz {

using int8 = signed char;
using uint8 = unsigned char;
using int16 = short;
using uint16 = unsigned short;
using int32 = int;
using uint32 = unsigned int;
using int64 = long long;
using uint64 = unsigned long long;
static_assert(sizeof(int16) == 2 && sizeof(int32) == 4 && sizeof(int64) == 8, "integers of 16, 32 and 64 bits");

template <class A, class B> constexpr bool is_same = false;
template <class A> constexpr bool is_same<A, A> = true;

// The value whose bytes are those of x.
template <class To, class From> LZ_FN To bit_cast(From x) {
    static_assert(sizeof(To) == sizeof(From), "bit_cast keeps the size");
    To y;
#if LZ_CUDA
    memcpy(&y, &x, sizeof(y));
#else
    __builtin_memcpy(&y, &x, sizeof(y));
#endif
    return y;
}

template <class T> LZ_FN T infinity() {
    if constexpr (is_same<T, float>)
        return bit_cast<float>(0x7f800000u);
    else
        return bit_cast<double>(0x7ff0000000000000ull);
}

template <class T> LZ_FN T nan() {
    if constexpr (is_same<T, float>)
        return bit_cast<float>(0x7fc00000u);
    else
        return bit_cast<double>(0x7ff8000000000000ull);
}

// The smallest normal number.
template <class T> LZ_FN T smallest() {
    if constexpr (is_same<T, float>)
        return bit_cast<float>(0x00800000u);
    else
        return bit_cast<double>(0x0010000000000000ull);
}

// c ? a : b, both computed. On the CPU as bit masks, of which GCC makes one blend: of chained ?: it makes branches and
// threads their jumps, and then the loop around them does not vectorise, or drags a dozen masks along.
template <class T> LZ_FN T select(bool c, T a, T b) {
#if LZ_CUDA
    return c ? a : b;
#else
    if constexpr (sizeof(T) == 4) {
        uint32 mask = -static_cast<uint32>(c);
        return bit_cast<T>((bit_cast<uint32>(a) & mask) | (bit_cast<uint32>(b) & ~mask));
    } else if constexpr (sizeof(T) == 8) {
        uint64 mask = -static_cast<uint64>(c);
        return bit_cast<T>((bit_cast<uint64>(a) & mask) | (bit_cast<uint64>(b) & ~mask));
    } else {
        return c ? a : b;
    }
#endif
}

}  // namespace lz
