// Looks at every load and store of a kernel, which the compiler reports as it would to the thread sanitizer: is the address inside
// a buffer of the launch, a variable in shared memory or the thread's own stack; was shared memory written before; and does
// an access that conflicts come before or after this one, by a barrier, a warp's synchronisation, or fences around an atomic?
#include "machine.h"

#include <sys/mman.h>

#include <algorithm>
#include <string>
#include <unordered_map>

namespace simt::races {

#if SIMT_ADDRESS

void begin(const std::vector<std::pair<Range, bool>>&) {}
void begin(Block&) {}
void barrier(Block&) {}
void warp(Block&, unsigned, unsigned) {}
void fence(Fibre&) {}
void atomic(void*, size_t, const void*) {}

#else

namespace {

// Who did it and when, in one word; 0 is nobody.
struct Stamp {
  uint64_t bits = 0;

  static Stamp of(const Fibre& f, bool atomic) {
    const uint64_t block = f.block->number, epoch = f.block->epoch, step = f.clock.step;
    if (block >> 16 || epoch >> 18 || step >> 18) fail("a launch too long for the race check");
    return {block << 48 | uint64_t(f.index) << 38 | epoch << 20 | step << 2 | uint64_t(atomic) << 1 | 1};
  }
  explicit operator bool() const { return bits; }
  uint32_t block() const { return bits >> 48; }
  uint32_t thread() const { return bits >> 38 & 1023; }
  uint32_t epoch() const { return bits >> 20 & 0x3ffff; }
  uint32_t step() const { return bits >> 2 & 0x3ffff; }
  bool atomic() const { return bits >> 1 & 1; }
};

// The last write, and reads by two threads: a writer can be at most one of them.
struct Cell {
  Stamp write, read, other_read;
};

// Zeroed pages that cost nothing until they are touched.
class Cells {
 public:
  explicit Cells(size_t count) : size_(count * sizeof(Cell)) {
    void* memory = size_ ? mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) : nullptr;
    if (memory == MAP_FAILED) fail("no memory for the race check");
    cells_ = static_cast<Cell*>(memory);
  }
  ~Cells() {
    if (cells_) munmap(cells_, size_);
  }
  Cells(const Cells&) = delete;
  Cell& operator[](size_t i) { return cells_[i]; }

 private:
  size_t size_;
  Cell* cells_;
};

struct Buffer {
  Range range;
  bool writable;
  std::string name;
  std::unique_ptr<Cells> cells;
};

constexpr unsigned GRAIN = 2;  // bytes of a buffer that share a cell: no element is smaller

std::vector<Buffer> buffers;
Buffer* last_buffer = nullptr;
std::unordered_map<const Block*, std::unique_ptr<Cells>> shared_cells;
std::unordered_map<uintptr_t, SharedView> left_at;  // what those released who wrote an atomic

void join(View& into, const SharedView& from) {
  if (!from) return;
  for (const auto& [block, known] : *from) {
    Known& mine = into[block];
    if (mine.epoch > known.epoch) continue;
    if (mine.epoch < known.epoch) mine = Known{known.epoch, {}};
    for (const auto& [thread, step] : known.threads) {
      auto at = std::find_if(mine.threads.begin(), mine.threads.end(), [&](auto& t) { return t.first == thread; });
      if (at == mine.threads.end())
        mine.threads.emplace_back(thread, step);
      else
        at->second = std::max(at->second, step);
    }
  }
}

SharedView joined(const SharedView& a, const SharedView& b) {
  if (!a || a == b) return b;
  if (!b) return a;
  View all = *a;
  join(all, b);
  return std::make_shared<const View>(std::move(all));
}

bool before(Stamp s, const Fibre& f) {
  const Clock& c = f.clock;
  if (s.block() == f.block->number) {
    if (s.epoch() < f.block->epoch || s.thread() == f.index) return true;
    if (s.thread() / WARP == f.index / WARP && s.step() < c.seen[s.thread() % WARP]) return true;
  }
  if (!c.acquired) return false;
  const auto known = c.acquired->find(s.block());
  if (known == c.acquired->end()) return false;
  if (s.epoch() != known->second.epoch) return s.epoch() < known->second.epoch;
  const auto& threads = known->second.threads;
  return std::any_of(threads.begin(), threads.end(), [&](auto& t) { return t.first == s.thread() && s.step() < t.second; });
}

struct Access {
  uintptr_t at;
  size_t size;
  bool write, atomic;
  const void* site;

