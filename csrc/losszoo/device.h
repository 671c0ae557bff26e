// What CUDA threads do together: take rows in teams, join their states, and finish the sum over all blocks in a fixed order; and how
// they read and write several values at once.
#pragma once
#include <losszoo/math.h>
#include <losszoo/monoid.h>
#include <losszoo/numeric.h>
#include <losszoo/platform.h>

namespace lz {

constexpr int WARP = 32, MAX_WARPS = 32;

// Combines the values of n neighbouring threads (a power of two) for each of them. The order is fixed and the same for all.
struct Lanes {
  int n, every = 1;  // of each `every` threads one has a value, the others the identity

  template <class R, class Op>
  LZ_METHOD R operator()(R x, const Op& op) const {
#pragma unroll
    for (int mask = n / 2; mask >= every; mask /= 2) x = op(x, __shfl_xor_sync(0xffffffffu, x, mask));
    return x;
  }
};

// The joint state of the block for every thread. blockDim.x is a power of two, and at least a warp. `phase` says which half of the
// shared memory is free: what is read after one call is not written before the barrier of the next. A state is plain numbers of type R.
// EVERY: of so many threads of a warp the first has something to join.
template <class R, int EVERY = 1, class M>
LZ_FN void block_join(M& m, int& phase) {
  __shared__ R states[2][MAX_WARPS * (sizeof(M) / sizeof(R))];
  const int warps = blockDim.x / WARP, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  m.join(Lanes{WARP, EVERY});
  if (warps == 1) return;
  M* shared = reinterpret_cast<M*>(states[phase]);
  phase ^= 1;
  if (lane == 0) shared[warp] = m;
  __syncthreads();
  m = shared[lane & (warps - 1)];
  m.join(Lanes{warps});
}

// G neighbouring threads of a block, or all of it where G is 0. Joining is for all teams of a block at once.
template <int G>
struct Team {
  int lane, size, number, count;  // of this thread in its team; of the team; this team's in the block; of teams in the block
  int phase = 0;

  LZ_METHOD Team() {
    size = G ? G : int(blockDim.x);
    lane = threadIdx.x % size;
    number = threadIdx.x / size;
    count = blockDim.x / size;
  }

  template <class R, class M>
  LZ_METHOD void join(M& m) {
    if constexpr (G == 0)
      block_join<R>(m, phase);
    else
      m.join(Lanes{G});
  }
};

// A thread's sums of losses and counts over the items it computed: in R, with what the roundings lost beside it, since many a
// device takes 64 times as long for an addition in double.
template <class R>
struct Tally {
  R total = 0, total_lost = 0, count = 0, count_lost = 0;

  LZ_METHOD void add(R loss, R n) {
    add(total, total_lost, loss);
    add(count, count_lost, n);
  }

 private:
  static LZ_METHOD void add(R& sum, R& lost, R x) {
    const R next = sum + x, x_seen = next - sum;
    lost += (sum - (next - x_seen)) + (x - x_seen);
    sum = next;
  }
};

// The sums of a block, or of many.
struct Total {
  double loss = 0, count = 0;

  LZ_METHOD Total() {}
  template <class R>
  LZ_METHOD explicit Total(const Tally<R>& t) { add(whole(t.total, t.total_lost), whole(t.count, t.count_lost)); }

  LZ_METHOD void add(double more_loss, double more_count) {
    loss += more_loss;
    count += more_count;
  }
  template <class Reduce>
  LZ_METHOD void join(const Reduce& reduce) {
    loss = reduce(loss, Plus());
    count = reduce(count, Plus());
  }

