// A plan: all that a call's metadata decides, so that a call is an allocation, a few patched words and a launch.
#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace losszoo {

constexpr size_t MAX_ARGS = 2048, MAX_OPERANDS = 16, MAX_NUMBERS = 16;

// What a call writes into the template of a kernel's arguments, and where. `index` says which of several.
struct Patch {
    enum What : int64_t { OPERAND, GRADIENT, LOSS, STATE, DENOMINATOR, PARTIAL, STATUS, COUNTER, NORMALIZER, UPSTREAM, UPSTREAM_STEP,
                          IGNORE_INDEX, FLOAT, DOUBLE, FOLDED, MERGED, GATHERED };
    size_t offset;
    What what;
    size_t index;
};

using RangeFunction = void (*)(const void* args, int64_t begin, int64_t end);

struct Launch {
    std::string args;  // the template
    std::vector<Patch> patches;
    void* function = nullptr;  // a RangeFunction, or the driver's handle of a CUDA kernel
    RangeFunction finish = nullptr;  // CPU, forward
    void* context = nullptr;  // CUDA: the one that torch works in
    std::array<unsigned, 3> grid{}, block{};
    unsigned shared = 0;
    bool follows = false;  // launched while the kernel before it still runs, for which it waits itself
    int64_t grain = 1;  // CPU: rows of a range
};

// A pass over the classes that are here, before what those of all ranks have given is known.
struct Fold {
    int64_t numbers;  // of a row that it leaves
    Launch fold;
    std::optional<Launch> merge;  // unless it is the last pass
};

struct Operand {
    at::ScalarType dtype;  // what the kernel reads, packed; Undefined: the tensor as it is
    bool saved_as_read;  // whether the backward keeps the converted tensor, or the one given
};

struct Gradient {
    size_t operand;
    at::ScalarType dtype;
    std::vector<int64_t> sizes, strides;
    std::shared_ptr<void> memory;  // a Python function that gives it, where it is not torch's allocator that does
};

struct Plan {
    std::string name;  // of the node
    at::Device device = at::kCPU;
    at::ScalarType real = at::kFloat;
    int64_t rows = 0, partials = 0;
    int64_t states = 0;  // numbers a row that the backward wants again
    size_t numbers = 0;
    bool reduced = false, labels = false;
    std::vector<int64_t> shape;  // of the loss
    std::shared_ptr<void> memory;  // and the function that gives its memory, as that of a gradient
    std::vector<Operand> operands;  // those given, in the order of the arguments
    std::vector<Gradient> gradients;  // none: nothing is kept for a backward
    Launch forward, backward;
    std::vector<Fold> folds;  // of a call whose classes are split over ranks
    std::shared_ptr<void> differentiable;  // a Python function that computes the gradients so that they have gradients
    std::shared_ptr<void> gather;  // another, that has the collective: from what a pass left to that of all ranks
    std::shared_ptr<void> stray;  // and one that raises the error of a row whose label names no class, if it may not be done again by Python

    // Saved are the states of all rows and, where there is a reduction, its denominator behind them.
    int64_t kept() const { return states * rows + (reduced ? 1 : 0); }
    bool cuda() const { return device.is_cuda(); }
};

// Whether kernels can have the tensor's memory: it is no subclass, nor what a transform such as vmap makes of a tensor.
inline bool plain(const at::Tensor& tensor) {
    using c10::DispatchKey, c10::DispatchKeySet;
    static constexpr DispatchKeySet usual = DispatchKeySet(DispatchKeySet::RAW, c10::full_backend_mask) |
        DispatchKeySet({DispatchKey::Dense, DispatchKey::AutogradFunctionality, DispatchKey::ADInplaceOrView}) |
        c10::autocast_dispatch_keyset;
    return (tensor.key_set().raw_repr() & ~usual.raw_repr()) == 0 && (tensor.is_cpu() || tensor.is_cuda());
}

// The arguments of a call that are not in its plan.
struct Arguments {
    std::array<at::Tensor, MAX_OPERANDS> operands;
    std::array<double, MAX_NUMBERS> numbers{};
    int64_t ignore_index = 0;
    at::Tensor normalizer;
};

// The loss; undefined where a label names no class, which Python then says in its own words.
at::Tensor compute(const std::shared_ptr<const Plan>& plan, Arguments& arguments);

// launch.cpp
struct Pointers {
    std::array<const void*, MAX_OPERANDS> operands{}, gradients{};
    const void *loss = nullptr, *state = nullptr, *denominator = nullptr, *partial = nullptr, *status = nullptr, *counter = nullptr,
               *normalizer = nullptr, *upstream = nullptr, *folded = nullptr, *merged = nullptr, *gathered = nullptr;
    int64_t upstream_step = 0, ignore_index = 0;
    const double* numbers = nullptr;
};
void launch_cpu(int64_t rows, const Launch& launch, const Pointers& pointers);
void launch_cuda(const Plan& plan, const Launch& launch, Pointers& pointers);  // finds the counter itself

// python.cpp
// While it lives, other Python threads may run; for work that may take long, or may wait for one of them.
class WithoutGil {
 public:
    explicit WithoutGil(bool wanted);
    ~WithoutGil();

 private:
    void* state_;
};
// The address of a zeroed counter for a launch on a stream; while a graph is captured it is one that no other launch uses.
void* counter_from_python(int device, void* stream, bool capturing);
void* stream_from_python(int device, int64_t id);
at::Tensor memory_from_python(const std::shared_ptr<void>& memory);  // of one dimension
at::Tensor gather_from_python(const Plan& plan, const at::Tensor& states);
[[noreturn]] void stray_from_python(const Plan& plan, const std::array<at::Tensor, MAX_OPERANDS>& operands, int64_t row);
std::vector<at::Tensor> gradients_from_python(
    const Plan& plan, const std::vector<at::Tensor>& operands, const std::array<double, MAX_NUMBERS>& numbers, int64_t ignore_index,
    const at::Tensor& upstream, const at::Tensor& denominator);

}  // namespace losszoo