  const char* name() const { return atomic ? "atomic" : write ? "write" : "read"; }
};

[[noreturn]] void race(const Access& a, Stamp s, bool wrote, const char* where, size_t offset) {
  fail("race: a %s of %zu bytes at %p conflicts with a %s by block %u, thread %u, which nothing orders before it; byte %zu of %s", a.name(),
       a.size, a.site, wrote ? "write" : "read", s.block(), s.thread(), offset, where);
}

void note(Cell& cell, const Access& a, const char* where, size_t offset) {
  const Fibre& f = *now;
  const Stamp mine = Stamp::of(f, a.atomic);
  auto conflicts = [&](Stamp s) { return s && !(s.atomic() && a.atomic) && !before(s, f); };
  if (conflicts(cell.write)) race(a, cell.write, true, where, offset);
  if (a.write) {
    for (Stamp s : {cell.read, cell.other_read})
      if (conflicts(s)) race(a, s, false, where, offset);
    cell.write = mine;
    if (!a.atomic) cell.read = cell.other_read = Stamp();
  } else if (!cell.read || before(cell.read, f)) {
    cell.read = mine;
  } else {
    cell.other_read = mine;
  }
}

void in_shared(const Access& a, const Range& range, size_t first_cell, const char* name) {
  if (a.at + a.size > range.end)
    fail("a %s of %zu bytes at %p passes the end of %s in shared memory, of %zu bytes", a.name(), a.size, a.site, name, size_t(range.end - range.begin));
  Cells& cells = *shared_cells.at(now->block);
  for (size_t i = 0; i < a.size; ++i) {
    Cell& cell = cells[first_cell + i];
    if (!a.write && !cell.write)
      fail("a read of %zu bytes at %p of shared memory that nothing was written to: byte %zu of %s", a.size, a.site,
           size_t(a.at + i - range.begin), name);
    note(cell, a, name, a.at + i - range.begin);
  }
}

void in_buffer(Buffer& buffer, const Access& a) {
  const char* name = buffer.name.c_str();
  if (a.at + a.size > buffer.range.end)
    fail("a %s of %zu bytes at %p passes the end of %s, of %zu bytes", a.name(), a.size, a.site, name, size_t(buffer.range.end - buffer.range.begin));
  if (!buffer.writable) {
    if (a.write) fail("a write of %zu bytes at %p to %s, which is an input", a.size, a.site, name);
    return;
  }
  const size_t offset = a.at - buffer.range.begin;
  for (size_t i = offset / GRAIN; i <= (offset + a.size - 1) / GRAIN; ++i) note((*buffer.cells)[i], a, name, i * GRAIN);
}

[[noreturn]] void outside(const Access& a) {
  const char* side = "";
  size_t nearest = SIZE_MAX;
  const char* name = "";
  for (const Buffer& b : buffers) {
    const bool below = a.at < b.range.begin;
    const size_t distance = below ? b.range.begin - a.at : a.at - b.range.end;
    if (distance < nearest) nearest = distance, name = b.name.c_str(), side = below ? "before the start" : "past the end";
  }
  if (nearest < 1 << 20) fail("a %s of %zu bytes at %p, %zu bytes %s of %s", a.name(), a.size, a.site, nearest, side, name);
  fail("a %s of %zu bytes at %p, outside of every buffer (address %p)", a.name(), a.size, a.site, reinterpret_cast<void*>(a.at));
}

extern "C" char __executable_start, etext, end;

void look(const Access& a) {
  if (!now || on_own_stack(a.at)) return;
  if (last_buffer && last_buffer->range.contains(a.at)) return in_buffer(*last_buffer, a);
  if (static_shared.contains(a.at)) {
    for (const Variable& v : shared_variables)
      if (v.range.contains(a.at)) return in_shared(a, v.range, a.at - static_shared.begin, v.name);
    fail("a %s of %zu bytes at %p, between the variables in shared memory", a.name(), a.size, a.site);
  }
  const size_t fixed = static_shared.end - static_shared.begin;
  if (dynamic_shared.contains(a.at)) return in_shared(a, dynamic_shared, fixed + (a.at - dynamic_shared.begin), "the dynamic array");
  for (Buffer& b : buffers)
    if (b.range.contains(a.at)) return in_buffer(*(last_buffer = &b), a);
  const bool constant = a.at >= uintptr_t(&__executable_start) && a.at < uintptr_t(&end);
  if (constant && !a.write) return;
  if (on_a_stack(a.at)) fail("a %s of %zu bytes at %p of another thread's local variables", a.name(), a.size, a.site);
  outside(a);
}

}  // namespace

