// The machine that kernels run on: one fibre a thread, blocks in a shuffled order, a few of them at a time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace simt {

struct uint3 {
  unsigned x, y, z;
};

// Says what is wrong, and where; the process ends.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

constexpr unsigned WARP = 32, MAX_THREADS = 1024, MAX_ARGS = 1024, MAX_DYNAMIC = 227 * 1024;
constexpr size_t STACK = 256 * 1024;
constexpr int EVERY = -1;

// --- what is known to have happened before: see races.cpp ------------------------------------------------------------

// Of a block: everything before barrier number `epoch`, and after it what these threads did before their step `second`.
struct Known {
  uint32_t epoch = 0;
  std::vector<std::pair<uint32_t, uint32_t>> threads;
};
using View = std::map<uint32_t, Known>;  // by block
using SharedView = std::shared_ptr<const View>;

struct Clock {
  uint32_t step = 0;                    // counts the synchronisations of this thread since the last barrier
  uint32_t seen[WARP] = {};             // of the same warp: the steps that came before now
  SharedView acquired, pending, released;  // known; read from atomics, and known after the next fence; known at the last fence
};

// --- threads and blocks ----------------------------------------------------------------------------------------------

struct Block;

enum class State { READY, AT_BARRIER, IN_WARP, EXITED };

struct Fibre {
  Block* block = nullptr;
  uint3 thread{};
  unsigned index = 0;  // of the thread in the block
  State state = State::READY;
  // where it waits
  const void* site = nullptr;
  const char *what = "", *file = "";
  int line = 0;
  unsigned mask = 0, present = 0;
  bool ordering = false;
  int source = 0;  // the lane that is listened to; EVERY
  unsigned long long brought = 0, received[WARP];
  Clock clock;

  unsigned lane() const { return index % WARP; }
};

struct Block {
  uint3 place{};
  uint32_t number = 0, epoch = 0;
  unsigned threads = 0, live = 0, waiting = 0;
  std::vector<Fibre*> fibres, ready;
  std::vector<unsigned> live_lanes, waiting_lanes;  // of each warp; waiting for others of the warp
  std::vector<unsigned char> shared;  // its shared memory while another block runs
};

struct Launch {
  void* entry = nullptr;
  uint3 grid{}, block{};
  unsigned shared_bytes = 0, resident = 1;
  uint64_t seed = 0;
  unsigned char args[MAX_ARGS] = {};
};

void run(const Launch& launch);

extern Fibre* now;  // the thread that runs, if one does
extern Launch current;

// Whether the address lies on the stack of the running thread; of another one.
bool on_own_stack(uintptr_t at);
bool on_a_stack(uintptr_t at);

// --- memory ----------------------------------------------------------------------------------------------------------

struct Range {
  uintptr_t begin = 0, end = 0;
  bool contains(uintptr_t at) const { return at >= begin && at < end; }
};

extern Range static_shared, dynamic_shared;  // dynamic: as much as the launch asked for

struct Variable {  // in shared memory
  Range range;
  const char* name;
};
extern std::vector<Variable> shared_variables;

// --- the race check: does nothing in a build for the address sanitizer ------------------------------------------------

namespace races {
void begin(const std::vector<std::pair<Range, bool>>& buffers);  // the launch's buffers, and whether they may be written
void begin(Block& block);
void barrier(Block& block);
void warp(Block& block, unsigned first, unsigned mask);  // the threads of the warp that begins at `first`
void fence(Fibre& fibre);
void atomic(void* at, size_t size, const void* site);
}  // namespace races

}  // namespace simt