 private:
  template <class R>
  static LZ_METHOD double whole(R sum, R lost) { return isfinite(sum) ? double(sum) + double(lost) : double(sum); }
};

// Leaves this block's sums; the last block to come joins them all, in the order of the blocks, and writes the reduced loss. Every
// thread of every block calls it, and of each EVERY threads the first has tallied (0: of all of the block). The counter is 0 again when
// the kernel is done.
template <class R, int EVERY, class Args>
LZ_FN void finish(const Args& a, const Tally<R>& tally) {
  int phase = 0;
  Total all(tally);
  if constexpr (EVERY > 0) block_join<double, EVERY>(all, phase);
  if (gridDim.x > 1) {
    __shared__ bool last;
    if (threadIdx.x == 0) {
      a.partial[2 * blockIdx.x] = all.loss;
      a.partial[2 * blockIdx.x + 1] = all.count;
      last = ptx::arrive(a.counter) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;
    all = Total();
    for (int block = threadIdx.x; block < gridDim.x; block += blockDim.x)
      all.add(__ldcg(a.partial + 2 * block), __ldcg(a.partial + 2 * block + 1));
    block_join<double>(all, phase);
    if (threadIdx.x == 0) *a.counter = 0;
  }
  if (threadIdx.x == 0) {
    const double denominator = a.normalizer ? double(a.normalizer[0]) : a.mean ? all.count : 1.0;
    a.total[0] = R(all.loss / denominator);
    a.denominator[0] = R(denominator);
  }
}

// a / b, which takes a fifth of the time where both fit in 32 bits.
LZ_FN int64 quotient(int64 a, int64 b) {
  if (uint64(a | b) >> 32) return a / b;
  return uint32(a) / uint32(b);
}

// By how many values a row begins behind a multiple of N values in memory.
template <int N, class T>
LZ_FN int skew(const T* row) {
  return int(reinterpret_cast<uint64>(row) / sizeof(T) % N);
}

constexpr int LINE = 128;  // bytes: memory that is written by whole lines takes less time

// Whether class base + k is one of the row's. Where rows are not skewed, K divides the classes, and a vector is in or out as a whole.
template <bool SKEWED, class Index>
LZ_FN bool live(Index base, int k, Index classes) {
  return SKEWED ? (base + k >= 0) & (base + k < classes) : base < classes;
}

// What a memory instruction moves: 16, 8, 4 or 2 bytes.
template <int BYTES> struct Vector;
template <> struct Vector<16> { using type = uint4; };
template <> struct Vector<8> { using type = uint2; };
template <> struct Vector<4> { using type = uint32; };
template <> struct Vector<2> { using type = uint16; };

// N neighbouring values as they are stored, read by as few instructions as there can be.
template <class T, int N>
struct Chunk {
  static constexpr int BYTES = N * sizeof(T), UNIT = BYTES % 16 == 0 ? 16 : BYTES == 8 || BYTES == 4 || BYTES == 2 ? BYTES : 0;

  alignas(UNIT ? UNIT : sizeof(T)) T v[N];

  // ALIGNED: from an address that is a multiple of UNIT.
  template <bool ALIGNED>
  LZ_METHOD void fetch(const T* from) {
    if constexpr (ALIGNED && UNIT > 0) {
      using V = typename Vector<UNIT>::type;
#pragma unroll
      for (int i = 0; i < BYTES / UNIT; ++i) {
        const V part = reinterpret_cast<const V*>(from)[i];
        memcpy(reinterpret_cast<char*>(v) + i * UNIT, &part, UNIT);
      }
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] = from[i];
    }
  }

  // Those that are classes of the row; the others stay as they are, or become what is there where the operand goes on before and after
  // the row.
  template <bool ALIGNED, bool SKEWED, class Index>
  LZ_METHOD void fetch(const T* row, Index base, Index classes, bool before, bool after) {
    if ((base >= 0 || before) && (base + N <= classes || (after && base < classes))) {
      fetch<ALIGNED>(row + base);
    } else if constexpr (SKEWED) {
#pragma unroll
      for (int i = 0; i < N; ++i)
        if (live<true>(base, i, classes)) v[i] = row[base + i];
    }
  }
};

// Writes N neighbouring values, which nobody will read soon. ALIGNED: as above.
template <bool ALIGNED = true, class T, class R, int N>
LZ_FN void put(T* into, const R (&from)[N]) {
  using Stored = Chunk<T, N>;
  if constexpr (ALIGNED && Stored::UNIT > 0) {
    using V = typename Vector<Stored::UNIT>::type;
    Stored stored;
    narrow(from, stored.v);
#pragma unroll
    for (int i = 0; i < Stored::BYTES / Stored::UNIT; ++i) {
      V part;
      memcpy(&part, reinterpret_cast<const char*>(stored.v) + i * Stored::UNIT, Stored::UNIT);
      __stcs(reinterpret_cast<V*>(into) + i, part);
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) store(into + i, from[i]);
  }
}

// Those that are classes of the row.
template <bool SKEWED, class T, class Index, class R, int N>
LZ_FN void put(T* row, Index base, Index classes, const R (&from)[N]) {
  if (base >= 0 && base + N <= classes) {
    put(row + base, from);
  } else if constexpr (SKEWED) {
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (live<true>(base, i, classes)) store(row + base + i, from[i]);
  }
}

}  // namespace lz
