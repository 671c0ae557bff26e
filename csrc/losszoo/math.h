// Elementary functions for float and double, with torch's answers at zero, infinity and nan.
//
// double: the platform's library. float on CUDA: the library too, but for exp_fast, log1p_unit and pow. float on the
// CPU: inline and free of branches, so that a plain loop over an array vectorises (sin and cos alone call the library).
// Bounds for float, in ulp of the result, where the hardware has a fused multiply-add (tests/csrc/test_math.py):
//
//   sqrt                            0.5
//   divide                          0.5, on CUDA 2: the exact one jumps, which keeps neighbouring items from overlapping
//   reciprocal                      0.5, on CUDA 1; for 1 <= x <= 2 only, as in a sigmoid
//   exp, log, log1p, expm1, atan    2
//   sin, cos                        2
//   asin, acos, atan2, tanh         3
//   pow                             4 + |y log2(x)| / 3
//   exp_fast                        2 + |x| / 16, on CUDA 3 + 4/3 |x|; only for x <= 0, as in a softmax; 0 below -87.4
//   exp_falling                     the same, on CUDA 3 + |x| / 16 unless it is ROUGH: when what comes of it is stored in 16 bits
//   log1p_unit                      2, on CUDA 3; log1p for 0 <= x <= 1 only, as in a softplus
#pragma once

#include <losszoo/platform.h>
#if LZ_CUDA
#include <losszoo/ptx.h>
#endif

