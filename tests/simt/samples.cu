// Small kernels for the tests of the harness itself: those that are right, and those that each have one fault.
#include <losszoo/numeric.h>

struct Args {
  const float* in;
  float* out;
  unsigned* counter;
  int* ints;
  lz::int64 n;
};

#define KERNEL(name) extern "C" __global__ void name(const __grid_constant__ Args a)

// --- right -----------------------------------------------------------------------------------------------------------

KERNEL(shuffles) {
  const int t = threadIdx.x, lane = t % 32;
  const float x = a.in[t];
  a.out[6 * t] = __shfl_sync(0xffffffffu, x, lane + 3, 8);
  a.out[6 * t + 1] = __shfl_xor_sync(0xffffffffu, x, 5);
  a.out[6 * t + 2] = __shfl_down_sync(0xffffffffu, x, 3, 16);
  a.out[6 * t + 3] = __shfl_up_sync(0xffffffffu, x, 2);
  a.out[6 * t + 4] = float(__shfl_xor_sync(0xffffffffu, double(x) + 1e9, 1, 4) - 1e9);
  a.out[6 * t + 5] = __shfl_xor_sync(0xffffffffu, x, 4, 4);  // of a later segment: its own
}

KERNEL(votes) {
  const int t = threadIdx.x;
  a.ints[6 * t] = int(__ballot_sync(0xffffffffu, a.in[t] > 0));
  a.ints[6 * t + 1] = __any_sync(0xffffffffu, a.in[t] > 3);
  a.ints[6 * t + 2] = __all_sync(0xffffffffu, a.in[t] > -9);
  a.ints[6 * t + 3] = __reduce_add_sync(0xffffffffu, t);
  a.ints[6 * t + 4] = int(__reduce_max_sync(0xffffffffu, unsigned(t)));
  a.ints[6 * t + 5] = __popc(__activemask());
}

// Groups of four lanes, each with a mask of its own, some of which take more turns than others.
KERNEL(groups) {
  const int t = threadIdx.x, lane = t % 32;
  const unsigned mask = 0xfu << (lane / 4 * 4);
  float x = a.in[t];
  for (int turn = 0; turn <= lane / 4; ++turn) x += __shfl_xor_sync(mask, x, 1 + turn % 3);
  a.out[t] = x;
}

// The threads that have left count as arrived, and the last warp is not full.
KERNEL(early_exit) {
  __shared__ float values[64];
  const unsigned t = threadIdx.x;
  values[t] = a.in[t];
  if (t % 3 == 0) return;
  __syncthreads();
  a.out[t] = values[(t + 1) % blockDim.x];
}

KERNEL(dynamic) {
  extern __shared__ float values[];
  const unsigned t = threadIdx.x;
  values[t] = a.in[t] * float(blockIdx.x + 1);
  __syncthreads();
  a.out[blockIdx.x * blockDim.x + t] = values[blockDim.x - 1 - t];
}

