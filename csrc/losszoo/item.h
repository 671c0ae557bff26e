// Reading one class of a row, and taking a share of a value, on any processor.
#pragma once
#include <losszoo/math.h>
#include <losszoo/numeric.h>
#include <losszoo/platform.h>

namespace lz {

// A class computed from numbers; nan, and what no integer holds, names none.
template <class R>
LZ_FN int64 integer(R x) {
  return abs(x) < R(int64(1) << 62) ? int64(x) : int64(-1);
}

// One class of a row; 0 where the label names none, as the sum over "position == label" would give.
template <class R, class T>
LZ_FN R pick(const T* row, int64 step, int64 label, int64 classes) {
  return uint64(label) < uint64(classes) ? load<R>(row + label * step) : R(0);
}

// x * y, but 0 where x is 0, also of an infinite y.
template <class R>
LZ_FN R share(R x, R y) {
  return select(x == R(0), R(0), x * y);
}

// The label's place in a block of classes that begins at `base`, or -1: blocks are compared in 32 bits. NEAR: it may be in this one.
template <bool NEAR>
LZ_FN int within(int64 label, int64 base) {
  if (!NEAR) return -1;
  const int64 place = label - base;
  return place < 0 || place > 0x7fffffff ? -1 : int(place);
}

}  // namespace lz
