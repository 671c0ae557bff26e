// The forward of a plan, and the autograd node that every loss shares.
#include "plan.h"

#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/strides.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

namespace losszoo {
namespace {

using torch::autograd::Edge;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

constexpr c10::DispatchKeySet CUDA(c10::DispatchKey::CUDA);

c10::Allocator* cuda_allocator() { return at::detail::getCUDAHooks().getCUDADeviceAllocator(); }

// Without the dispatcher, which would take longer than the allocation.
at::Tensor empty(const Plan& plan, at::IntArrayRef sizes, at::ScalarType dtype) {
    if (!plan.cuda()) return at::Tensor(at::detail::empty_cpu(sizes, dtype));
    return at::Tensor(at::detail::empty_generic(sizes, cuda_allocator(), CUDA, dtype, std::nullopt));
}

// Not a view of it, which would follow a view's rules in autograd.
at::Tensor laid_out(at::Tensor memory, at::IntArrayRef sizes, at::IntArrayRef strides) {
    memory.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
    return memory;
}

at::Tensor empty(const Plan& plan, const Gradient& gradient) {
    if (gradient.memory) return laid_out(memory_from_python(gradient.memory), gradient.sizes, gradient.strides);
    if (!plan.cuda()) return at::Tensor(at::detail::empty_strided_cpu(gradient.sizes, gradient.strides, gradient.dtype));
    return at::Tensor(at::detail::empty_strided_generic(gradient.sizes, gradient.strides, cuda_allocator(), CUDA, gradient.dtype));
}

at::Tensor as_read(const Operand& operand, const at::Tensor& tensor) {
    if (operand.dtype == at::ScalarType::Undefined) return tensor;
    return tensor.to(operand.dtype).contiguous();
}

// The step from one item's upstream gradient to the next; none where only a copy has one.
std::optional<int64_t> joint_step(const at::Tensor& x) {
    int64_t step = 0, span = 0;
    for (int64_t i = x.dim() - 1; i >= 0; --i) {
        if (x.size(i) == 1) continue;
        if (span == 0 && step == 0) {
            step = x.stride(i);
            span = step * x.size(i);
        } else if (x.stride(i) == span) {
            span *= x.size(i);
        } else {
            return std::nullopt;
        }
    }
    return step;
}

// Memory for what the ranges of a CPU kernel hand over: sums of losses and counts, and the first stray label.
struct Ranges {
    explicit Ranges(int64_t count) : many(count > FEW ? 3 * count : 0), partial(count > FEW ? many.data() : few) {
        status = reinterpret_cast<int64_t*>(partial + 2 * count);
        std::fill_n(status, count, -1);
    }
    static constexpr int64_t FEW = 16;
    double few[3 * FEW];
    std::vector<double> many;
    double* partial;
    int64_t* status;
};

void run(const Plan& plan, const Launch& launch, Pointers& pointers) {
    plan.cuda() ? launch_cuda(plan, launch, pointers) : launch_cpu(plan.rows, launch, pointers);
}

// What the forward has to know of the classes of all ranks. Returns the memory that the pointers lead into.
std::array<at::Tensor, 2> fold(const Plan& plan, Pointers& p) {
    int64_t before = 0;
    for (const Fold& pass : plan.folds) before += pass.merge ? pass.numbers : 0;
    std::array<at::Tensor, 2> kept{empty(plan, {before, plan.rows}, plan.real), at::Tensor()};
    p.merged = kept[0].mutable_data_ptr();
    for (const Fold& pass : plan.folds) {
        const at::Tensor states = empty(plan, {pass.numbers, plan.rows}, plan.real);
        p.folded = states.mutable_data_ptr();
        {
            const WithoutGil others(plan.cuda() || plan.rows > pass.fold.grain);
            run(plan, pass.fold, p);
        }
        kept[1] = gather_from_python(plan, states);
        p.gathered = kept[1].const_data_ptr();
        if (pass.merge) run(plan, *pass.merge, p);
    }
    return kept;
}

struct LossNode : torch::autograd::Node {
    std::shared_ptr<const Plan> plan;
    SavedVariable kept;
    std::vector<SavedVariable> operands;
    std::array<double, MAX_NUMBERS> numbers;
    int64_t ignore_index = 0;
    std::mutex mutex;

    std::string name() const override { return plan->name; }

    void release_variables() override {
        std::lock_guard<std::mutex> lock(mutex);
        kept.reset_data();
        for (SavedVariable& operand : operands) operand.reset_data();
    }

    variable_list apply(variable_list&& grads) override {
        std::lock_guard<std::mutex> lock(mutex);
        const at::Tensor& upstream = grads[0];
        if (!upstream.defined()) return variable_list(plan->gradients.size());
        const at::Tensor state = kept.unpack();
        std::vector<at::Tensor> unpacked;
        unpacked.reserve(operands.size());
        for (const SavedVariable& operand : operands) unpacked.push_back(operand.unpack());
        if (at::GradMode::is_enabled() || !plain(upstream)) {
            const at::Tensor denominator = plan->reduced ? state.select(0, plan->kept() - 1) : at::Tensor();
            return gradients_from_python(*plan, unpacked, numbers, ignore_index, upstream, denominator);
        }
        return launch(upstream, state, unpacked);
    }

