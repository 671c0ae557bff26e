// Fibres, barriers, exchanges within a warp, and the order in which threads and blocks run.
#include "machine.h"

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>

#if SIMT_ADDRESS
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

extern "C" {
// Stands for every `extern __shared__` array: see toolchain.py.
alignas(16) thread_local unsigned char simt_dynamic[simt::MAX_DYNAMIC];
}

namespace simt {

Fibre* now = nullptr;
Launch current;
Range static_shared, dynamic_shared;

namespace {

// A stack that is left for another and returned to.
struct Context {
  void* jump[5];
  ucontext_t start;
  bool fresh = false;
  const void* bottom = nullptr;
  size_t size = 0;
  void* fake_stack = nullptr;  // the address sanitizer's
};

struct Worker : Fibre {
  Context context;
};

Context scheduler;
std::vector<std::unique_ptr<Worker>> workers;
uint64_t random_state;

uint64_t random_below(uint64_t n) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return (random_state >> 32) * n >> 32;
}

__attribute__((noinline)) void go(Context& from, Context& to) {
#if SIMT_ADDRESS
  __sanitizer_start_switch_fiber(&from.fake_stack, to.bottom, to.size);
#endif
  if (__builtin_setjmp(from.jump) == 0) {
    if (!to.fresh) __builtin_longjmp(to.jump, 1);
    to.fresh = false;
    setcontext(&to.start);
  }
#if SIMT_ADDRESS
  __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}

void pause() {
  Context& mine = static_cast<Worker*>(now)->context;
  go(mine, scheduler);
}

void release_barrier_if_full(Block& block) {
  if (block.live == 0 || block.waiting < block.live) return;
  const Fibre* first = nullptr;
  for (Fibre* f : block.fibres) {
    if (f->state != State::AT_BARRIER) continue;
    if (first && first->site != f->site)
      fail("divergent barrier: thread %u waits at %s:%d, thread %u at %s:%d", first->index, first->file, first->line, f->index, f->file,
           f->line);
    first = f;
  }
  races::barrier(block);
  for (Fibre* f : block.fibres)
    if (f->state == State::AT_BARRIER) f->state = State::READY, block.ready.push_back(f);
  block.waiting = 0;
}

// Lets the lanes of a mask go on, once all of them that have not exited came to the same place.
void release_warp_if_full(Block& block, unsigned warp, unsigned mask, const void* site) {
  const unsigned lanes = mask & block.live_lanes[warp], first = warp * WARP;
  if (!lanes || lanes & ~block.waiting_lanes[warp]) return;
  auto each = [&](auto action) {
    for (unsigned rest = lanes; rest; rest &= rest - 1) action(*block.fibres[first + __builtin_ctz(rest)]);
  };
  bool together = true;
  each([&](Fibre& f) { together &= f.mask == mask && f.site == site; });
  if (!together) return;
  if (block.fibres[first + __builtin_ctz(lanes)]->ordering) races::warp(block, first, lanes);
  each([&](Fibre& f) {
    if (f.source == EVERY)
      each([&](Fibre& other) { f.received[other.lane()] = other.brought; });
    else if (f.source >= 0 && f.source < int(WARP) && lanes >> f.source & 1)
      f.received[f.source] = block.fibres[first + f.source]->brought;
    f.present = lanes;
    f.state = State::READY;
    block.ready.push_back(&f);
  });
  block.waiting_lanes[warp] &= ~lanes;
}

void exited() {
  Block& block = *now->block;
  const unsigned warp = now->index / WARP, mine = 1u << now->lane();
  now->state = State::EXITED;
  --block.live;
  block.live_lanes[warp] &= ~mine;
  release_barrier_if_full(block);
  for (unsigned rest = block.waiting_lanes[warp]; rest; rest &= rest - 1) {
    const Fibre& f = *block.fibres[warp * WARP + __builtin_ctz(rest)];
    if (f.state == State::IN_WARP && f.mask & mine) release_warp_if_full(block, warp, f.mask, f.site);
  }
}

// A kernel takes its struct by value. A larger one in its place is passed in the same way, so the type need not be known.
struct Packet {
  unsigned char bytes[MAX_ARGS];
};

void work() {
#if SIMT_ADDRESS
  __sanitizer_finish_switch_fiber(nullptr, &scheduler.bottom, &scheduler.size);
#endif
  for (;;) {
    Packet packet;
    memcpy(packet.bytes, current.args, MAX_ARGS);
    reinterpret_cast<void (*)(Packet)>(current.entry)(packet);
    exited();
    pause();
  }
}

Worker* make_worker() {
  auto worker = std::make_unique<Worker>();
  Context& c = worker->context;
  void* memory = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) fail("no memory for another stack");
  mprotect(memory, 4096, PROT_NONE);
  c.bottom = memory, c.size = STACK, c.fresh = true;
  getcontext(&c.start);
  // The tops lie at different places in their pages, or all would share a few lines of the cache.
  c.start.uc_stack.ss_sp = memory, c.start.uc_stack.ss_size = STACK - workers.size() % 61 * 1088;
  makecontext(&c.start, work, 0);
  workers.push_back(std::move(worker));
  return workers.back().get();
}

