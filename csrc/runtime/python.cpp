// The Python side: `Entry`, which a public function calls with its arguments in a row, and the plans that it knows.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "plan.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <optional>
#include <unordered_map>

// Exported by libtorch_python. Its header would bring pybind11, which takes longer to compile than all the rest.
extern PyObject* THPVariableClass;
extern PyObject* ParameterClass;
[[gnu::weak]] PyObject* THPVariable_Wrap(const at::TensorBase&);
[[gnu::weak]] PyObject* THPVariable_Wrap(at::TensorBase);  // as older versions have it

namespace losszoo {
namespace {

constexpr size_t MOST_PLANS = 1024;  // of a loss; the oldest makes room
constexpr size_t MOST_WORDS = 128;

struct PythonError : std::exception {};  // Python knows which

// A reference to a Python object.
class Object {
 public:
    explicit Object(PyObject* owned) : object_(owned) {
        if (!owned) throw PythonError();
    }
    Object(Object&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
    ~Object() { Py_XDECREF(object_); }
    operator PyObject*() const { return object_; }
    PyObject* release() { return std::exchange(object_, nullptr); }

 private:
    PyObject* object_;
};

class WithGil {
 public:
    WithGil() : state_(PyGILState_Ensure()) {}
    ~WithGil() { PyGILState_Release(state_); }

 private:
    PyGILState_STATE state_;
};

// Where in its Python object a tensor is; versions of torch differ, so it is looked for as the runtime loads.
size_t tensor_offset = 0;

PyObject* wrap(const at::Tensor& tensor) {
    constexpr auto by_reference = static_cast<PyObject* (*)(const at::TensorBase&)>(THPVariable_Wrap);
    constexpr auto by_value = static_cast<PyObject* (*)(at::TensorBase)>(THPVariable_Wrap);
    return by_reference ? by_reference(tensor) : by_value(tensor);
}

const at::Tensor& unwrap(PyObject* object) {
    return *reinterpret_cast<const at::Tensor*>(reinterpret_cast<const char*>(object) + tensor_offset);
}

bool is_tensor(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    return type == reinterpret_cast<PyTypeObject*>(THPVariableClass) || type == reinterpret_cast<PyTypeObject*>(ParameterClass);
}

void find_tensor_offset() {
    const at::Tensor probe = at::empty({0});
    const Object object(wrap(probe));
    for (size_t at = sizeof(PyObject); at < sizeof(PyObject) + 4 * sizeof(void*); at += sizeof(void*)) {
        void* word;
        std::memcpy(&word, reinterpret_cast<const char*>(static_cast<PyObject*>(object)) + at, sizeof word);
        if (word == probe.unsafeGetTensorImpl()) {
            tensor_offset = at;
            return;
        }
    }
    PyErr_SetString(PyExc_ImportError, "this torch keeps its tensors in a way that the runtime does not know");
    throw PythonError();
}

// Reads what Python describes a plan with.
class Description {
 public:
    explicit Description(PyObject* mapping) : mapping_(mapping) {}

    PyObject* operator[](const char* name) const {
        PyObject* value = PyDict_GetItemString(mapping_, name);
        if (!value) {
            PyErr_SetString(PyExc_KeyError, name);
            throw PythonError();
        }
        return value;
    }
    int64_t integer(const char* name) const { return number((*this)[name]); }
    std::vector<int64_t> integers(const char* name) const { return numbers((*this)[name]); }

    static int64_t number(PyObject* value) {
        const int64_t result = PyLong_AsLongLong(value);
        if (result == -1 && PyErr_Occurred()) throw PythonError();
        return result;
    }
    static void* pointer(PyObject* value) {
        void* result = PyLong_AsVoidPtr(value);
        if (!result && PyErr_Occurred()) throw PythonError();
        return result;
    }
    template <class F>
    static void each(PyObject* items, F&& f) {
        const Object sequence(PySequence_Fast(items, "expected a sequence"));
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(static_cast<PyObject*>(sequence)); ++i)
            f(PySequence_Fast_GET_ITEM(static_cast<PyObject*>(sequence), i));
    }
    static std::vector<int64_t> numbers(PyObject* items) {
        std::vector<int64_t> result;
        each(items, [&](PyObject* item) { result.push_back(number(item)); });
        return result;
    }
    static std::string bytes(PyObject* value) {
        char* data;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(value, &data, &size)) throw PythonError();
        return {data, static_cast<size_t>(size)};
    }

