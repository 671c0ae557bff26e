// Fills in a kernel's arguments and launches it: over torch's threads, or on torch's current stream.
#include "plan.h"

#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <cstring>
#include <map>
#include <mutex>

extern "C" void losszoo_parallel_for(losszoo::RangeFunction function, const void* args, int64_t count, int64_t grain);

namespace losszoo {
namespace {

struct alignas(16) Packed {
    std::array<char, MAX_ARGS> bytes;

    Packed(const Launch& launch, const Pointers& p) {
        std::memcpy(bytes.data(), launch.args.data(), launch.args.size());
        for (const Patch& patch : launch.patches) {
            switch (patch.what) {
                case Patch::OPERAND: put(patch, p.operands[patch.index]); break;
                case Patch::GRADIENT: put(patch, p.gradients[patch.index]); break;
                case Patch::LOSS: put(patch, p.loss); break;
                case Patch::STATE: put(patch, p.state); break;
                case Patch::DENOMINATOR: put(patch, p.denominator); break;
                case Patch::PARTIAL: put(patch, p.partial); break;
                case Patch::STATUS: put(patch, p.status); break;
                case Patch::COUNTER: put(patch, p.counter); break;
                case Patch::NORMALIZER: put(patch, p.normalizer); break;
                case Patch::UPSTREAM: put(patch, p.upstream); break;
                case Patch::UPSTREAM_STEP: put(patch, p.upstream_step); break;
                case Patch::IGNORE_INDEX: put(patch, p.ignore_index); break;
                case Patch::FLOAT: put(patch, static_cast<float>(p.numbers[patch.index])); break;
                case Patch::DOUBLE: put(patch, p.numbers[patch.index]); break;
                case Patch::FOLDED: put(patch, p.folded); break;
                case Patch::MERGED: put(patch, p.merged); break;
                case Patch::GATHERED: put(patch, p.gathered); break;
            }
        }
    }

    template <class T>
    void put(const Patch& patch, T value) {
        std::memcpy(bytes.data() + patch.offset, &value, sizeof value);
    }
};

// From cuda.h, whose place no one should have to know.
struct LaunchAttribute {
    int id, padding, value;
    char rest[60];
};
struct LaunchConfig {
    unsigned grid[3], block[3], shared;
    void* stream;
    LaunchAttribute* attributes;
    unsigned count;
};
constexpr int PROGRAMMATIC_STREAM_SERIALIZATION = 6;  // a kernel is set up while the one before it still runs, for which it waits itself

struct Driver {
    int (*launch)(const LaunchConfig*, void*, void**, void**);
    int (*get_current)(void**);
    int (*push)(void*);
    int (*pop)(void**);
    int (*is_capturing)(void*, int*);
    int (*error_name)(int, const char**);

    static const Driver& get() {
        static const Driver driver;
        return driver;
    }

    void check(int code, const Plan& plan) const {
        if (!code) return;
        const char* name = nullptr;
        error_name(code, &name);
        TORCH_CHECK(false, "launching ", plan.name, ": ", name ? name : "CUDA error");
    }

 private:
    Driver() {
        void* library = dlopen("libcuda.so.1", RTLD_NOW);
        TORCH_CHECK(library, "no CUDA driver: ", dlerror());
        find(library, launch, "cuLaunchKernelEx");
        find(library, get_current, "cuCtxGetCurrent");
        find(library, push, "cuCtxPushCurrent_v2");
        find(library, pop, "cuCtxPopCurrent_v2");
        find(library, is_capturing, "cuStreamIsCapturing");
        find(library, error_name, "cuGetErrorName");
    }

    template <class F>
    static void find(void* library, F& function, const char* name) {
        function = reinterpret_cast<F>(dlsym(library, name));
        TORCH_CHECK(function, "the CUDA driver has no ", name);
    }
};

// A new thread has no context yet, and torch may be at another device.
class InContext {
 public:
    InContext(const Driver& driver, void* context, const Plan& plan) : driver_(driver) {
        void* current = nullptr;
        driver.get_current(&current);
        if (current == context) return;
        driver.check(driver.push(context), plan);
        pushed_ = true;
    }
    ~InContext() {
        void* popped = nullptr;
        if (pushed_) driver_.pop(&popped);
    }

 private:
    const Driver& driver_;
    bool pushed_ = false;
};

// What Python says of a device and a number, asked once.
class Known {
 public:
    template <class F>
    void* get(int device, int64_t number, F&& ask) {
        const std::pair<int, int64_t> at{device, number};
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            const auto found = known_.find(at);
            if (found != known_.end()) return found->second;
        }
        void* fresh = ask();  // without the lock: it waits for Python
        const std::lock_guard<std::mutex> lock(mutex_);
        return known_[at] = fresh;
    }

 private:
    std::mutex mutex_;
    std::map<std::pair<int, int64_t>, void*> known_;
};

// The driver's handle of torch's current stream. torch has it under a name of its own in each version, but Python's is the same in all.
void* current_stream(const Plan& plan) {
    static Known handles;
    const c10::Stream stream = c10::impl::VirtualGuardImpl(plan.device.type()).getStream(plan.device);
    return handles.get(plan.device.index(), stream.id(), [&] { return stream_from_python(plan.device.index(), stream.id()); });
}

void* counter(const Driver& driver, const Plan& plan, void* stream) {
    static Known counters;  // one a stream, whose launches follow each other, and each leaves its counter at zero
    const int device = plan.device.index();
    int capturing = 0;
    driver.check(driver.is_capturing(stream, &capturing), plan);
    if (capturing) return counter_from_python(device, stream, true);
    return counters.get(device, reinterpret_cast<int64_t>(stream), [&] { return counter_from_python(device, stream, false); });
}

}  // namespace

void launch_cpu(int64_t rows, const Launch& launch, const Pointers& pointers) {
    const Packed args(launch, pointers);
    const auto run = reinterpret_cast<RangeFunction>(launch.function);
    if (rows <= launch.grain) {
        run(args.bytes.data(), 0, rows);
    } else {
        at::get_num_threads();  // a thread takes over torch's setting the first time it asks
        losszoo_parallel_for(run, args.bytes.data(), rows, launch.grain);
    }
    if (launch.finish) launch.finish(args.bytes.data(), 0, 0);
}

void launch_cuda(const Plan& plan, const Launch& launch, Pointers& pointers) {
    const Driver& driver = Driver::get();
    void* stream = current_stream(plan);
    const InContext context(driver, launch.context, plan);
    if (pointers.partial) pointers.counter = counter(driver, plan, stream);
    Packed args(launch, pointers);
    void* parameters[] = {args.bytes.data()};
    const auto& [gx, gy, gz] = launch.grid;
    const auto& [bx, by, bz] = launch.block;
    LaunchAttribute follow{PROGRAMMATIC_STREAM_SERIALIZATION, 0, 1, {}};
    const LaunchConfig config{{gx, gy, gz}, {bx, by, bz}, launch.shared, stream, &follow, launch.follows ? 1u : 0u};
    driver.check(driver.launch(&config, launch.function, parameters, nullptr), plan);
}

}  // namespace losszoo