namespace lz {

// --- what maps to instructions ---------------------------------------------------------------------------------------

#if LZ_CUDA
LZ_FN float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
LZ_FN double fma(double a, double b, double c) { return ::fma(a, b, c); }
LZ_FN float sqrt(float x) { return ::sqrtf(x); }
LZ_FN double sqrt(double x) { return ::sqrt(x); }
LZ_FN float abs(float x) { return ::fabsf(x); }
LZ_FN double abs(double x) { return ::fabs(x); }
LZ_FN float divide(float a, float b) { return ptx::divide(a, b); }
LZ_FN double divide(double a, double b) { return a / b; }
LZ_FN float reciprocal(float x) { return ptx::reciprocal(x); }
LZ_FN double reciprocal(double x) { return 1 / x; }
LZ_FN float floor(float x) { return ::floorf(x); }
LZ_FN double floor(double x) { return ::floor(x); }
LZ_FN float copysign(float x, float s) { return ::copysignf(x, s); }
LZ_FN double copysign(double x, double s) { return ::copysign(x, s); }
#else
#if defined(__FMA__) || defined(__aarch64__)
LZ_FN float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
LZ_FN double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
LZ_FN float fma(float a, float b, float c) { return a * b + c; }
LZ_FN double fma(double a, double b, double c) { return a * b + c; }
#endif
LZ_FN float sqrt(float x) { return __builtin_sqrtf(x); }
LZ_FN double sqrt(double x) { return __builtin_sqrt(x); }
LZ_FN float abs(float x) { return __builtin_fabsf(x); }
LZ_FN double abs(double x) { return __builtin_fabs(x); }
template <class R> LZ_FN R divide(R a, R b) { return a / b; }
template <class R> LZ_FN R reciprocal(R x) { return 1 / x; }
LZ_FN float floor(float x) { return __builtin_floorf(x); }
LZ_FN double floor(double x) { return __builtin_floor(x); }
LZ_FN float copysign(float x, float s) { return __builtin_copysignf(x, s); }
LZ_FN double copysign(double x, double s) { return __builtin_copysign(x, s); }
#endif

template <class R> LZ_FN bool isnan(R x) { return x != x; }
template <class R> LZ_FN bool isinf(R x) { return abs(x) == infinity<R>(); }
template <class R> LZ_FN bool isfinite(R x) { return abs(x) < infinity<R>(); }
LZ_FN bool signbit(float x) { return bit_cast<int32>(x) < 0; }
LZ_FN bool signbit(double x) { return bit_cast<int64>(x) < 0; }

// The greater; b where a is nan, and on CUDA a where b is.
template <class R> LZ_FN R greater(R a, R b) {
#if LZ_CUDA
    return ::fmax(a, b);
#else
    return a > b ? a : b;
#endif
}

// As torch.maximum and torch.minimum: nan where either is nan.
template <class R> LZ_FN R maximum(R a, R b) { return select((a > b) | (a != a), a, b); }
template <class R> LZ_FN R minimum(R a, R b) { return select((a < b) | (a != a), a, b); }
#if LZ_CUDA
LZ_FN float maximum(float a, float b) { return ptx::max_nan(a, b); }
LZ_FN float minimum(float a, float b) { return ptx::min_nan(a, b); }
#endif

// --- double: the library ---------------------------------------------------------------------------------------------

#if LZ_CUDA
#define LZ_LIBRARY(name) ::name
#define LZ_LIBRARY_F(name) ::name##f
#else
#define LZ_LIBRARY(name) __builtin_##name
#define LZ_LIBRARY_F(name) __builtin_##name##f
#endif
#define LZ_DOUBLE_1(name) \
    LZ_FN double name(double x) { return LZ_LIBRARY(name)(x); }
#define LZ_DOUBLE_2(name) \
    LZ_FN double name(double x, double y) { return LZ_LIBRARY(name)(x, y); }
#define LZ_FLOAT_1(name) \
    LZ_FN float name(float x) { return LZ_LIBRARY_F(name)(x); }
#define LZ_FLOAT_2(name) \
    LZ_FN float name(float x, float y) { return LZ_LIBRARY_F(name)(x, y); }

LZ_DOUBLE_1(exp)
LZ_DOUBLE_1(log)
LZ_DOUBLE_1(log1p)
LZ_DOUBLE_1(expm1)
LZ_DOUBLE_1(tanh)
LZ_DOUBLE_1(sin)
LZ_DOUBLE_1(cos)
LZ_DOUBLE_1(asin)
LZ_DOUBLE_1(acos)
LZ_DOUBLE_1(atan)
LZ_DOUBLE_2(atan2)
LZ_DOUBLE_2(pow)
LZ_FN double exp_fast(double x) { return exp(x); }
template <bool> LZ_FN double exp_falling(double x) { return exp(x); }
LZ_FN double log1p_unit(double x) { return log1p(x); }

LZ_FLOAT_1(sin)
LZ_FLOAT_1(cos)

// --- float: the pieces -----------------------------------------------------------------------------------------------

namespace detail {

// x within [low, high], nan kept: the comparisons are false for it.
LZ_FN float clamp(float x, float low, float high) {
    x = low > x ? low : x;  // one maxps
    return select(high < x, high, x);
}

// Polynomials, the lowest coefficient first. horner takes the fewest operations; the others evaluate in pairs (Estrin),
// which shortens the chain of dependent operations: in a fused loop that matters more than the two it adds.
LZ_FN float horner(float, float a) { return a; }
template <class... Rest> LZ_FN float horner(float x, float a, Rest... rest) { return fma(horner(x, rest...), x, a); }

LZ_FN float poly8(float x, float x2, float a, float b, float c, float d, float e, float f, float g, float h) {
    float low = fma(fma(d, x, c), x2, fma(b, x, a));
    float high = fma(fma(h, x, g), x2, fma(f, x, e));
    return fma(high, x2 * x2, low);
}

LZ_FN float one_plus_poly7(float x, float a, float b, float c, float d, float e, float f, float g) {
    float x2 = x * x;
    float high = fma(fma(fma(g, x, f), x2, fma(e, x, d)), x2, fma(c, x, b));
    return horner(x, 1.0f, a, high);
}

// Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits, from where a shift by 23 makes an exponent.
constexpr float round_magic = 12582912.0f;

// p * 4^m, z = m + 127 + round_magic. Scaled by 2^m twice, a result underflows gradually and overflows to infinity.
LZ_FN float scale4(float p, float z) {
    float s = bit_cast<float>(bit_cast<uint32>(z) << 23);
    return p * s * s;
}

// The multiple of 2^23 to take from the bits of a positive x to bring it to sqrt(1/2) <= x < sqrt(2).
LZ_FN int32 exponent(float x) { return (bit_cast<int32>(x) - 0x3f3504f3) & static_cast<int32>(0xff800000); }
constexpr float ln2_scaled = 0.693147182f * 0x1p-23f;

// x = (1 + f) * 2^(e / 2^23)
struct Split {
    float f;
    float e;
};
LZ_FN Split split(float x) {
    bool tiny = x < 0x1p-126f;
    x = select(tiny, x * 0x1p24f, x);
    int32 e = exponent(x);
    return {bit_cast<float>(bit_cast<int32>(x) - e) - 1.0f, static_cast<float>(e - select(tiny, 24 << 23, 0))};
}

// (log1p(f) - f + f^2 / 2) / f^3 for sqrt(1/2) <= 1 + f <= sqrt(2)
LZ_FN float log1p_tail(float f, float f2) {
    return poly8(f, f2, 0.333333313f, -0.250008196f, 0.200012401f, -0.166234076f, 0.142016277f, -0.131596833f,
                 0.127618611f, -0.0763575062f);
}

LZ_FN float log1p_small(float f) {
    float f2 = f * f;
    return fma(f2, fma(log1p_tail(f, f2), f, -0.5f), f);
}

// 2^(n - 1) and expm1(x - n ln 2) for n = round(x / ln 2)
struct Expm1 {
    float scale;
    float p;
};
LZ_FN Expm1 expm1_parts(float x) {
    constexpr float magic = round_magic + 126;
    float z = fma(x, 1.44269502f, magic);
    float n = z - magic;
    float r = fma(n, -0.693145752f, x);
    r = fma(n, -1.42860677e-6f, r);
    float p = horner(r, 0.49999997f, 0.166665465f, 0.0416674353f, 0.00836627185f, 0.00138706958f);
    return {bit_cast<float>(bit_cast<uint32>(z) << 23), fma(r * r, p, r)};
}

// atan(t) for 0 <= t <= 1
LZ_FN float atan_unit(float t) {
    float z = t * t;
    float p = poly8(z, z * z, -0.333331525f, 0.199937671f, -0.14211002f, 0.106657706f, -0.0755167082f, 0.0432049856f,
                    -0.0163634513f, 0.00291951792f);
    return fma(t * z, p, t);
}

// pi/2 - x and pi - x: the product of the two constants is pi/2 or pi to 45 bits, the fused multiply rounds once.
LZ_FN float half_pi_minus(float x) { return fma(1.25329518f, 1.25333309f, -x); }
LZ_FN float pi_minus(float x) { return fma(1.25329518f, 2.50666618f, -x); }

// asin(s) for 0 <= s <= 1/2, z = s^2
LZ_FN float asin_half(float s, float z) {
    float p = horner(z, 0.166666597f, 0.0750052109f, 0.0445136912f, 0.0318349302f, 0.0143363746f, 0.0376585387f);
    return fma(s * z, p, s);
}

// 4^r for |r| <= 1/2
LZ_FN float exp4(float r) {
#if LZ_CUDA
    return ptx::exp2_approx(r + r);
#else
    return one_plus_poly7(r, 1.38629448f, 0.960906744f, 0.444029331f, 0.153869435f, 0.0426929183f, 0.0100133056f,
                          0.0019107773f);
#endif
}

}  // namespace detail

// --- float: the same on the CPU and on CUDA --------------------------------------------------------------------------

#if LZ_CUDA
// 2 atanh(s) with s = x / (2 + x), whose series has half as many terms as that of log1p.
LZ_FN float log1p_unit(float x) {
    float s = x * ptx::reciprocal(x + 2.0f), w = s * s;
    float p = detail::horner(w, 0.333332066f, 0.200108496f, 0.139995698f, 0.140122325f);
    return fma((s + s) * w, p, s + s);
}
#else
LZ_FN float log1p_unit(float x) {
    float x2 = x * x;
    float p = detail::poly8(x, x2, 0.333304703f, -0.24958156f, 0.196931928f, -0.153490975f, 0.10670013f, -0.0575615279f,
                            0.0201503318f, -0.00330653763f);
    return fma(x2, fma(p, x, -0.499999315f), x);
}
#endif

// log2(x) is carried in two floats, high + low, so that the error hardly grows with |y * log2(x)|.
LZ_FN float pow(float x, float y) {
    constexpr float magic = detail::round_magic + 127;
    float a = abs(x);
    detail::Split s = detail::split(a);
    float f = s.f, e = s.e * 0x1p-23f;
    float f2 = f * f;
    float q = fma(f2 * f, detail::log1p_tail(f, f2), -0.5f * f2);
    float l = f + q;  // log1p(f), less the two terms that follow
    float l_low = fma(-0.5f, fma(f, f, -f2), q - (l - f));
    float high = fma(l, 1.44269502f, e);
    float low = fma(l, 1.44269502f, e - high);  // e - high is exact, as |high| >= 1/2 unless e = 0
    low = fma(l, 1.92596303e-8f, low);
    low = fma(l_low, 1.44269502f, low);
    high = select(a < infinity<float>(), high, a);
    high = select(a == 0, -infinity<float>(), high);

    float t = y * high;
    float d = fma(y, low, fma(y, high, -t));
    d = select(abs(t) < 1000, d, 0.0f);  // infinity - infinity
    t = detail::clamp(t, -152.0f, 130.0f);
    float z = fma(t, 0.5f, magic);
    float r = fma(t, 0.5f, magic - z);
    float result = detail::scale4(detail::exp4(fma(d, 0.5f, r)), z);

    bool integer = floor(y) == y;
    bool odd = integer & (floor(y * 0.5f) * 2.0f != y);
    result = select((y == 0) | (a == 1), 1.0f, result);
    result = select((x < 0) & (a < infinity<float>()) & !integer, nan<float>(), result);
    return bit_cast<float>(bit_cast<uint32>(result) | select(odd, bit_cast<uint32>(x) & 0x80000000u, 0u));
}

#if LZ_CUDA

LZ_FLOAT_1(exp)
LZ_FLOAT_1(log)
LZ_FLOAT_1(log1p)
LZ_FLOAT_1(expm1)
LZ_FLOAT_1(tanh)
LZ_FLOAT_1(asin)
LZ_FLOAT_1(acos)
LZ_FLOAT_1(atan)
LZ_FLOAT_2(atan2)

LZ_FN float exp_fast(float x) { return ptx::exp2_approx(x * 1.44269502f); }

// exp(x - shift) is of(x) * factor, for many an x <= shift: one multiply-add and one power each. The product shift * log2(e) is rounded
// once, and factor makes good for that; within FAR of 0 it is near 1.
struct Falling {
    static constexpr float FAR = 0x1p18f;