void begin(const std::vector<std::pair<Range, bool>>& given) {
  buffers.clear(), left_at.clear(), shared_cells.clear();
  last_buffer = nullptr;
  for (const auto& [range, writable] : given) {
    const size_t count = writable ? (range.end - range.begin) / GRAIN + 1 : 0;
    buffers.push_back({range, writable, "buffer " + std::to_string(buffers.size()), std::make_unique<Cells>(count)});
  }
}

void begin(Block& block) { shared_cells[&block] = std::make_unique<Cells>(block.shared.size()); }

void barrier(Block& block) {
  ++block.epoch;
  SharedView acquired, pending, released;
  for (const Fibre* f : block.fibres) {
    acquired = joined(acquired, f->clock.acquired);
    pending = joined(pending, f->clock.pending);
    released = joined(released, f->clock.released);
  }
  for (Fibre* f : block.fibres) f->clock = Clock{0, {}, acquired, pending, released};
}

void warp(Block& block, unsigned first, unsigned mask) {
  Clock all;
  auto each = [&](auto action) {
    for (unsigned l = 0; l < WARP; ++l)
      if (mask >> l & 1) action(block.fibres[first + l]->clock, l);
  };
  each([&](Clock& c, unsigned lane) {
    c.seen[lane] = ++c.step;
    for (unsigned l = 0; l < WARP; ++l) all.seen[l] = std::max(all.seen[l], c.seen[l]);
    all.acquired = joined(all.acquired, c.acquired);
    all.pending = joined(all.pending, c.pending);
    all.released = joined(all.released, c.released);
  });
  each([&](Clock& c, unsigned) {
    all.step = c.step;
    c = all;
  });
}

void fence(Fibre& f) {
  Clock& c = f.clock;
  c.acquired = joined(c.acquired, c.pending);
  c.seen[f.lane()] = ++c.step;
  Known mine{f.block->epoch, {}};
  for (unsigned l = 0; l < WARP; ++l)
    if (c.seen[l]) mine.threads.emplace_back(f.index - f.lane() + l, c.seen[l]);
  View own;
  own[f.block->number] = mine;
  c.released = joined(std::make_shared<const View>(std::move(own)), c.acquired);
}

void atomic(void* at, size_t size, const void* site) {
  Clock& c = now->clock;
  look({uintptr_t(at), size, true, true, site});
  SharedView& left = left_at[uintptr_t(at)];
  c.pending = joined(c.pending, left);
  left = joined(left, c.released);
}

namespace {

// A volatile access is atomic, for what it is used for: a flag that others wait for.
void look_volatile(uintptr_t at, size_t size, bool write, const void* site) {
  if (!now) return;
  look({at, size, write, true, site});
  if (on_own_stack(at)) return;
  SharedView& left = left_at[at];
  if (write)
    left = joined(left, now->clock.released);
  else
    now->clock.pending = joined(now->clock.pending, left);
}

}  // namespace

#define SITE __builtin_return_address(0)
#define REPORTS(size)                                                                                                       \
  extern "C" void __tsan_read##size(void* at) { look({uintptr_t(at), size, false, false, SITE}); }                          \
  extern "C" void __tsan_write##size(void* at) { look({uintptr_t(at), size, true, false, SITE}); }                          \
  extern "C" void __tsan_unaligned_read##size(void* at) { look({uintptr_t(at), size, false, false, SITE}); }                \
  extern "C" void __tsan_unaligned_write##size(void* at) { look({uintptr_t(at), size, true, false, SITE}); }                \
  extern "C" void __tsan_volatile_read##size(void* at) { look_volatile(uintptr_t(at), size, false, SITE); }                 \
  extern "C" void __tsan_volatile_write##size(void* at) { look_volatile(uintptr_t(at), size, true, SITE); }                 \
  extern "C" void __tsan_unaligned_volatile_read##size(void* at) { look_volatile(uintptr_t(at), size, false, SITE); }       \
  extern "C" void __tsan_unaligned_volatile_write##size(void* at) { look_volatile(uintptr_t(at), size, true, SITE); }
REPORTS(1)
REPORTS(2)
REPORTS(4)
REPORTS(8)
REPORTS(16)
extern "C" void __tsan_read_range(void* at, size_t size) { look({uintptr_t(at), size, false, false, SITE}); }
extern "C" void __tsan_write_range(void* at, size_t size) { look({uintptr_t(at), size, true, false, SITE}); }
extern "C" void __tsan_init() {}

#endif

}  // namespace simt::races
