// x *= factor, a number on the device. Where it is 1, as in loss.backward(), nothing is read or written.
// T is what x is stored as, R what it is multiplied in; x begins at a multiple of 16 bytes.

struct Args {
  T* x;
  const R* factor;
  lz::int64 count;
};

constexpr int K = 16 / sizeof(T);

struct alignas(16) Pack {
  T v[K];
};

extern "C" __global__ void scale(const __grid_constant__ Args a) {
  lz::ptx::follow();
  const R factor = a.factor[0];
  if (factor == R(1)) return;
  const lz::int64 first = lz::int64(blockIdx.x) * blockDim.x + threadIdx.x, step = lz::int64(gridDim.x) * blockDim.x;
  const lz::int64 packs = a.count / K;
  for (lz::int64 i = first; i < packs; i += step) {
    Pack* const at = reinterpret_cast<Pack*>(a.x) + i;
    Pack pack = *at;
    R scaled[K];
#pragma unroll
    for (int k = 0; k < K; ++k) scaled[k] = lz::to<R>(pack.v[k]) * factor;
    lz::narrow(scaled, pack.v);
    *at = pack;
  }
  for (lz::int64 i = packs * K + first; i < a.count; i += step) lz::store(a.x + i, lz::load<R>(a.x + i) * factor);
}
