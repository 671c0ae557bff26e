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

// a / b to 2 ulp, for numbers of all sizes.
LZ_FN float divide(float a, float b) {
  float y;
  asm("div.full.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

// 1 / x to 1 ulp, where neither is a denormal.
LZ_FN float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Adds 1 to a counter and gives what it was. What this thread wrote before is seen by whoever finds the counter that high; a
// __threadfence beside an atomicAdd says more, and takes longer.
LZ_FN unsigned arrive(unsigned* counter) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}

// Programmatic dependent launch: lets the stream's next kernel be set up by now, and waits for the one before to have finished, whose
// memory may not be touched earlier. Without that kind of launch both are nothing.
LZ_FN void follow() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The greater and the smaller, and nan where either is nan.
LZ_FN float max_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
LZ_FN float min_nan(float a, float b) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

}  // namespace lz::ptx
