// Takes launches from standard input, runs them, and writes back the buffers that may have changed: see driver.py.
#include <dlfcn.h>
#include <link.h>
#include <sys/time.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "machine.h"

extern "C" thread_local unsigned char simt_dynamic[];

namespace simt {

std::vector<Variable> shared_variables;

namespace {

struct Header {
  char entry[64];
  uint32_t grid[3], block[3];
  uint32_t shared_bytes, resident;
  uint64_t seed;
  uint32_t args, buffers, pointers, patience;  // seconds of this process that the launch may take
};

struct BufferHeader {
  uint64_t size, misalignment;
  uint64_t writable;
};

struct Pointer {
  uint64_t at, buffer, offset;  // of the struct's bytes; which buffer; how far into it
};

constexpr size_t ALIGNMENT = 64;

// Of its own length to the byte, so that the address sanitizer sees what lies beyond.
struct Copy {
  BufferHeader header;
  unsigned char *memory, *data;
};

bool take(void* into, size_t size) { return fread(into, 1, size, stdin) == size; }

Copy take_buffer() {
  Copy copy{};
  BufferHeader& h = copy.header;
  if (!take(&h, sizeof h)) exit(4);
  void* memory = nullptr;
  if (posix_memalign(&memory, ALIGNMENT, h.misalignment + h.size)) fail("no memory for a buffer");
  copy.memory = static_cast<unsigned char*>(memory);
  copy.data = copy.memory + h.misalignment;
  if (!take(copy.data, h.size)) exit(4);
  return copy;
}

bool serve() {
  Header h;
  if (!take(&h, sizeof h)) return false;
  Launch launch;
  if (h.args > MAX_ARGS) fail("a struct of %u bytes is too large for a kernel", h.args);
  if (!take(launch.args, h.args)) exit(4);
  std::vector<Copy> copies;
  std::vector<std::pair<Range, bool>> buffers;
  for (uint32_t i = 0; i < h.buffers; ++i) {
    copies.push_back(take_buffer());
    const uintptr_t data = uintptr_t(copies.back().data);
    buffers.push_back({{data, data + copies.back().header.size}, copies.back().header.writable != 0});
  }
  for (uint32_t i = 0; i < h.pointers; ++i) {
    Pointer p;
    if (!take(&p, sizeof p)) exit(4);
    const unsigned char* target = copies[p.buffer].data + p.offset;
    memcpy(launch.args + p.at, &target, sizeof target);
  }
  launch.entry = dlsym(RTLD_DEFAULT, h.entry);
  if (!launch.entry) fail("no kernel is called %s", h.entry);
  launch.grid = {h.grid[0], h.grid[1], h.grid[2]}, launch.block = {h.block[0], h.block[1], h.block[2]};
  launch.shared_bytes = h.shared_bytes, launch.resident = h.resident, launch.seed = h.seed;
  races::begin(buffers);
  // Its own time and not the wall's: a busy machine is no endless loop. What waits for ever is found by the scheduler.
  itimerval patience{};
  patience.it_value.tv_sec = h.patience;
  setitimer(ITIMER_VIRTUAL, &patience, nullptr);
  run(launch);
  patience.it_value.tv_sec = 0;
  setitimer(ITIMER_VIRTUAL, &patience, nullptr);
  for (const Copy& c : copies)
    if (c.header.writable) fwrite(c.data, 1, c.header.size, stdout);
  fwrite("done", 1, 4, stdout);
  fflush(stdout);
  for (const Copy& c : copies) free(c.memory);
  return true;
}

int remember_segment(dl_phdr_info* info, size_t, void* base) {
  // The first is the program itself.
  *static_cast<uintptr_t*>(base) = uintptr_t(info->dlpi_tls_data);
  return 1;
}

// The arguments are the variables in the thread-local segment: offset, size and name of each.
void find_shared(int count, char** given) {
  uintptr_t base = 0;
  dl_iterate_phdr(remember_segment, &base);
  for (int i = 0; i + 2 < count; i += 3) {
    const uintptr_t begin = base + strtoull(given[i], nullptr, 10);
    shared_variables.push_back({{begin, begin + strtoull(given[i + 1], nullptr, 10)}, given[i + 2]});
  }
  for (const Variable& v : shared_variables) {
    if (!static_shared.begin || v.range.begin < static_shared.begin) static_shared.begin = v.range.begin;
    if (v.range.end > static_shared.end) static_shared.end = v.range.end;
  }
  if (static_shared.contains(uintptr_t(simt_dynamic))) fail("the dynamic array lies amid the variables in shared memory");
}

}  // namespace

}  // namespace simt

int main(int count, char** arguments) {
  simt::find_shared(count - 1, arguments + 1);
  while (simt::serve()) {
  }
  return 0;
}
