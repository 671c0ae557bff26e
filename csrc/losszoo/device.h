// What the threads of a CUDA block do together: merge their states, and finish the sum over all blocks in a fixed order.
#pragma once
#include <losszoo/numeric.h>
#include <losszoo/platform.h>

namespace lz {

constexpr int WARP = 32, MAX_WARPS = 32;

// A state is plain numbers of type R: field i as a number.
template <class R, class M>
LZ_FN M shuffle_xor(const M& m, int mask) {
  constexpr int fields = sizeof(M) / sizeof(R);
  const R* from = reinterpret_cast<const R*>(&m);
  M other;
  R* into = reinterpret_cast<R*>(&other);
#pragma unroll
  for (int i = 0; i < fields; ++i) into[i] = __shfl_xor_sync(0xffffffffu, from[i], mask);
  return other;
}

template <class R, class M>
LZ_FN M shuffle(const M& m, int lane) {
  constexpr int fields = sizeof(M) / sizeof(R);
  const R* from = reinterpret_cast<const R*>(&m);
  M other;
  R* into = reinterpret_cast<R*>(&other);
#pragma unroll
  for (int i = 0; i < fields; ++i) into[i] = __shfl_sync(0xffffffffu, from[i], lane);
  return other;
}

template <class R, class M>
LZ_FN void warp_merge(M& m) {
#pragma unroll
  for (int mask = WARP / 2; mask > 0; mask /= 2) m.merge(0, shuffle_xor<R>(m, mask), 0);
}

// Every thread gets the merged state of the block. The order of the merges is fixed. blockDim.x is a multiple of the warp.
template <class R, class M>
LZ_FN void block_merge(M& m) {
  __shared__ R states[MAX_WARPS * (sizeof(M) / sizeof(R))];
  const int warps = blockDim.x / WARP, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  M* shared = reinterpret_cast<M*>(states);
  warp_merge<R>(m);
  __syncthreads();  // the last use of `shared` may be still under way
  if (lane == 0) shared[warp] = m;
  __syncthreads();
  m = lane < warps ? shared[lane] : M();
  warp_merge<R>(m);
  m = shuffle<R>(m, 0);  // the lanes of a butterfly may differ in the last bit
}

// A thread's sums of losses and counts over the items it computed.
struct Tally {
  double total[1] = {0}, count[1] = {0};

  LZ_METHOD void add(double loss, double n) {
    total[0] += loss;
    count[0] += n;
  }
  LZ_METHOD void merge(int, const Tally& other, int) { add(other.total[0], other.count[0]); }
};

// Leaves this block's sums; the last block to come joins them all, in the order of the blocks, and writes the reduced loss.
// Every thread of every block calls it.
template <class R, class Args>
LZ_FN void finish(const Args& a, Tally tally) {
  if (!a.total) return;
  __shared__ bool last;
  block_merge<double>(tally);
  if (threadIdx.x == 0) {
    a.partial[2 * blockIdx.x] = tally.total[0];
    a.partial[2 * blockIdx.x + 1] = tally.count[0];
    __threadfence();
    last = atomicAdd(a.counter, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  Tally all;
  for (int block = threadIdx.x; block < gridDim.x; block += blockDim.x)
    all.add(__ldcg(a.partial + 2 * block), __ldcg(a.partial + 2 * block + 1));
  block_merge<double>(all);
  if (threadIdx.x == 0) {
    const double denominator = a.normalizer ? double(a.normalizer[0]) : a.mean ? all.count[0] : 1.0;
    a.total[0] = R(all.total[0] / denominator);
    a.denominator[0] = R(denominator);
  }
}

// N neighbouring values. ALIGNED: from an address that is a multiple of N * sizeof(T) bytes, or of 16 where that is more.
template <class R, int N, bool ALIGNED, class T>
LZ_FN void load_n(const T* from, R (&into)[N]) {
  if constexpr (ALIGNED && N % vec16<T>::size == 0) {
#pragma unroll
    for (int i = 0; i < N; i += vec16<T>::size) {
      const vec16<T> v = load_vec(from + i);
#pragma unroll
      for (int j = 0; j < vec16<T>::size; ++j) into[i + j] = to<R>(v.v[j]);
    }
  } else if constexpr (ALIGNED && N * sizeof(T) == 8) {
    const uint2 raw = *reinterpret_cast<const uint2*>(from);
    struct Pair {
      T v[N];
    };
    const Pair v = bit_cast<Pair>(raw);
#pragma unroll
    for (int j = 0; j < N; ++j) into[j] = to<R>(v.v[j]);
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) into[j] = load<R>(from + j);
  }
}

template <int N, bool ALIGNED, class R, class T>
LZ_FN void store_n(T* into, const R (&from)[N]) {
  if constexpr (ALIGNED && N % vec16<T>::size == 0) {
#pragma unroll
    for (int i = 0; i < N; i += vec16<T>::size) {
      R part[vec16<T>::size];
#pragma unroll
      for (int j = 0; j < vec16<T>::size; ++j) part[j] = from[i + j];
      store_vec_stream(into + i, pack<T>(part));
    }
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) store(into + j, from[j]);
  }
}

}  // namespace lz
