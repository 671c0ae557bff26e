// States on their way between the parts of a row: as plain numbers, number n of row r at [n * rows + r].
#pragma once
#include <losszoo/platform.h>

namespace lz {

template <class R, class M>
LZ_FN void leave_state(const M& state, R* at, int64 rows) {
  constexpr int N = sizeof(M) / sizeof(R);
  const R* const numbers = reinterpret_cast<const R*>(&state);
  LZ_UNROLL
  for (int n = 0; n < N; ++n) at[n * rows] = numbers[n];
}

template <class M, class R>
LZ_FN M find_state(const R* at, int64 rows) {
  constexpr int N = sizeof(M) / sizeof(R);
  M state;
  R* const numbers = reinterpret_cast<R*>(&state);
  LZ_UNROLL
  for (int n = 0; n < N; ++n) numbers[n] = at[n * rows];
  return state;
}

// The states of all parts, `size` numbers from one to the next, merged in their order: so all who merge them get the same bits.
template <class M, class R>
LZ_FN M merge_states(const R* at, int64 rows, int64 parts, int64 size) {
  M state = find_state<M>(at, rows);
  for (int64 p = 1; p < parts; ++p) state.merge(0, find_state<M>(at + p * size, rows), 0);
  return state;
}

}  // namespace lz
