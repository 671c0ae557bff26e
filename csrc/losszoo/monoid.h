// The states that fold a row, generic over L lanes. A lane is a thread's own part of a row (CUDA, L = 1), a column of a row's
// elements (CPU rows: the lanes are merged at the end), or a position of its own (strided rows: they never are).
//
// A monoid has: its identity as the initial value; fold(groups, v ...), which takes groups * L values with lane l's at v[g * L + l];
// merge(l, other, o), which joins another's lane; whole(), which
// joins its lanes; and projections that give lane l's result. All fields are of type R, so that a state can travel through
// shuffles, shared memory or a collective as plain numbers.
#pragma once
#include <losszoo/math.h>
#include <losszoo/platform.h>

namespace lz {

// GCC unrolls a short loop before it looks for vectors, unless it is told that there are some.
#if LZ_CUDA
#define LZ_LANES for (int l = 0; l < L; ++l)
#else
#define LZ_LANES _Pragma("omp simd") for (int l = 0; l < L; ++l)
#endif

template <class R, int L>
struct Sum {
  R total[L];

  LZ_METHOD Sum() { LZ_LANES total[l] = R(0); }

  LZ_METHOD void fold(int groups, const R* v) {
    R sums[L];
    LZ_LANES sums[l] = total[l];
    LZ_UNROLL
    for (int g = 0; g < groups; ++g) LZ_LANES sums[l] += v[g * L + l];
    LZ_LANES total[l] = sums[l];
  }

  template <int O>
  LZ_METHOD void merge(int l, const Sum<R, O>& other, int o) { total[l] += other.total[o]; }

  LZ_METHOD Sum<R, 1> whole() const {
    Sum<R, 1> w;
    for (int l = 0; l < L; ++l) w.merge(0, *this, l);
    return w;
  }

  LZ_METHOD R sum(int l) const { return total[l]; }
};

// nan wins, as in torch.
template <class R, int L>
struct Max {
  R top[L];

  LZ_METHOD Max() { LZ_LANES top[l] = -infinity<R>(); }

  LZ_METHOD void fold(int groups, const R* v) {
    LZ_UNROLL
    for (int g = 0; g < groups; ++g) LZ_LANES top[l] = maximum(top[l], v[g * L + l]);
  }

  template <int O>
  LZ_METHOD void merge(int l, const Max<R, O>& other, int o) { top[l] = maximum(top[l], other.top[o]); }

  LZ_METHOD Max<R, 1> whole() const {
    Max<R, 1> w;
    for (int l = 0; l < L; ++l) w.merge(0, *this, l);
    return w;
  }

  LZ_METHOD R max(int l) const { return top[l]; }
};

// Online softmax: the running maximum, the sum of exp(x - maximum), and N sums of exp(x - maximum) * f, rescaled whenever the
// maximum grows. A nan is not seen by the maximum but stays in the sums, and so does what exp(inf - inf) gives.
template <class R, int L, int N>
struct Online {
  R top[L], mass[L], weighted[N > 0 ? N : 1][L];

  LZ_METHOD Online() {
    LZ_LANES top[l] = -infinity<R>();
    LZ_LANES mass[l] = R(0);
    for (int n = 0; n < N; ++n) LZ_LANES weighted[n][l] = R(0);
  }

  // -inf is no shift: exp(-inf - 0) is 0, as it must be for a masked class, where exp(-inf - -inf) is nan.
  static LZ_METHOD R shift(R top) { return top == -infinity<R>() ? R(0) : top; }

  template <class... F>
  LZ_METHOD void fold(int groups, const R* x, const F*... weights) {
    const R* const f[] = {weights..., x};
    R peak[L], sums[N + 1][L];  // local, so that they live in registers
    LZ_LANES peak[l] = top[l];
    LZ_UNROLL
    for (int g = 0; g < groups; ++g) LZ_LANES peak[l] = x[g * L + l] > peak[l] ? x[g * L + l] : peak[l];
    LZ_LANES {
      const R rescale = exp_fast(top[l] - shift(peak[l]));
      top[l] = peak[l];
      peak[l] = shift(peak[l]);
      for (int n = 0; n < N; ++n) sums[n][l] = weighted[n][l] * rescale;
      sums[N][l] = mass[l] * rescale;
    }
    LZ_UNROLL
    for (int g = 0; g < groups; ++g) LZ_LANES {
      const R e = exp_fast(x[g * L + l] - peak[l]);
      for (int n = 0; n < N; ++n) sums[n][l] += e * f[n][g * L + l];
      sums[N][l] += e;
    }
    LZ_LANES mass[l] = sums[N][l];
    for (int n = 0; n < N; ++n) LZ_LANES weighted[n][l] = sums[n][l];
  }

  template <int O>
  LZ_METHOD void merge(int l, const Online<R, O, N>& other, int o) {
    const R a = top[l], b = other.top[o], peak = a > b ? a : b;
    const R here = exp(a - shift(peak)), there = exp(b - shift(peak));
    top[l] = peak;
    mass[l] = mass[l] * here + other.mass[o] * there;
    for (int n = 0; n < N; ++n) weighted[n][l] = weighted[n][l] * here + other.weighted[n][o] * there;
  }

  LZ_METHOD Online<R, 1, N> whole() const {
    Online<R, 1, N> w;
    for (int l = 0; l < L; ++l) w.top[0] = top[l] > w.top[0] ? top[l] : w.top[0];
    R rescale[L];
    LZ_LANES rescale[l] = exp_fast(top[l] - shift(w.top[0]));
    for (int l = 0; l < L; ++l) w.mass[0] += mass[l] * rescale[l];
    for (int n = 0; n < N; ++n) {
      w.weighted[n][0] = R(0);
      for (int l = 0; l < L; ++l) w.weighted[n][0] += weighted[n][l] * rescale[l];
    }
    return w;
  }

  LZ_METHOD R peak(int l) const { return top[l]; }
  LZ_METHOD R logsum(int l) const { return log(mass[l]); }
  LZ_METHOD R mean(int n, int l) const { return weighted[n][l] / mass[l]; }
};

#undef LZ_LANES

}  // namespace lz
