// Stands in for csrc/losszoo/ptx.h on the CPU: the same functions as plain C++.
#pragma once
#include <losszoo/platform.h>

namespace lz::ptx {

LZ_FN float half_to_float(uint16 x) {
  const int exponent = x >> 10 & 31, fraction = x & 1023;
  float magnitude = exponent == 31 ? (fraction ? bit_cast<float>(0x7fc00000u) : bit_cast<float>(0x7f800000u)) : 0;
  if (exponent < 31) magnitude = exponent ? bit_cast<float>(uint32((exponent + 112) << 23 | fraction << 13)) : fraction * 0x1p-24f;
  return x & 0x8000 ? -magnitude : magnitude;
}

// To nearest, ties to even, by the value of the last place that stays.
LZ_FN uint16 float_to_half(float x) {
  const uint32 bits = bit_cast<uint32>(x), sign = bits >> 16 & 0x8000;
  const float magnitude = fabsf(x);
  if (x != x) return 0x7fff;
  if (magnitude >= 65520.0f) return uint16(sign | 0x7c00);
  if (magnitude < 0x1p-14f) return uint16(sign | uint32(rintf(magnitude * 0x1p24f)));
  const int exponent = int(bits >> 23 & 255) - 127;
  const uint32 steps = uint32(rintf(magnitude * bit_cast<float>(uint32(127 + 10 - exponent) << 23)));  // 1024 to 2048
  return uint16(sign | (uint32(exponent + 14) * 1024 + steps));
}

LZ_FN uint16 float_to_bfloat16(float x) {
  const uint32 bits = bit_cast<uint32>(x), low = bits & 0xffff, high = bits >> 16;
  if (x != x) return 0x7fff;
  return uint16(high + (low > 0x8000 || (low == 0x8000 && (high & 1))));
}

LZ_FN uint32 floats_to_half2(float low, float high) { return uint32(float_to_half(high)) << 16 | float_to_half(low); }
LZ_FN uint32 floats_to_bfloat162(float low, float high) { return uint32(float_to_bfloat16(high)) << 16 | float_to_bfloat16(low); }

LZ_FN float exp2_approx(float x) {
  const float y = exp2f(x);
  return y < 0x1p-126f ? 0.0f : y;
}

LZ_FN float divide(float a, float b) { return a / b; }

LZ_FN void follow() {}

LZ_FN unsigned arrive(unsigned* counter) {
  __threadfence();  // releases
  const unsigned before = atomicAdd(counter, 1u);
  __threadfence();  // acquires
  return before;
}

LZ_FN float reciprocal(float x) { return 1 / x; }

LZ_FN float max_nan(float a, float b) { return a != a || a > b ? a : b; }
LZ_FN float min_nan(float a, float b) { return a != a || a < b ? a : b; }

}  // namespace lz::ptx