 private:
    PyObject* mapping_;
};

// A dtype is given by an empty tensor of it, whose number no version of torch can have changed.
at::ScalarType dtype(PyObject* value) {
    if (value == Py_None) return at::ScalarType::Undefined;
    if (!is_tensor(value)) {
        PyErr_SetString(PyExc_TypeError, "expected a tensor");
        throw PythonError();
    }
    return unwrap(value).scalar_type();
}

Launch read_launch(PyObject* mapping) {
    const Description given(mapping);
    Launch launch;
    launch.args = Description::bytes(given["args"]);
    if (launch.args.size() > MAX_ARGS) throw std::length_error("a kernel's arguments are too many");
    launch.function = Description::pointer(given["function"]);
    launch.finish = reinterpret_cast<RangeFunction>(Description::pointer(given["finish"]));
    launch.context = Description::pointer(given["context"]);
    launch.shared = given.integer("shared");
    launch.follows = given.integer("follows");
    launch.grain = given.integer("grain");
    const auto grid = given.integers("grid"), block = given.integers("block");
    std::copy_n(grid.begin(), 3, launch.grid.begin());
    std::copy_n(block.begin(), 3, launch.block.begin());
    Description::each(given["patches"], [&](PyObject* item) {
        const auto patch = Description::numbers(item);
        launch.patches.push_back({static_cast<size_t>(patch.at(0)), static_cast<Patch::What>(patch.at(1)), static_cast<size_t>(patch.at(2))});
    });
    return launch;
}

// A Python object for any thread; nothing for None.
std::shared_ptr<void> shared(PyObject* object) {
    if (object == Py_None) return nullptr;
    return {Py_NewRef(object), [](void* owned) {
        if (!Py_IsInitialized()) return;  // the last node may go after the interpreter
        const WithGil gil;
        Py_DECREF(static_cast<PyObject*>(owned));
    }};
}

std::shared_ptr<const Plan> read_plan(PyObject* mapping) {
    const Description given(mapping);
    auto plan = std::make_shared<Plan>();
    plan->name = Description::bytes(given["name"]);
    plan->device = unwrap(given["real"]).device();
    plan->real = dtype(given["real"]);
    plan->rows = given.integer("rows");
    plan->partials = given.integer("partials");
    plan->states = given.integer("states");
    plan->numbers = given.integer("numbers");
    plan->reduced = given.integer("reduced");
    plan->labels = given.integer("labels");
    plan->shape = given.integers("shape");
    plan->memory = shared(given["memory"]);
    Description::each(given["operands"], [&](PyObject* item) {
        plan->operands.push_back({dtype(PyTuple_GetItem(item, 0)), Description::number(PyTuple_GetItem(item, 1)) != 0});
    });
    Description::each(given["gradients"], [&](PyObject* item) {
        const at::Tensor& like = unwrap(PyTuple_GetItem(item, 1));
        const auto operand = static_cast<size_t>(Description::number(PyTuple_GetItem(item, 0)));
        plan->gradients.push_back({operand, like.scalar_type(), like.sizes().vec(), like.strides().vec(), shared(PyTuple_GetItem(item, 2))});
    });
    plan->forward = read_launch(given["forward"]);
    if (!plan->gradients.empty()) plan->backward = read_launch(given["backward"]);
    Description::each(given["folds"], [&](PyObject* item) {
        PyObject* merge = PyTuple_GetItem(item, 2);
        plan->folds.push_back({Description::number(PyTuple_GetItem(item, 0)), read_launch(PyTuple_GetItem(item, 1)),
                               merge == Py_None ? std::nullopt : std::optional(read_launch(merge))});
    });
    plan->differentiable = shared(given["differentiable"]);
    plan->gather = shared(given["gather"]);
    plan->stray = shared(given["stray"]);
    return plan;
}

// What decides a plan, as words.
struct Key {
    std::array<int64_t, MOST_WORDS> words;
    size_t size = 0;
    uint64_t hash = 0;

    bool add(int64_t word) {
        if (size == MOST_WORDS) return false;
        words[size++] = word;
        hash = (hash ^ static_cast<uint64_t>(word)) * 0x9E3779B97F4A7C15ull;
        hash ^= hash >> 32;
        return true;
    }