std::vector<Worker*> idle;

void start(Block& block, uint32_t number) {
  const uint3 g = current.grid, b = current.block;
  block.number = number;
  block.place = {number % g.x, number / g.x % g.y, number / g.x / g.y};
  block.threads = block.live = b.x * b.y * b.z;
  block.epoch = block.waiting = 0;
  block.fibres.clear(), block.ready.clear();
  for (unsigned i = 0; i < block.threads; ++i) {
    Worker* worker = idle.empty() ? make_worker() : idle.back();
    if (!idle.empty()) idle.pop_back();
    static_cast<Fibre&>(*worker) = Fibre();
    worker->block = &block, worker->index = i;
    worker->thread = {i % b.x, i / b.x % b.y, i / b.x / b.y};
    block.fibres.push_back(worker), block.ready.push_back(worker);
  }
  block.live_lanes.assign((block.threads + WARP - 1) / WARP, 0xffffffffu);
  if (block.threads % WARP) block.live_lanes.back() = (1u << block.threads % WARP) - 1;
  block.waiting_lanes.assign(block.live_lanes.size(), 0);
  // Bytes that are nan as a number of any width.
  block.shared.assign(static_shared.end - static_shared.begin + current.shared_bytes, 0xff);
  races::begin(block);
}

const char* waits_for(const Fibre& f) { return f.state == State::AT_BARRIER ? "__syncthreads" : f.what; }

[[noreturn]] void deadlock(const Block& block) {
  std::map<std::string, unsigned> waiting;
  for (const Fibre* f : block.fibres)
    if (f->state != State::EXITED) ++waiting[std::string(waits_for(*f)) + " at " + f->file + ":" + std::to_string(f->line)];
  std::string text;
  for (const auto& [where, count] : waiting) text += (text.empty() ? "" : ", ") + std::to_string(count) + " in " + where;
  now = nullptr;
  fail("deadlock in block %u: of %u threads %u exited, the others wait: %s", block.number, block.threads, block.threads - block.live,
       text.c_str());
}

// The shared memory of the block that runs is where the kernel's variables are.
struct Swap {
  Block* inside = nullptr;

  void copy(Block& block, bool in) {
    const size_t fixed = static_shared.end - static_shared.begin;
    auto move = [&](uintptr_t at, unsigned char* kept, size_t n) {
      unsigned char* there = reinterpret_cast<unsigned char*>(at);
      in ? memcpy(there, kept, n) : memcpy(kept, there, n);
    };
    move(static_shared.begin, block.shared.data(), fixed);
    move(dynamic_shared.begin, block.shared.data() + fixed, current.shared_bytes);
  }
  void enter(Block& block) {
    if (inside == &block) return;
    leave();
    copy(block, true);
    inside = &block;
  }
  void leave() {
    if (inside) copy(*inside, false);
    inside = nullptr;
  }
};

}  // namespace

void fail(const char* format, ...) {
  fprintf(stderr, "simt: ");
  if (now) fprintf(stderr, "block %u, thread %u: ", now->block->number, now->index);
  va_list arguments;
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fprintf(stderr, "\n");
  fflush(stderr);
  _exit(3);
}

bool on_own_stack(uintptr_t at) {
  const Context& c = static_cast<Worker*>(now)->context;
  return at - uintptr_t(c.bottom) < c.size;
}

bool on_a_stack(uintptr_t at) {
  return std::any_of(workers.begin(), workers.end(), [&](auto& w) { return at - uintptr_t(w->context.bottom) < w->context.size; });
}

