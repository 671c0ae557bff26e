// What a CPU kernel's ranges hand over: partial sums of losses and counts, and the first row with a label out of range.
#pragma once
#include <losszoo/platform.h>

#define LZ_EXPORT __attribute__((visibility("default")))

namespace lz {

// `count` values for loops that go on to `whole`: where they lie, if these are as many, else in `room`, and zeros after them.
template <class T>
LZ_FN const T* padded(const T* from, int count, int whole, T* room) {
  if (count == whole) return from;
  __builtin_memcpy(room, from, count * sizeof(T));
  __builtin_memset(room + count, 0, (whole - count) * sizeof(T));
  return room;
}

// Asks for memory that a kernel will read soon. While it computes on one block the processor does not look as far as the next.
LZ_FN void prefetch(const void* from, int64 bytes) {
  constexpr int64 LINE = 64;
  for (int64 i = 0; i < bytes; i += LINE) __builtin_prefetch(static_cast<const char*>(from) + i);
}

// A result of so many bytes is gone from the caches before it is read. Its lines go straight to memory, unread, and push nothing out.
constexpr uint64 CACHED = 8 << 20;

LZ_FN void stream(void* to, const void* from, int64 bytes) {
#if defined(__AVX__)
  using Vector = float __attribute__((vector_size(32)));
  constexpr int64 SIZE = sizeof(Vector);
  const int64 skewed = -reinterpret_cast<uint64>(to) % SIZE, head = skewed < bytes ? skewed : bytes;
  char* out = static_cast<char*>(to);
  const char* in = static_cast<const char*>(from);
  __builtin_memcpy(out, in, head);
  int64 i = head;
  for (; i + SIZE <= bytes; i += SIZE) {
    Vector v;
    __builtin_memcpy(&v, in + i, SIZE);
#if defined(__clang__)
    __builtin_nontemporal_store(v, reinterpret_cast<Vector*>(out + i));
#else
    __builtin_ia32_movntps256(reinterpret_cast<float*>(out + i), v);
#endif
  }
  __builtin_memcpy(out + i, in + i, bytes - i);
#else
  __builtin_memcpy(to, from, bytes);
#endif
}

// A block of a result that has `all` values.
template <class T>
LZ_FN void write(T* to, const T* block, int64 count, int64 all) {
  if (uint64(all) * sizeof(T) >= CACHED)
    stream(to, block, count * sizeof(T));
  else
    __builtin_memcpy(to, block, count * sizeof(T));
}

// The first `count` of N values, most often all of them.
template <class T, int N>
LZ_FN void put(T* to, const T (&block)[N], int count) {
  __builtin_memcpy(to, block, count == N ? sizeof(block) : count * sizeof(T));
}

// Before another thread may read it.
LZ_FN void streamed() {
#if defined(__AVX__)
  __builtin_ia32_sfence();
#endif
}

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

  // A block of items.
  template <class R>
  void add(const R* losses, const R* counts, int n) {
    total += sum(losses, n);
    count += sum(counts, n);
  }

  // In lanes, so that it vectorises.
  template <class R>
  static double sum(const R* values, int n) {
    constexpr int L = 32;
    R lanes[L] = {};
    const int whole = n / L * L;
    for (int i = 0; i < whole; i += L) {
#pragma omp simd
      for (int l = 0; l < L; ++l) lanes[l] += values[i + l];
    }
    R rest = 0;
    for (int i = whole; i < n; ++i) rest += values[i];
    for (int step = L / 2; step > 0; step /= 2)
      for (int l = 0; l < step; ++l) lanes[l] += lanes[l + step];
    return double(lanes[0]) + rest;
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