    float shift2, factor;

    LZ_METHOD explicit Falling(float shift) : shift2(shift * 1.44269502f), factor(ptx::exp2_approx(fma(-shift, 1.44269502f, shift2))) {}
    LZ_METHOD float of(float x) const { return ptx::exp2_approx(fma(x, 1.44269502f, -shift2)); }
};

template <bool ROUGH> LZ_FN float exp_falling(float x) {
    if constexpr (ROUGH) return exp_fast(x);
    x = ptx::max_nan(x, -88.0f);  // of which nothing is left; infinity would leave infinity - infinity
    const float t = x * 1.44269502f, y = ptx::exp2_approx(t);
    return fma(y, fma(-t, 0.693147182f, x), y);  // with what the product has lost
}

#else

LZ_FN float exp(float x) {
    constexpr float magic = detail::round_magic + 127;
    x = detail::clamp(x, -104.0f, 104.0f);
    float z = fma(x, 0.721347511f, magic);
    float m = magic - z;  // -round(x / ln 4)
    float r = fma(m, 1.3862915f, x);
    r = fma(m, 2.85721364e-6f, r);
    float p = detail::one_plus_poly7(r, 1.0f, 0.500000358f, 0.16666618f, 0.041661229f, 0.0083359303f, 0.00141047535f,
                                     0.000196305773f);
    return detail::scale4(p, z);
}

LZ_FN float exp_fast(float x) {
    constexpr float magic = detail::round_magic + 127;
    x = -88.0f > x ? -88.0f : x;
    float z = fma(x, 1.44269502f, magic);
    float r = fma(magic - z, 0.693147182f, x);
    float p = detail::horner(r, 1.0f, 0.999999702f, 0.499991506f, 0.166676506f, 0.0418978371f, 0.00828944054f);
    return p * bit_cast<float>(bit_cast<uint32>(z) << 23);
}

template <bool> LZ_FN float exp_falling(float x) { return exp_fast(x); }

LZ_FN float log(float x) {
    detail::Split s = detail::split(x);
    float y = fma(s.e, detail::ln2_scaled, detail::log1p_small(s.f));
    y = select(x < infinity<float>(), y, x);
    y = select(x == 0, -infinity<float>(), y);
    return select(x < 0, nan<float>(), y);
}

LZ_FN float log1p(float x) {
    int32 e = detail::exponent(1.0f + x);
    float quarter = bit_cast<float>(0x40800000 - e);  // 4 * 2^-e, as 2^-128 is denormal
    float f = bit_cast<float>(bit_cast<int32>(x) - e) + fma(quarter, 0.25f, -1.0f);
    float y = fma(static_cast<float>(e), detail::ln2_scaled, detail::log1p_small(f));
    y = select(x < infinity<float>(), y, x);
    y = select(x < -1, nan<float>(), y);  // at -1 the polynomial itself is -infinity, as f is -2^127
    return select(x == 0, x, y);
}

LZ_FN float expm1(float x) {
    detail::Expm1 e = detail::expm1_parts(detail::clamp(x, -30.0f, 89.0f));
    float y = fma(e.scale, e.p, e.scale - 0.5f);  // halved, as 2^128 is no float
    return select(x == 0, x, y + y);
}

LZ_FN float tanh(float x) {
    detail::Expm1 e = detail::expm1_parts(detail::clamp(x + x, -20.0f, 20.0f));
    float y = fma(e.scale, e.p, e.scale - 0.5f);  // expm1(2x) / 2
    return select(x == 0, x, y / (y + 1.0f));
}

LZ_FN float atan(float x) {
    float a = abs(x);
    bool big = a > 1;
    float r = detail::atan_unit(select(big, 1.0f, a) / select(big, a, 1.0f));
    return copysign(select(big, detail::half_pi_minus(r), r), x);
}

LZ_FN float atan2(float y, float x) {
    float ay = abs(y), ax = abs(x);
    bool steep = ay > ax;
    float low = select(steep, ax, ay), high = select(steep, ay, ax);
    float t = select(low == high, select(high > 0, 1.0f, 0.0f), low / high);  // 0 / 0 and inf / inf have angles
    float r = detail::atan_unit(t);
    r = select(steep, detail::half_pi_minus(r), r);
    r = select(signbit(x), detail::pi_minus(r), r);
    return copysign(r, y);
}

LZ_FN float asin(float x) {
    float a = abs(x);
    bool big = a > 0.5f;
    float z = select(big, fma(a, -0.5f, 0.5f), a * a);
    float r = detail::asin_half(select(big, sqrt(z), a), z);
    return copysign(select(big, detail::half_pi_minus(r + r), r), x);
}

LZ_FN float acos(float x) {
    float a = abs(x);
    bool big = a > 0.5f;
    float z = select(big, fma(a, -0.5f, 0.5f), a * a);
    float r = detail::asin_half(select(big, sqrt(z), a), z);
    float from_one = select(signbit(x), detail::pi_minus(r + r), r + r);
    return select(big, from_one, detail::half_pi_minus(copysign(r, x)));
}

#endif

}  // namespace lz