    bool add(const at::Tensor& x) {
        if (!plain(x) || x.layout() != at::kStrided) return false;
        const c10::TensorImpl& impl = *x.unsafeGetTensorImpl();
        if (impl.has_symbolic_sizes_strides() || (x.requires_grad() && x._fw_grad(0).defined())) return false;
        const int64_t aligned = reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16;
        bool fits = add(2 | static_cast<int64_t>(x.scalar_type()) << 8 | aligned << 16 | int64_t(x.requires_grad()) << 24 |
                        int64_t(x.is_cuda()) << 32 | (int64_t(x.device().index()) + 1) << 40 | x.dim() << 48);
        for (int64_t size : x.sizes()) fits = add(size);
        for (int64_t stride : x.strides()) fits = add(stride);
        return fits;
    }
};

struct Known {
    std::vector<int64_t> words;
    std::shared_ptr<const Plan> plan;  // none: Python does such calls
};

struct Entry {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *planner, *fallback, *parameters, *statics, *reductions;
    size_t operands;
    std::unordered_map<uint64_t, Known>* plans;
    std::deque<uint64_t>* ages;

    size_t arguments() const { return operands + PyTuple_GET_SIZE(parameters) + PyTuple_GET_SIZE(statics) + 4; }
};

// A call, read from Python's arguments: the key of its plan, and the rest.
class Reader {
 public:
    Key key;
    Arguments arguments;

    // Whether it is a call that plans are for. What is wrong with one that is not, Python will say.
    bool read(const Entry& entry, PyObject* const* args) {
        if (!usual_state()) return false;
        if (!key.add(int64_t(at::GradMode::is_enabled()) | int64_t(c10::InferenceMode::is_enabled()) << 1)) return false;
        PyObject* const* at = args;
        for (size_t i = 0; i < entry.operands; ++i)
            if (!operand(*at++)) return false;
        size_t given = 0;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(entry.parameters); ++i)
            if (!parameter(PyTuple_GET_ITEM(entry.parameters, i), *at++, given)) return false;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(entry.statics); ++i)
            if (!choice(PyTuple_GET_ITEM(entry.statics, i), *at++)) return false;
        if (*at != Py_None) {
            int overflow;
            if (!PyLong_CheckExact(*at)) return false;
            arguments.ignore_index = PyLong_AsLongLongAndOverflow(*at, &overflow);
            if (overflow) return false;
        }
        return choice(entry.reductions, at[1]) && operand(at[2]) && normalizer(at[3]);
    }

    // Numbers that stand for tensors, on the plan's device.
    void place(const Plan& plan) {
        const auto tensor = [&](double value) { return at::empty({}, at::TensorOptions(plan.device).dtype(plan.real)).fill_(value); };
        for (size_t i = 0; i < operands_; ++i)
            if (!arguments.operands[i].defined()) arguments.operands[i] = tensor(as_numbers_[i]);
        if (normalizer_) arguments.normalizer = tensor(*normalizer_);
        else if (arguments.normalizer.defined() && arguments.normalizer.scalar_type() != plan.real)
            arguments.normalizer = arguments.normalizer.to(plan.real);
    }

 private:
    // No mode, transform or trace is about, nor a guard that hides autograd; inference mode hides it as well, and is fine.
    static bool usual_state() {
        static constexpr auto harmless = c10::default_included_set | c10::autocast_dispatch_keyset;
        const auto state = c10::impl::tls_local_dispatch_key_set();
        const auto hidden = state.excluded_.raw_repr() & ~c10::autocast_dispatch_keyset.raw_repr();
        return !(state.included_.raw_repr() & ~harmless.raw_repr()) && (!hidden || c10::InferenceMode::is_enabled());
    }

    bool operand(PyObject* value) {
        if (value == Py_None) return key.add(0);
        if (operands_ == MAX_OPERANDS) return false;
        if (is_tensor(value)) {
            arguments.operands[operands_] = unwrap(value);
            return key.add(arguments.operands[operands_++]);
        }
        return number(value, as_numbers_[operands_++]) && key.add(1);
    }

    bool normalizer(PyObject* value) {
        if (value == Py_None) return key.add(0);
        if (is_tensor(value)) {
            arguments.normalizer = unwrap(value);
            return key.add(arguments.normalizer);
        }
        double given;
        if (!number(value, given)) return false;
        normalizer_ = given;
        return key.add(1);
    }

    // Some values have kernels of their own; others are among the numbers that kernels are given.
    bool parameter(PyObject* fixed, PyObject* value, size_t& given) {
        double as_number = 0;
        if (value != Py_None && !number(value, as_number)) return false;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(fixed); ++i) {
            PyObject* one = PyTuple_GET_ITEM(fixed, i);
            if (one == value || (one != Py_None && value != Py_None && PyFloat_AS_DOUBLE(one) == as_number)) return key.add(i + 1);
        }
        if (value == Py_None || given == MAX_NUMBERS) return false;
        arguments.numbers[given++] = as_number;
        return key.add(0);
    }

    bool choice(PyObject* choices, PyObject* value) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(choices); ++i) {
            PyObject* one = PyTuple_GET_ITEM(choices, i);
            const bool same_text = PyUnicode_CheckExact(one) && PyUnicode_CheckExact(value) && PyUnicode_Compare(one, value) == 0;
            if (one == value || same_text) return key.add(i);
        }
        return false;
    }

    static bool number(PyObject* value, double& result) {
        if (PyFloat_CheckExact(value)) {
            result = PyFloat_AS_DOUBLE(value);
            return true;
        }
        if (!PyLong_CheckExact(value)) return false;
        result = PyLong_AsDouble(value);
        if (result != -1.0 || !PyErr_Occurred()) return true;
        PyErr_Clear();
        return false;
    }

    size_t operands_ = 0;
    std::array<double, MAX_OPERANDS> as_numbers_;
    std::optional<double> normalizer_;
};

