// losszoo: cross_entropy (rows), generated; do not edit.
#include <losszoo/math.h>
#include <losszoo/item.h>
#include <losszoo/monoid.h>
#include <losszoo/host.h>
using R = float;
struct Args {
  const float* p_input;
  const lz::int64* p_target;
  float* g_input;
  float* loss;
  float* total;
  float* denominator;
  float* state;
  const float* normalizer;
  const float* grad_output;
  double* partial;
  lz::int64* status;
  unsigned* counter;
  lz::int64 rows;
  lz::int64 classes;
  lz::int64 inner;
  lz::int64 grain;
  lz::int64 mean;
  lz::int64 ignore_index;
  lz::int64 grad_output_item;
  lz::int64 s_input_outer;
  lz::int64 s_input_class;
  lz::int64 s_target_item;
  lz::int64 s_target_component;
  lz::int64 sg_input_outer;
  lz::int64 sg_input_class;
};
namespace {
  // A block of classes at a time: wide enough to vectorise and to hide the latency of the folds, small enough for the L1 cache.
  constexpr int L = 16, BLOCK = 256;
  constexpr lz::int64 AHEAD = 4096;  // bytes: the hardware's own prefetching stops at the end of a page, which is where most rows end
}  // namespace
extern "C" LZ_EXPORT void forward(const Args* args, lz::int64 begin, lz::int64 end) {
  const Args& a = *args;
  const lz::int64 classes = a.classes;
  constexpr bool ROUGH = false, NEAR = true;
  (void)ROUGH, (void)NEAR;
  lz::Tally tally;
  for (lz::int64 row = begin; row < end; ++row) {
    const float* const at_input = a.p_input + row * a.s_input_outer;
    constexpr lz::int64 step_input = 1;
    const lz::int64 v_target = lz::load<lz::int64>(a.p_target + row * a.s_target_item + 0 * a.s_target_component);
    const bool ignored = (v_target == a.ignore_index);
    const bool stray = !ignored && ((lz::uint64(v_target) >= lz::uint64(classes)));
    if (ignored) {
      if (a.loss) a.loss[row] = R(0);
      if (a.state) {
        a.state[0 * a.rows + row] = R(0);
        a.state[1 * a.rows + row] = R(0);
      }
      continue;
    }
    const R t0 = lz::pick<R>(at_input, step_input, v_target, classes);
    lz::Online<R, L, 0, 0> lanes_acc0_0;
    for (lz::int64 base = 0; base < classes; base += BLOCK) {
      const int n = int(classes - base < BLOCK ? classes - base : BLOCK);
      lz::prefetch(reinterpret_cast<const char*>(at_input + base) + AHEAD, n * sizeof(float));
      const int groups = (n + L - 1) / L, whole = n / L, first = whole * L;
      if (whole > 0) {
        lanes_acc0_0.fold(whole, at_input + base);
      }
      if (first < n) {
        alignas(64) R in_acc0_0_0[L];
        for (int k = first; k < n; ++k) {
          const R v_input = lz::load<R>(at_input + base + k);
          in_acc0_0_0[k - first] = v_input;
        }
        for (int k = n; k < groups * L; ++k) {
          in_acc0_0_0[k - first] = -lz::infinity<R>();
        }
        lanes_acc0_0.fold(groups - whole, in_acc0_0_0);
      }
    }
    const auto acc0_0 = lanes_acc0_0.whole();
    const R r6 = acc0_0.logsum(0);
    const R r7 = acc0_0.peak(0);
    const R t1 = t0 - r7;
    const R t2 = r6 - t1;
    R loss = t2;
    const R count = R(1.0);
    if (stray) {
      tally.stray(row);
      loss = lz::nan<R>();
    }
    if (a.loss) a.loss[row] = loss;
    if (a.state) {
      a.state[0 * a.rows + row] = r7;
      a.state[1 * a.rows + row] = r6;
    }
    tally.add(loss, count);
  }
  tally.leave(a, begin);
}
extern "C" LZ_EXPORT void finish(const Args* args, lz::int64, lz::int64) { lz::finish<R>(*args); }
extern "C" LZ_EXPORT void backward(const Args* args, lz::int64 begin, lz::int64 end) {
  const Args& a = *args;
  const lz::int64 classes = a.classes;
  constexpr bool ROUGH = false, NEAR = true;
  (void)ROUGH, (void)NEAR;
  const R inverse = a.denominator ? R(1) / a.denominator[0] : R(1);
  const R common = a.rows > 0 && a.grad_output_item == 0 ? a.grad_output[0] * inverse : R(0);
  for (lz::int64 row = begin; row < end; ++row) {
    const float* const at_input = a.p_input + row * a.s_input_outer;
    constexpr lz::int64 step_input = 1;
    float* const grad_input = a.g_input + row * a.sg_input_outer;
    const lz::int64 v_target = lz::load<lz::int64>(a.p_target + row * a.s_target_item + 0 * a.s_target_component);
    const bool ignored = (v_target == a.ignore_index);
    const bool stray = !ignored && ((lz::uint64(v_target) >= lz::uint64(classes)));
    if (ignored | stray) {
      const R absent = ignored ? R(0) : lz::nan<R>();
      for (lz::int64 j = 0; j < classes; ++j) lz::store(grad_input + j, absent);
      continue;
    }
    const R upstream = a.grad_output_item ? a.grad_output[row * a.grad_output_item] * inverse : common;
    const R s0 = a.state[0 * a.rows + row];
    const R s1 = a.state[1 * a.rows + row];
    const R t0 = -upstream;
    for (lz::int64 base = 0; base < classes; base += BLOCK) {
      const int n = int(classes - base < BLOCK ? classes - base : BLOCK);
      lz::prefetch(reinterpret_cast<const char*>(at_input + base) + AHEAD, n * sizeof(float));
      const bool streams_input = lz::uint64(a.rows * classes) * sizeof(float) >= lz::CACHED;
      alignas(64) float block_input[BLOCK];
      float* const out_input = streams_input ? block_input : grad_input + base;
      for (int k = 0; k < n; ++k) {
        const R v_input = lz::load<R>(at_input + base + k);
        const bool t1 = k == lz::within<NEAR>(v_target, base);
        const R t2 = lz::select(t1, t0, R(0.0));
        const R t3 = v_input - s0;
        const R t4 = t3 - s1;
        const R t5 = lz::exp_falling<ROUGH>(t4);
        const R t6 = upstream * t5;
        const R t7 = t2 + t6;
        lz::store(out_input + k, t7);
      }
      if (streams_input) lz::stream(grad_input + base, block_input, n * sizeof(float));
    }
  }
  lz::streamed();
}
