// Splits a count into ranges over torch's own OpenMP threads.
//
// It calls OpenMP by its runtime interface and is linked to no OpenMP library, so at load the symbols resolve to the
// library that torch has already loaded for the whole process: one pool of threads, sized by torch.set_num_threads.
// (Linked to a libgomp of its own it would start a second pool beside torch's, and both would fight for the cores.)
// The first caller waits for its compilation, half of which <atomic> would take.

#include <cstdint>

extern "C" {
void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned flags);
int omp_get_max_threads();
int omp_in_parallel();
}

namespace {

using RangeFunction = void (*)(const void* args, int64_t begin, int64_t end);

struct Job {
    RangeFunction function;
    const void* args;
    int64_t count;
    int64_t grain;
    int64_t next = 0;

    // Ranges depend on the grain alone, never on the threads, so that sums a range are the same in every run.
    void run() {
        for (;;) {
            const int64_t begin = __atomic_fetch_add(&next, grain, __ATOMIC_RELAXED);
            if (begin >= count) return;
            function(args, begin, count - begin > grain ? begin + grain : count);
        }
    }
};

}  // namespace

extern "C" __attribute__((visibility("default"))) void losszoo_parallel_for(
    RangeFunction function, const void* args, int64_t count, int64_t grain) {
    Job job{function, args, count, grain};
    if (count <= grain || omp_get_max_threads() == 1 || omp_in_parallel()) return job.run();
    // 0 threads means all: torch uses its whole team each time, and a team that shrinks ends threads for good.
    GOMP_parallel([](void* data) { static_cast<Job*>(data)->run(); }, &job, 0, 0);
}