using Shared = std::shared_ptr<const Plan>;

// The plan that Python makes for a call it has checked, or none where it does such calls itself.
Shared make_plan(const Entry& entry, PyObject* const* args, size_t count) {
    const Object made(PyObject_Vectorcall(entry.planner, args, count, nullptr));
    return made == Py_None ? nullptr : read_plan(made);
}

const Known& remember(Entry& entry, const Key& key, Shared plan) {
    if (entry.ages->size() >= MOST_PLANS) {
        entry.plans->erase(entry.ages->front());
        entry.ages->pop_front();
    }
    const auto [place, fresh] = entry.plans->insert_or_assign(
        key.hash, Known{{key.words.begin(), key.words.begin() + key.size}, std::move(plan)});
    if (fresh) entry.ages->push_back(key.hash);
    return place->second;
}

// LOSSZOO_CHECK=1 has Python read the labels on a GPU before the call. It may be set at any time.
bool to_be_checked(const Plan& plan) {
    if (!plan.labels || !plan.cuda()) return false;
    const char* set = std::getenv("LOSSZOO_CHECK");
    return set && std::strcmp(set, "1") == 0;
}

PyObject* call(PyObject* self, PyObject* const* args, size_t flags, PyObject* names) {
    Entry& entry = *reinterpret_cast<Entry*>(self);
    const size_t count = PyVectorcall_NARGS(flags);
    if (names || count != entry.arguments()) {
        PyErr_Format(PyExc_TypeError, "got %zu arguments, expected %zu by position", count, entry.arguments());
        return nullptr;
    }
    Shared plan;
    try {
        Reader reader;
        if (reader.read(entry, args)) {
            const auto found = entry.plans->find(reader.key.hash);
            const bool known = found != entry.plans->end() &&
                std::equal(found->second.words.begin(), found->second.words.end(), reader.key.words.begin(),
                           reader.key.words.begin() + reader.key.size);
            plan = known ? found->second.plan : remember(entry, reader.key, make_plan(entry, args, count)).plan;
            if (plan && !to_be_checked(*plan)) {
                reader.place(*plan);
                const at::Tensor loss = compute(plan, reader.arguments);
                if (loss.defined()) return wrap(loss);
            }
        }
    } catch (const std::exception& error) {
        // An error of Python's is the user's to see; of what else fails, such as memory that is not to be had, Python tells better. But
        // not where other ranks would have to do their part again.
        if (plan && plan->gather && !PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, error.what());
        if (PyErr_Occurred()) return nullptr;
    }
    return PyObject_Vectorcall(entry.fallback, args, count, nullptr);
}