// Each block adds up, the last to come joins the sums: the way of csrc/losszoo/device.h.
template <bool FENCE, bool ATOMIC> __device__ void sum_of_blocks(const Args& a) {
  __shared__ bool last;
  __shared__ float part[32];
  const unsigned t = threadIdx.x;
  float x = a.in[blockIdx.x * blockDim.x + t];
  for (int mask = 16; mask; mask /= 2) x += __shfl_xor_sync(0xffffffffu, x, mask);
  if (t % 32 == 0) part[t / 32] = x;
  __syncthreads();
  if (t == 0) {
    for (unsigned w = 1; w < blockDim.x / 32; ++w) x += part[w];
    a.out[1 + blockIdx.x] = x;
    if (FENCE) __threadfence();
    last = (ATOMIC ? atomicAdd(a.counter, 1u) : (*a.counter)++) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return;
  if (FENCE) __threadfence();
  if (t == 33) {
    float sum = 0;
    for (unsigned b = 0; b < gridDim.x; ++b) sum += __ldcg(a.out + 1 + b);
    a.out[0] = sum;
    *a.counter = 0;
  }
}
KERNEL(last_block) { sum_of_blocks<true, true>(a); }

KERNEL(warp_exchange) {
  __shared__ float values[64];
  const unsigned t = threadIdx.x;
  values[t] = a.in[t];
  __syncwarp();
  a.out[t] = values[t ^ 1];
}

KERNEL(atomics) {
  __shared__ int sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  atomicAdd(&sum, int(threadIdx.x));
  atomicMax(a.ints + 1, int(threadIdx.x));
  atomicCAS(a.ints + 2, -1, int(threadIdx.x));
  atomicSub(a.ints + 3, 2);
  __syncthreads();
  if (threadIdx.x == 0) a.ints[0] = sum;
}

KERNEL(halves) {
  auto* into = reinterpret_cast<unsigned short*>(a.ints);
  for (lz::int64 i = lz::int64(blockIdx.x) * blockDim.x + threadIdx.x; i < a.n; i += gridDim.x * blockDim.x) {
    into[2 * i] = lz::to<lz::half>(a.in[i]).bits;
    into[2 * i + 1] = lz::to<lz::bfloat16>(a.in[i]).bits;
    a.out[i] = lz::to<float>(lz::half{static_cast<unsigned short>(i)});
  }
}

KERNEL(unwritten) {
  if (threadIdx.x == 1) a.out[0] = 1;
}

// --- each with a fault -----------------------------------------------------------------------------------------------

KERNEL(missing_barrier) {
  __shared__ float values[64];
  values[threadIdx.x] = a.in[threadIdx.x];
  a.out[threadIdx.x] = values[63 - threadIdx.x];
}

// The next turn writes what others still read.
KERNEL(missing_second_barrier) {
  __shared__ float total;
  for (int turn = 0; turn < 2; ++turn) {
    if (threadIdx.x == 0) total = a.in[turn];
    __syncthreads();
    a.out[turn * 64 + threadIdx.x] = total;
  }
}

KERNEL(missing_syncwarp) {
  __shared__ float values[64];
  values[threadIdx.x] = a.in[threadIdx.x];
  a.out[threadIdx.x] = values[threadIdx.x ^ 1];
}

KERNEL(shuffle_orders_nothing) {
  __shared__ float values[64];
  values[threadIdx.x] = a.in[threadIdx.x];
  const float x = __shfl_xor_sync(0xffffffffu, 1.0f, 1);
  a.out[threadIdx.x] = x * values[threadIdx.x ^ 1];
}

KERNEL(syncwarp_across_warps) {
  __shared__ float values[64];
  values[threadIdx.x] = a.in[threadIdx.x];
  __syncwarp();
  a.out[threadIdx.x] = values[threadIdx.x ^ 32];
}

KERNEL(two_writers) { a.out[threadIdx.x / 2] = a.in[threadIdx.x]; }
KERNEL(two_blocks) { a.out[0] = a.in[threadIdx.x]; }
KERNEL(missing_fences) { sum_of_blocks<false, true>(a); }
KERNEL(plain_counter) { sum_of_blocks<true, false>(a); }

KERNEL(two_barriers) {
  if (threadIdx.x < 32)
    __syncthreads();
  else
    __syncthreads();
}

KERNEL(barrier_without_some) {
  if (threadIdx.x < 48) __syncthreads();
  a.out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, a.in[threadIdx.x], 1);
}

KERNEL(lane_that_never_comes) {
  if (threadIdx.x % 32 < 31) a.out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, a.in[threadIdx.x], 1);
  __syncthreads();
}

KERNEL(lane_outside_the_mask) {
  if (threadIdx.x % 32 < 16) a.out[threadIdx.x] = __shfl_xor_sync(0xffffu, a.in[threadIdx.x], 16);
}

KERNEL(lane_not_in_its_own_mask) { a.out[threadIdx.x] = __shfl_xor_sync(0xffffu, a.in[threadIdx.x], 1); }
KERNEL(lanes_that_do_not_exist) { a.out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, a.in[threadIdx.x], 16); }
KERNEL(width_of_five) { a.out[threadIdx.x] = __shfl_sync(0xffffffffu, a.in[threadIdx.x], 0, 5); }

KERNEL(reads_past_the_end) { a.out[threadIdx.x] = a.in[threadIdx.x + 1]; }
KERNEL(reads_before_the_start) { a.out[threadIdx.x] = a.in[lz::int64(threadIdx.x) - 1]; }
KERNEL(writes_past_the_end) { a.out[threadIdx.x + 1] = 1; }
KERNEL(reads_no_buffer) { a.out[threadIdx.x] = *reinterpret_cast<const float*>(a.n); }
KERNEL(writes_an_input) { const_cast<float*>(a.in)[threadIdx.x] = 1; }

KERNEL(shared_overrun) {
  __shared__ float values[63];
  float* at = values;
  at[threadIdx.x] = a.in[threadIdx.x];
}

KERNEL(dynamic_overrun) {
  extern __shared__ float values[];
  values[threadIdx.x + 1] = a.in[threadIdx.x];
}

KERNEL(unwritten_shared) {
  __shared__ float values[64];
  if (threadIdx.x != 7) values[threadIdx.x] = 1;
  __syncthreads();
  a.out[threadIdx.x] = values[threadIdx.x];
}

template <class T> __device__ __noinline__ T add_up(const T* from, int n) {
  T sum = 0;
  for (int i = 0; i < n; ++i) sum += from[i];
  return sum;
}
KERNEL(local_overrun) {
  float values[4] = {1, 2, 3, a.in[0]};
  a.out[threadIdx.x] = add_up(values, 5);
}

KERNEL(misaligned_vector) { reinterpret_cast<uint4*>(a.out)[threadIdx.x] = reinterpret_cast<const uint4*>(a.in + 1)[threadIdx.x]; }
KERNEL(integer_overflow) { a.ints[threadIdx.x] = int(a.n) * int(a.n) + int(threadIdx.x); }

KERNEL(endless) {
  while (a.in[0] == 0) __syncthreads();
  a.out[0] = 1;
}

extern "C" __global__ void __launch_bounds__(64) bounded(const __grid_constant__ Args a) { a.out[threadIdx.x] = 0; }
