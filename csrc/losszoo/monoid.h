// The states that fold a row, generic over L lanes. A lane is a thread's own part of a row (CUDA, L = 1), a column of a row's
// elements (CPU rows: the lanes are merged at the end), or a position of its own (strided rows: they never are).
//
// A monoid has: its identity as the initial value; fold(groups, v ...), which takes groups * L values with lane l's at v[g * L + l];
// merge(l, other, o), which joins another's lane; whole(), which joins its lanes; join(reduce), which joins the states of several
// threads, of which reduce(x, op) combines the threads' values of x; and projections that give lane l's result. All fields are of type R, so that a state can travel through
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

struct Plus {
  template <class R>
  LZ_METHOD R operator()(R a, R b) const { return a + b; }
};
struct Maximum {
  template <class R>
  LZ_METHOD R operator()(R a, R b) const { return maximum(a, b); }
};
struct Greater {
  template <class R>
  LZ_METHOD R operator()(R a, R b) const { return greater(a, b); }
};

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

  template <class Reduce>
  LZ_METHOD void join(const Reduce& reduce) { total[0] = reduce(total[0], Plus()); }

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

  template <class Reduce>
  LZ_METHOD void join(const Reduce& reduce) { top[0] = reduce(top[0], Maximum()); }

  LZ_METHOD R max(int l) const { return top[l]; }
};

// Online softmax: the running maximum, the sum of exp(x - maximum), N sums of exp(x - maximum) * f, rescaled whenever the maximum
// grows, and S sums of f * (x - maximum), moved by the sum of f. A nan is not seen by the maximum but stays in the sums, and so
// does what exp(inf - inf) gives. Where f is 0, a shifted sum takes nothing, not even of an infinite x.
template <class R, int L, int N, int S>
struct Online {
  R top[L], sums[1 + N + 2 * S][L];  // mass, N weighted sums, S shifted sums, S sums of f

  static constexpr int SHIFTED = 1 + N, PARTS = 1 + N + S, ALL = 1 + N + 2 * S;

  LZ_METHOD Online() {
    LZ_LANES top[l] = -infinity<R>();
    for (int n = 0; n < ALL; ++n) LZ_LANES sums[n][l] = R(0);
  }

  // -inf is no shift: exp(-inf - 0) is 0, as it must be for a masked class, where exp(-inf - -inf) is nan.
  static LZ_METHOD R shift(R top) { return select(top == -infinity<R>(), R(0), top); }

  template <class... F>
  LZ_METHOD void fold(int groups, const R* x, const F*... weights) {
    const R* const f[] = {weights..., x};
    R peak[L], s[ALL][L];  // local, so that they live in registers
    LZ_LANES peak[l] = top[l];
    LZ_UNROLL
    for (int g = 0; g < groups; ++g) LZ_LANES peak[l] = greater(x[g * L + l], peak[l]);
    LZ_LANES {
      const R old = shift(top[l]), now = shift(peak[l]), rescale = exp_fast(top[l] - now);
      top[l] = peak[l];
      peak[l] = now;
      for (int n = 0; n < SHIFTED; ++n) s[n][l] = sums[n][l] * rescale;
      for (int n = SHIFTED; n < PARTS; ++n) s[n][l] = sums[n][l] + moved(sums[n + S][l], old - now);
      for (int n = PARTS; n < ALL; ++n) s[n][l] = sums[n][l];
    }
#if LZ_CUDA
    if constexpr (ALL == 1 && L > 1 && is_same<R, float>) {  // columns; a row's own thread is not held up by instructions
      LZ_LANES {
        R mass = R(0), factor = R(1);
        if (abs(peak[l]) < Falling::FAR) {
          const Falling falling(peak[l]);
          factor = falling.factor;
          LZ_UNROLL
          for (int g = 0; g < groups; ++g) mass += falling.of(x[g * L + l]);
        } else {
          LZ_UNROLL
          for (int g = 0; g < groups; ++g) mass += exp_fast(x[g * L + l] - peak[l]);
        }
        sums[0][l] = fma(mass, factor, s[0][l]);
      }
      return;
    }
#endif
    LZ_UNROLL
    for (int g = 0; g < groups; ++g) LZ_LANES {
      const R d = x[g * L + l] - peak[l], e = exp_fast(d);
      s[0][l] += e;
      for (int n = 1; n < SHIFTED; ++n) s[n][l] += e * f[n - 1][g * L + l];
      for (int n = SHIFTED; n < PARTS; ++n) {
        s[n][l] += moved(f[n - 1][g * L + l], d);
        s[n + S][l] += f[n - 1][g * L + l];
      }
    }
    for (int n = 0; n < ALL; ++n) LZ_LANES sums[n][l] = s[n][l];
  }

  template <int O>
  LZ_METHOD void merge(int l, const Online<R, O, N, S>& other, int o) {
    const R a = top[l], b = other.top[o], peak = greater(a, b), now = shift(peak);
    const R here = exp_fast(a - now), there = exp_fast(b - now);
    top[l] = peak;
    for (int n = 0; n < SHIFTED; ++n) sums[n][l] = sums[n][l] * here + other.sums[n][o] * there;
    for (int n = SHIFTED; n < PARTS; ++n)
      sums[n][l] = sums[n][l] + moved(sums[n + S][l], shift(a) - now) + other.sums[n][o] + moved(other.sums[n + S][o], shift(b) - now);
    for (int n = PARTS; n < ALL; ++n) sums[n][l] += other.sums[n][o];
  }

  LZ_METHOD Online<R, 1, N, S> whole() const {
    Online<R, 1, N, S> w;
    for (int l = 0; l < L; ++l) w.top[0] = greater(top[l], w.top[0]);
    const R now = shift(w.top[0]);
    R part[L];
    LZ_LANES part[l] = exp_fast(top[l] - now);
    for (int n = 0; n < SHIFTED; ++n)
      for (int l = 0; l < L; ++l) w.sums[n][0] += sums[n][l] * part[l];
    for (int n = SHIFTED; n < PARTS; ++n)
      for (int l = 0; l < L; ++l) w.sums[n][0] += sums[n][l] + moved(sums[n + S][l], shift(top[l]) - now);
    for (int n = PARTS; n < ALL; ++n)
      for (int l = 0; l < L; ++l) w.sums[n][0] += sums[n][l];
    return w;
  }

  // The maximum first, so that each thread rescales its sums once.
  template <class Reduce>
  LZ_METHOD void join(const Reduce& reduce) {
    const R own = top[0];
    top[0] = reduce(own, Greater());
    const R now = shift(top[0]), part = exp_fast(own - now);
    for (int n = 0; n < SHIFTED; ++n) sums[n][0] = reduce(sums[n][0] * part, Plus());
    for (int n = SHIFTED; n < PARTS; ++n) sums[n][0] = reduce(sums[n][0] + moved(sums[n + S][0], shift(own) - now), Plus());
    for (int n = PARTS; n < ALL; ++n) sums[n][0] = reduce(sums[n][0], Plus());
  }

  LZ_METHOD R peak(int l) const { return top[l]; }
  LZ_METHOD R logsum(int l) const { return log(sums[0][l]); }
  LZ_METHOD R mean(int n, int l) const { return sums[1 + n][l] / sums[0][l]; }
  LZ_METHOD R shifted(int n, int l) const { return sums[SHIFTED + n][l]; }

 private:
  static LZ_METHOD R moved(R f, R by) { return select(f == R(0), R(0), f * by); }
};

#undef LZ_LANES

}  // namespace lz