PyObject* make_entry(PyTypeObject* type, PyObject* args, PyObject*) {
    PyObject *planner, *fallback, *parameters, *statics, *reductions;
    Py_ssize_t operands;
    if (!PyArg_ParseTuple(args, "OOnO!O!O!", &planner, &fallback, &operands, &PyTuple_Type, &parameters, &PyTuple_Type, &statics,
                          &PyTuple_Type, &reductions))
        return nullptr;
    auto* entry = reinterpret_cast<Entry*>(type->tp_alloc(type, 0));
    if (!entry) return nullptr;
    entry->call = call;
    entry->planner = Py_NewRef(planner);
    entry->fallback = Py_NewRef(fallback);
    entry->parameters = Py_NewRef(parameters);
    entry->statics = Py_NewRef(statics);
    entry->reductions = Py_NewRef(reductions);
    entry->operands = operands;
    entry->plans = new std::unordered_map<uint64_t, Known>;
    entry->ages = new std::deque<uint64_t>;
    return reinterpret_cast<PyObject*>(entry);
}

int traverse(PyObject* self, visitproc visit, void* arg) {
    auto* entry = reinterpret_cast<Entry*>(self);
    Py_VISIT(entry->planner);
    Py_VISIT(entry->fallback);
    return 0;
}

int clear(PyObject* self) {
    auto* entry = reinterpret_cast<Entry*>(self);
    Py_CLEAR(entry->planner);
    Py_CLEAR(entry->fallback);
    return 0;
}

void destroy(PyObject* self) {
    auto* entry = reinterpret_cast<Entry*>(self);
    PyObject_GC_UnTrack(self);
    clear(self);
    Py_XDECREF(entry->parameters);
    Py_XDECREF(entry->statics);
    Py_XDECREF(entry->reductions);
    delete entry->plans;
    delete entry->ages;
    Py_TYPE(self)->tp_free(self);
}

PyObject* count_plans(PyObject* self, PyObject*) {
    const auto& plans = *reinterpret_cast<Entry*>(self)->plans;
    const auto made = std::count_if(plans.begin(), plans.end(), [](const auto& known) { return known.second.plan != nullptr; });
    return Py_BuildValue("nn", static_cast<Py_ssize_t>(plans.size()), static_cast<Py_ssize_t>(made));
}

PyMethodDef methods[] = {
    {"plans", count_plans, METH_NOARGS, "How many kinds of calls are known, and how many of them have plans."},
    {},
};

PyTypeObject entry_type = {
    .ob_base = PyVarObject_HEAD_INIT(nullptr, 0)
    .tp_name = "losszoo_runtime.Entry",
    .tp_basicsize = sizeof(Entry),
    .tp_dealloc = destroy,
    .tp_vectorcall_offset = offsetof(Entry, call),
    .tp_call = PyVectorcall_Call,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "Entry(planner, fallback, operands, parameters, statics, reductions): calls of one loss.",
    .tp_traverse = traverse,
    .tp_clear = clear,
    .tp_methods = methods,
    .tp_new = make_entry,
};

PyObject *counter_of = nullptr, *handle_of = nullptr;

PyObject* use(PyObject*, PyObject* args) {
    PyObject *counter, *handle;
    if (!PyArg_ParseTuple(args, "OO", &counter, &handle)) return nullptr;
    Py_XDECREF(std::exchange(counter_of, Py_NewRef(counter)));
    Py_XDECREF(std::exchange(handle_of, Py_NewRef(handle)));
    Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"use", use, METH_VARARGS, "What to ask of Python on CUDA: counter(device, stream, capturing), handle(device, stream id); both addresses."},
    {},
};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "losszoo_runtime", "losszoo's native runtime.", -1, functions};

// A Python error as one that torch passes on from its own threads.
[[noreturn]] void throw_python_error() {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    PyObject* text = value ? PyObject_Str(value) : nullptr;
    const char* said = text ? PyUnicode_AsUTF8(text) : nullptr;
    const std::string message = said ? said : "an error in Python";
    const bool refused = type && PyErr_GivenExceptionMatches(type, PyExc_NotImplementedError);
    for (PyObject* object : {type, value, trace, text}) Py_XDECREF(object);
    PyErr_Clear();
    TORCH_CHECK_NOT_IMPLEMENTED(!refused, message);
    TORCH_CHECK(false, message);
}

}  // namespace

