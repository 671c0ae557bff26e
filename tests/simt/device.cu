// What csrc/losszoo/device.h offers, by itself: for test_device.py.
#include <losszoo/device.h>
#include <losszoo/monoid.h>

struct Args {
  const lz::int64* numbers;
  const float* values;
  lz::int64* quotients;
  float* total;
  float* denominator;
  double* partial;
  unsigned* counter;
  const float* normalizer;
  lz::int64 n, mean;
};

// numbers[2 i] / numbers[2 i + 1]
extern "C" __global__ void divide(const __grid_constant__ Args a) {
  for (lz::int64 i = threadIdx.x; i < a.n; i += blockDim.x) a.quotients[i] = lz::quotient(a.numbers[2 * i], a.numbers[2 * i + 1]);
}

// The sum of n values, each thread's in single precision.
extern "C" __global__ void add_up(const __grid_constant__ Args a) {
  lz::Tally<float> tally;
  for (lz::int64 i = lz::int64(blockIdx.x) * blockDim.x + threadIdx.x; i < a.n; i += gridDim.x * blockDim.x) tally.add(a.values[i], 1.0f);
  lz::finish<float, 1>(a, tally);
}
