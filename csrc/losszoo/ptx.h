// Instructions that CUDA C++ has no name for. All inline assembly is here, on plain numbers, so that another file of this name can
// stand in its place where kernels run on something else (tests/simt).
#pragma once
#include <losszoo/platform.h>

namespace lz::ptx {

LZ_FN float half_to_float(uint16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}

LZ_FN uint16 float_to_half(float x) {
  uint16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}

LZ_FN uint16 float_to_bfloat16(float x) {
  uint16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}

// Two conversions at once; `low` goes to the lower 16 bits.
LZ_FN uint32 floats_to_half2(float low, float high) {
  uint32 y;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}

LZ_FN uint32 floats_to_bfloat162(float low, float high) {
  uint32 y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}

// 2^x to 2 ulp; denormals are 0.
LZ_FN float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace lz::ptx
