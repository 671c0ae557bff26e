// Storage types and the way between memory and registers: half and bfloat16 are read as they are and computed in float.
// Narrowing rounds to nearest even; a nan stays a nan, an overflow becomes infinity.
#pragma once

#include <losszoo/platform.h>
#if LZ_CUDA
#include <losszoo/ptx.h>
#endif

namespace lz {

struct half {
    uint16 bits;
};
struct bfloat16 {
    uint16 bits;
};

LZ_FN float widen(bfloat16 x) { return bit_cast<float>(static_cast<uint32>(x.bits) << 16); }

LZ_FN float widen(half x) {
#if LZ_CUDA
    return ptx::half_to_float(x.bits);
#else
    int32 magnitude = x.bits & 0x7fff;
    int32 sign = (x.bits & 0x8000) << 16;
    int32 rebias = select(magnitude < 0x7c00, 0x38000000, 0x70000000);  // infinity and nan have the top exponent
    int32 subnormal = bit_cast<int32>(static_cast<float>(magnitude) * 0x1p-24f);
    return bit_cast<float>(select(magnitude < 0x0400, subnormal, (magnitude << 13) + rebias) | sign);
#endif
}

LZ_FN bfloat16 narrow_bfloat16(float x) {
#if LZ_CUDA
    return {ptx::float_to_bfloat16(x)};
#else
    uint32 bits = bit_cast<uint32>(x);
    uint32 rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
    return {static_cast<uint16>(select(x != x, 0x7fc0u, rounded))};
#endif
}

LZ_FN half narrow_half(float x) {
#if LZ_CUDA
    return {ptx::float_to_half(x)};
#else
    int32 bits = bit_cast<int32>(x);
    int32 magnitude = bits & 0x7fffffff;
    int32 sign = (bits >> 16) & 0x8000;
    int32 normal = (magnitude - 0x38000000 + 0xfff + ((bits >> 13) & 1)) >> 13;
    int32 subnormal = bit_cast<int32>(bit_cast<float>(magnitude) + 0.5f) - 0x3f000000;  // 0.5 has an ulp of 2^-24
    int32 y = select(magnitude < 0x38800000, subnormal, normal);
    y = y < 0x7c00 ? y : 0x7c00;
    return {static_cast<uint16>(select(x != x, 0x7e00, y) | sign)};
#endif
}

// R(x) for any two of float, double, half and bfloat16. (double to 16 bits goes through float and may round twice.)
template <class R, class T> LZ_FN R to(T x) {
    if constexpr (is_same<R, T>)
        return x;
    else if constexpr (is_same<T, half> || is_same<T, bfloat16>)
        return to<R>(widen(x));
    else if constexpr (is_same<R, half>)
        return narrow_half(static_cast<float>(x));
    else if constexpr (is_same<R, bfloat16>)
        return narrow_bfloat16(static_cast<float>(x));
    else
        return static_cast<R>(x);
}

template <class R, class T> LZ_FN R load(const T* p) { return to<R>(*p); }
template <class T, class R> LZ_FN void store(T* p, R x) { *p = to<T>(x); }

// into = from, rounded. Where there is an instruction for two at once, by that.
template <class T, class R, int N> LZ_FN void narrow(const R (&from)[N], T (&into)[N]) {
#if LZ_CUDA
    if constexpr (sizeof(T) == 2 && N % 2 == 0) {
        LZ_UNROLL
        for (int i = 0; i < N; i += 2) {
            const float low = to<float>(from[i]), high = to<float>(from[i + 1]);
            const uint32 pair = is_same<T, half> ? ptx::floats_to_half2(low, high) : ptx::floats_to_bfloat162(low, high);
            into[i].bits = static_cast<uint16>(pair);
            into[i + 1].bits = static_cast<uint16>(pair >> 16);
        }
        return;
    }
#endif
    LZ_UNROLL
    for (int i = 0; i < N; ++i) into[i] = to<T>(from[i]);
}

}  // namespace lz