WithoutGil::WithoutGil(bool wanted) : state_(wanted ? PyEval_SaveThread() : nullptr) {}
WithoutGil::~WithoutGil() {
    if (state_) PyEval_RestoreThread(static_cast<PyThreadState*>(state_));
}

namespace {

template <class... Given>
void* address_from_python(PyObject* function, const char* format, Given... given) {
    const WithGil gil;
    try {
        return Description::pointer(Object(PyObject_CallFunction(function, format, given...)));
    } catch (const PythonError&) {
        throw_python_error();
    }
}

}  // namespace

void* counter_from_python(int device, void* stream, bool capturing) {
    return address_from_python(counter_of, "iKi", device, reinterpret_cast<unsigned long long>(stream), int(capturing));
}

void* stream_from_python(int device, int64_t id) {
    return address_from_python(handle_of, "iL", device, static_cast<long long>(id));
}

at::Tensor memory_from_python(const std::shared_ptr<void>& memory) {
    const WithGil gil;
    try {
        const Object found(PyObject_CallNoArgs(static_cast<PyObject*>(memory.get())));
        return unwrap(found);
    } catch (const PythonError&) {
        throw_python_error();
    }
}

at::Tensor gather_from_python(const Plan& plan, const at::Tensor& states) {
    const Object given(wrap(states)), found(PyObject_CallOneArg(static_cast<PyObject*>(plan.gather.get()), given));
    return unwrap(found);
}

void stray_from_python(const Plan& plan, const std::array<at::Tensor, MAX_OPERANDS>& operands, int64_t row) {
    const Object tensors(PyTuple_New(plan.operands.size()));
    for (size_t i = 0; i < plan.operands.size(); ++i) PyTuple_SET_ITEM(static_cast<PyObject*>(tensors), i, Object(wrap(operands[i])).release());
    const Object none(PyObject_CallFunction(static_cast<PyObject*>(plan.stray.get()), "OL", static_cast<PyObject*>(tensors), static_cast<long long>(row)));
    throw PythonError();
}

std::vector<at::Tensor> gradients_from_python(
    const Plan& plan, const std::vector<at::Tensor>& operands, const std::array<double, MAX_NUMBERS>& numbers, int64_t ignore_index,
    const at::Tensor& upstream, const at::Tensor& denominator) {
    const WithGil gil;
    try {
        const auto optional = [](const at::Tensor& x) { return Object(x.defined() ? wrap(x) : Py_NewRef(Py_None)); };
        const Object tensors(PyTuple_New(operands.size())), floats(PyTuple_New(plan.numbers));
        for (size_t i = 0; i < operands.size(); ++i) PyTuple_SET_ITEM(static_cast<PyObject*>(tensors), i, optional(operands[i]).release());
        for (size_t i = 0; i < plan.numbers; ++i)
            PyTuple_SET_ITEM(static_cast<PyObject*>(floats), i, Object(PyFloat_FromDouble(numbers[i])).release());
        const Object grad = optional(upstream), divisor = optional(denominator);
        const Object found(PyObject_CallFunction(
            static_cast<PyObject*>(plan.differentiable.get()), "OOLOO", static_cast<PyObject*>(tensors), static_cast<PyObject*>(floats),
            static_cast<long long>(ignore_index), static_cast<PyObject*>(grad), static_cast<PyObject*>(divisor)));
        std::vector<at::Tensor> gradients;
        Description::each(found, [&](PyObject* item) { gradients.push_back(unwrap(item)); });
        return gradients;
    } catch (const PythonError&) {
        throw_python_error();
    }
}

}  // namespace losszoo

PyMODINIT_FUNC PyInit_losszoo_runtime() {
    using namespace losszoo;
    try {
        find_tensor_offset();
        if (PyType_Ready(&entry_type)) throw PythonError();
        Object result(PyModule_Create(&module));
        if (PyModule_AddObjectRef(result, "Entry", reinterpret_cast<PyObject*>(&entry_type))) throw PythonError();
        return result.release();
    } catch (const PythonError&) {
        return nullptr;
    }
}