 private:
    variable_list launch(at::Tensor upstream, const at::Tensor& state, const std::vector<at::Tensor>& saved) {
        const c10::OptionalDeviceGuard guard(plan->cuda() ? std::optional(plan->device) : std::nullopt);
        Pointers p;
        p.numbers = numbers.data();
        p.ignore_index = ignore_index;
        std::vector<at::Tensor> alive;
        for (size_t i = 0; i < saved.size(); ++i) {
            alive.push_back(as_read(plan->operands[i], saved[i]));
            p.operands[i] = alive.back().const_data_ptr();
        }
        if (upstream.dim() > 0) {
            auto step = joint_step(upstream);
            if (!step) {
                upstream = upstream.contiguous();
                step = 1;
            }
            p.upstream_step = *step;
        }
        p.upstream = upstream.const_data_ptr();
        if (state.defined()) {
            const char* begin = static_cast<const char*>(state.const_data_ptr());
            p.state = begin;
            p.denominator = begin + plan->states * plan->rows * c10::elementSize(plan->real);
        }
        variable_list gradients;
        gradients.reserve(plan->gradients.size());
        for (size_t i = 0; i < plan->gradients.size(); ++i) {
            gradients.push_back(empty(*plan, plan->gradients[i]));
            p.gradients[i] = gradients[i].mutable_data_ptr();
        }
        run(*plan, plan->backward, p);
        return gradients;
    }
};

// Older versions of torch hold nodes by a std::shared_ptr.
template <class N>
c10::intrusive_ptr<N> make(c10::intrusive_ptr<torch::autograd::Node>*) {
    return c10::make_intrusive<N>();
}
template <class N>
std::shared_ptr<N> make(std::shared_ptr<torch::autograd::Node>*) {
    return std::shared_ptr<N>(new N(), [](N* node) { deleteNode(node); });
}

}  // namespace

at::Tensor compute(const std::shared_ptr<const Plan>& shared, Arguments& arguments) {
    const Plan& plan = *shared;
    const c10::OptionalDeviceGuard guard(plan.cuda() ? std::optional(plan.device) : std::nullopt);
    const bool keep = !plan.gradients.empty();
    const size_t real = c10::elementSize(plan.real);
    Pointers p;
    p.numbers = arguments.numbers.data();
    p.ignore_index = arguments.ignore_index;
    std::array<at::Tensor, MAX_OPERANDS> read;
    for (size_t i = 0; i < plan.operands.size(); ++i) {
        read[i] = as_read(plan.operands[i], arguments.operands[i]);
        p.operands[i] = read[i].const_data_ptr();
    }
    if (arguments.normalizer.defined()) p.normalizer = arguments.normalizer.const_data_ptr();

    std::array<at::Tensor, 2> folded;
    if (!plan.folds.empty()) folded = fold(plan, p);
    std::optional<WithoutGil> others(std::in_place, plan.cuda() || plan.rows > plan.forward.grain);
    at::Tensor kept, loss = plan.memory ? laid_out(memory_from_python(plan.memory), plan.shape, c10::contiguous_strides(plan.shape))
                                        : empty(plan, plan.shape, plan.real);
    p.loss = loss.mutable_data_ptr();
    double denominator = 0;
    const int64_t size = keep ? plan.kept() : plan.reduced && plan.cuda();
    if (size > 0) {
        // Blocks that join their sums leave them behind what is kept: one allocation.
        const bool joins = plan.cuda() && plan.reduced && plan.partials > 2;
        const int64_t aligned = (size * real + sizeof(double) - 1) / sizeof(double) * sizeof(double);
        kept = empty(plan, {joins ? (aligned + plan.partials * int64_t(sizeof(double))) / int64_t(real) : size}, plan.real);
        char* begin = static_cast<char*>(kept.mutable_data_ptr());
        if (keep && plan.states) p.state = begin;
        p.denominator = begin + (size - 1) * real;
        if (joins) p.partial = begin + aligned;
    } else {
        p.denominator = &denominator;
    }
    if (plan.cuda()) {
        launch_cuda(plan, plan.forward, p);
    } else {
        Ranges ranges(plan.partials / 2);
        p.partial = ranges.partial;
        p.status = ranges.status;
        launch_cpu(plan.rows, plan.forward, p);
        others.reset();
        if (plan.labels && ranges.status[0] >= 0) {
            if (plan.stray) stray_from_python(plan, arguments.operands, ranges.status[0]);
            return {};
        }
    }
    others.reset();
    if (!keep) return loss;

    auto node = make<LossNode>(static_cast<decltype(Edge::function)*>(nullptr));
    node->plan = shared;
    node->ignore_index = arguments.ignore_index;
    node->numbers = arguments.numbers;
    for (const Gradient& gradient : plan.gradients)
        node->add_next_edge(torch::autograd::impl::gradient_edge(arguments.operands[gradient.operand]));
    if (kept.defined()) node->kept = SavedVariable(kept, false);
    node->operands.reserve(plan.operands.size());
    for (size_t i = 0; i < plan.operands.size(); ++i)
        node->operands.emplace_back(plan.operands[i].saved_as_read ? read[i] : arguments.operands[i], false);
    torch::autograd::set_history(loss, node);
    return loss;
}

}  // namespace losszoo