void run(const Launch& launch) {
  current = launch;
  random_state = launch.seed * 0x9e3779b97f4a7c15ull + 1;
  const uintptr_t dynamic = uintptr_t(simt_dynamic);
  dynamic_shared = {dynamic, dynamic + launch.shared_bytes};
#if SIMT_ADDRESS
  __asan_unpoison_memory_region(simt_dynamic, launch.shared_bytes);
  __asan_poison_memory_region(simt_dynamic + launch.shared_bytes, MAX_DYNAMIC - launch.shared_bytes);
#endif
  std::vector<uint32_t> order(size_t(launch.grid.x) * launch.grid.y * launch.grid.z);
  std::iota(order.begin(), order.end(), 0u);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_below(i)]);
  std::vector<std::unique_ptr<Block>> running;
  Swap swap;
  size_t begun = 0;
  while (begun < order.size() || !running.empty()) {
    while (running.size() < launch.resident && begun < order.size()) {
      running.push_back(std::make_unique<Block>());
      start(*running.back(), order[begun++]);
    }
    const size_t chosen = random_below(running.size());
    Block& block = *running[chosen];
    swap.enter(block);
    const size_t steps = running.size() == 1 ? SIZE_MAX : 1 + random_below(4 * block.threads);
    for (size_t step = 0; step < steps && !block.ready.empty(); ++step) {
      std::swap(block.ready[random_below(block.ready.size())], block.ready.back());
      now = block.ready.back();
      block.ready.pop_back();
      go(scheduler, static_cast<Worker*>(now)->context);
      now = nullptr;
    }
    if (!block.ready.empty()) continue;
    if (block.live) deadlock(block);
    swap.leave();
    for (Fibre* f : block.fibres) idle.push_back(static_cast<Worker*>(f));
    running.erase(running.begin() + chosen);
  }
}

}  // namespace simt

// --- what kernels call -----------------------------------------------------------------------------------------------

using simt::now;
using simt::State;

extern "C" {

simt::uint3 simt_thread() { return now->thread; }
simt::uint3 simt_block() { return now->block->place; }
simt::uint3 simt_block_size() { return simt::current.block; }
simt::uint3 simt_grid_size() { return simt::current.grid; }
unsigned simt_lane() { return now->lane(); }

void simt_barrier(const char* file, int line) {
  simt::Block& block = *now->block;
  now->state = State::AT_BARRIER;
  now->site = __builtin_return_address(0), now->file = file, now->line = line;
  ++block.waiting;
  simt::release_barrier_if_full(block);
  simt::pause();
}

void simt_exchange(unsigned mask, unsigned long long value, int source, bool ordering, const char* what, const char* file, int line) {
  if (!(mask >> now->lane() & 1)) simt::fail("%s at %s:%d: lane %u is not in its own mask %08x", what, file, line, now->lane(), mask);
  now->state = State::IN_WARP;
  now->site = __builtin_return_address(0), now->what = what, now->file = file, now->line = line;
  now->mask = mask, now->brought = value, now->source = source, now->ordering = ordering;
  const unsigned warp = now->index / simt::WARP;
  now->block->waiting_lanes[warp] |= 1u << now->lane();
  simt::release_warp_if_full(*now->block, warp, mask, now->site);
  simt::pause();
}

unsigned simt_present() { return now->present; }

unsigned long long simt_brought(int lane) {
  if (lane < 0 || lane > 31 || !(now->present >> lane & 1))
    simt::fail("%s at %s:%d: lane %u reads lane %d, which takes no part in it", now->what, now->file, now->line, now->lane(), lane);
  return now->received[lane];
}

void simt_fence() {
  simt::races::fence(*now);
  now->block->ready.push_back(now);  // let others run meanwhile
  simt::pause();
}

void simt_fail(const char* message, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, message);
  vsnprintf(text, sizeof text, message, arguments);
  va_end(arguments);
  simt::fail("%s", text);
}

}  // extern "C"

enum simt_operation { SIMT_ADD, SIMT_SUB, SIMT_MIN, SIMT_MAX, SIMT_EXCHANGE, SIMT_COMPARE_AND_SWAP, SIMT_AND, SIMT_OR };

template <class T> T simt_atomic(simt_operation operation, T* at, T value, T compare) {
  now->block->ready.push_back(now);
  simt::pause();  // whoever comes first is left to chance
  if (uintptr_t(at) % sizeof(T)) simt::fail("an atomic operation at a misaligned address");
#if SIMT_ADDRESS
  if (__asan_region_is_poisoned(at, sizeof(T))) simt::fail("an atomic operation outside of every buffer");
#endif
  simt::races::atomic(at, sizeof(T), __builtin_return_address(0));
  const T before = *at;
  switch (operation) {
    case SIMT_ADD: *at = before + value; break;
    case SIMT_SUB: *at = before - value; break;
    case SIMT_MIN: *at = std::min(before, value); break;
    case SIMT_MAX: *at = std::max(before, value); break;
    case SIMT_EXCHANGE: *at = value; break;
    case SIMT_COMPARE_AND_SWAP: *at = before == compare ? value : before; break;
    case SIMT_AND: if constexpr (std::is_integral_v<T>) *at = before & value; break;
    case SIMT_OR: if constexpr (std::is_integral_v<T>) *at = before | value; break;
  }
  return before;
}

template int simt_atomic(simt_operation, int*, int, int);
template unsigned simt_atomic(simt_operation, unsigned*, unsigned, unsigned);
template unsigned long long simt_atomic(simt_operation, unsigned long long*, unsigned long long, unsigned long long);
template float simt_atomic(simt_operation, float*, float, float);
template double simt_atomic(simt_operation, double*, double, double);
