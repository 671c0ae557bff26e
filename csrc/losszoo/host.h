// What a CPU kernel's ranges hand over: partial sums of losses and counts, and the first row with a label out of range.
#pragma once
#include <losszoo/platform.h>

#define LZ_EXPORT __attribute__((visibility("default")))

namespace lz {

struct Tally {
  double total = 0, count = 0;
  int64 first_stray = -1;

  void stray(int64 row) {
    if (first_stray < 0) first_stray = row;
  }

  template <class R>
  void add(R loss, R n) {
    total += loss;
    count += n;
  }

  // A block of items, in lanes so that it vectorises.
  template <class R>
  void add(const R* losses, const R* counts, int n) {
    constexpr int L = 16;
    R loss[L] = {}, number[L] = {};
    int i = 0;
    for (; i + L <= n; i += L)
      for (int l = 0; l < L; ++l) {
        loss[l] += losses[i + l];
        number[l] += counts[i + l];
      }
    for (; i < n; ++i) add(losses[i], counts[i]);
    for (int l = 0; l < L; ++l) add(loss[l], number[l]);
  }

  // Ranges are fixed by the problem, not by the number of threads, so the sums are the same on every run.
  template <class Args>
  void leave(const Args& a, int64 begin) const {
    const int64 range = begin / a.grain;
    a.partial[2 * range] = total;
    a.partial[2 * range + 1] = count;
    a.status[range] = first_stray;
  }
};

// Joins the ranges' sums: the total over its denominator, and in status[0] the first stray row, or -1.
template <class R, class Args>
void finish(const Args& a) {
  double total = 0, count = 0;
  int64 first_stray = -1;
  for (int64 range = 0; range * a.grain < a.rows; ++range) {
    total += a.partial[2 * range];
    count += a.partial[2 * range + 1];
    if (first_stray < 0) first_stray = a.status[range];
  }
  a.status[0] = first_stray;
  if (!a.total) return;
  const double denominator = a.normalizer ? double(a.normalizer[0]) : a.mean ? count : 1.0;
  a.total[0] = R(total / denominator);
  a.denominator[0] = R(denominator);
}

}  // namespace lz
