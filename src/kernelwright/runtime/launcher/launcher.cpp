// Launches kernels that were prepared once: reads the tensors, finds what was registered for exactly such tensors, fills in their
// addresses and enqueues on PyTorch's current stream. No allocation, no synchronisation, no Python in between.
//
// Tensors and the stream come through the DLPack C exchange API of torch.Tensor. What PyTorch's dispatcher would do beside a
// product is a word of each tensor and two of each thread, which c10 declares: the binary is for one PyTorch, and with the limited
// API for every Python.
//
// Locks: none is waited for while the GIL is held, and the GIL is not waited for while one is held. The driver may block when a
// stream has too many launches pending, possibly on a host callback that needs the GIL.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <ATen/dlpack.h>
#include <c10/core/AutogradState.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "driver_abi.h"

// Of libtorch's C interface (torch/csrc/inductor/aoti_torch/c/shim.h) and of libtorch_python, whose headers take 17 s to compile.
// An empty tensor made so takes a fifth of the time of Tensor.new_empty from Python.
namespace at {
class Tensor;
class TensorBase;
}  // namespace at
extern "C" {
int32_t aoti_torch_empty_strided(int64_t rank, const int64_t *sizes, const int64_t *strides, int32_t dtype, int32_t device_type,
                                 int32_t device_index, at::Tensor **made);
int32_t aoti_torch_get_data_ptr(at::Tensor *tensor, void **address);
int32_t aoti_torch_delete_tensor_object(at::Tensor *tensor);
int32_t aoti_torch_dtype_float16();
int32_t aoti_torch_dtype_bfloat16();
int32_t aoti_torch_device_type_cpu();
int32_t aoti_torch_device_type_cuda();
}
PyObject *THPVariable_Wrap(const at::TensorBase &tensor);

namespace {

constexpr int MAX_TENSORS = 8, MAX_RANK = 4, MAX_PARAMS = 48, MAX_PARAM_BYTES = 4096;
constexpr int KEY_WORDS = 1 + MAX_TENSORS * (1 + 2 * MAX_RANK);
constexpr size_t MAX_ENTRIES = 65536;  // about 100 MB of launches; then all are forgotten and registered anew as they are met

// -- what a call is known by

/// Operation, then for each tensor its type, device, rank and alignment, its sizes and strides.
struct Key {
    int64_t words[KEY_WORDS];
    int count = 0;

    void add(int64_t word) { words[count++] = word; }
    bool operator==(const Key &other) const {
        return count == other.count && std::memcmp(words, other.words, count * sizeof *words) == 0;
    }
};

struct Hash {
    size_t operator()(const Key &key) const {
        uint64_t hash = key.count;
        for (int i = 0; i < key.count; ++i) {
            hash = (hash ^ static_cast<uint64_t>(key.words[i])) * 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio, Knuth's multiplier
            hash ^= hash >> 32;
        }
        return hash;
    }
};

struct Call {
    Key key;
    void *data[MAX_TENSORS];
    int tensors = 0;
    DLDevice device{};
    cuda::Stream stream = nullptr;
};

// -- what is registered

// The records up to Entry arrive as bytes that __init__.py packs: keep PATCH and HEAD there in step.
struct TensorMapSpec {
    uint64_t id;  // given here
    uint64_t dims[5], strides[5];
    uint32_t box[5];
    int dtype, rank, swizzle, l2_promotion;
};

/// A parameter that is not the same in every launch.
struct Patch {
    enum Kind : uint32_t { TENSOR, WORKSPACE, TENSOR_MAP } kind;
    uint32_t at;      // byte in the parameters
    uint64_t number;  // of the tensor; WORKSPACE: bytes from its start
    TensorMapSpec map;
};

struct Head {
    cuda::Function function;
    cuda::LaunchConfig config;
    cuda::LaunchAttribute attributes[2];
    uint32_t patches, params, param_bytes;
};
static_assert(sizeof(Patch) == 144 && sizeof(Head) == 224);

struct Launch : Head {
    std::vector<Patch> patches;
    std::vector<uint32_t> offsets;  // of each parameter in `params`
    std::vector<unsigned char> params;
};

struct Entry {
    bool library = false;  // known, and not ours to launch
    cuda::Context context = nullptr;
    size_t workspace = 0;
    bool zeroed = false;
    std::vector<Launch> launches;
};

/// One for each stream outside and one inside a capture: launches of a stream follow each other, so they can share it. A graph
/// must have its own, because it may be replayed beside whatever then runs on the stream that it was captured on.
struct Workspace {
    uint64_t capture = 0;
    unsigned char *address = nullptr;
    std::atomic<size_t> size{0};
    std::mutex turn;  // the launches of one plan must not be interleaved with others that use the same workspace
};
using WorkspaceKey = std::tuple<int, cuda::Stream, bool, bool>;  // device, stream, zeroed, capturing
constexpr uint64_t UNKNOWN_CAPTURE = ~0ull;

struct Failure {
    const char *what = nullptr;
    cuda::Result result = 0;
};

cuda::Driver driver;

/// Encoded tensor maps by description and address. Sets of 8 ways, in each the least recently used one is replaced: bounded, and
/// nothing is allocated after the start.
class TensorMaps {
  public:
    void resize(size_t count) {
        ways_.assign((count + WAYS - 1) / WAYS * WAYS, Way{});
        tick_ = 0;
    }

    cuda::Result get(const TensorMapSpec &spec, void *address, unsigned char *out) {
        const std::lock_guard<std::mutex> guard(lock_);
        const uint64_t hash = (spec.id * 0x9E3779B97F4A7C15u ^ reinterpret_cast<uintptr_t>(address)) * 0xD6E8FEB86659FD93u;
        Way *const set = &ways_[(hash >> 32) % (ways_.size() / WAYS) * WAYS], *oldest = set;
        ++tick_;
        for (Way *way = set; way != set + WAYS; ++way) {
            if (way->spec == spec.id && way->address == address) {
                way->used = tick_;
                std::memcpy(out, &way->map, sizeof way->map);
                return 0;
            }
            if (way->used < oldest->used) oldest = way;
        }
        static constexpr uint32_t ones[5] = {1, 1, 1, 1, 1};
        oldest->spec = 0;
        const cuda::Result result =
            driver.cuTensorMapEncodeTiled(&oldest->map, spec.dtype, spec.rank, address, spec.dims, spec.strides, spec.box, ones,
                                          0, spec.swizzle, spec.l2_promotion, 0);
        if (result != 0) return result;
        oldest->spec = spec.id, oldest->address = address, oldest->used = tick_;
        std::memcpy(out, &oldest->map, sizeof oldest->map);
        return 0;
    }

  private:
    static constexpr int WAYS = 8;
    struct Way {
        uint64_t spec = 0;  // 0: empty
        void *address = nullptr;
        uint64_t used = 0;
        cuda::TensorMap map;
    };
    std::vector<Way> ways_;
    uint64_t tick_ = 0;
    std::mutex lock_;
};

const DLPackExchangeAPI *exchange = nullptr;
PyObject *tensor_type = nullptr, *parameter_type = nullptr, *launch_error = nullptr;
uint64_t last_map = 0;

std::shared_mutex lock;  // guards what follows; held through a launch, so that `release` returns when none is under way
std::unordered_map<Key, Entry, Hash> entries;
std::map<WorkspaceKey, Workspace> workspaces;
TensorMaps maps;

// -- the fast path

/// The description of a plain tensor; false where it is none or DLPack cannot describe it. Subclasses have a behaviour of their
/// own, and a FakeTensor would even show an address; so would a tensor of zeros that are nowhere, but that its address is null.
bool describe(PyObject *object, DLTensor &t) {
    PyObject *type = reinterpret_cast<PyObject *>(Py_TYPE(object));
    if (type != tensor_type && type != parameter_type) return false;
    if (exchange->dltensor_from_py_object_no_sync(object, &t) != 0) {
        PyErr_Clear();  // no storage, a sparse layout, a device that DLPack does not know
        return false;
    }
    if (t.ndim > MAX_RANK || t.strides == nullptr) return false;
    bool empty = false;
    for (int axis = 0; axis < t.ndim; ++axis) empty |= t.shape[axis] == 0;
    return empty || t.data != nullptr;
}

/// Adds a tensor to what the call is known by; false for one on another device than the first.
bool add(Call &call, const DLTensor &t) {
    if (call.tensors == 0) call.device = t.device;
    if (t.device.device_type != call.device.device_type || t.device.device_id != call.device.device_id) return false;
    unsigned char *data = static_cast<unsigned char *>(t.data) + t.byte_offset;
    const uintptr_t address = reinterpret_cast<uintptr_t>(data) | 16, alignment = address & -address;  // at most 16
    call.data[call.tensors++] = data;
    call.key.add(static_cast<int64_t>(t.dtype.code) << 56 | static_cast<int64_t>(t.dtype.bits) << 48 |
                 static_cast<int64_t>(t.dtype.lanes) << 32 | t.device.device_type << 24 | t.device.device_id << 16 | t.ndim << 8 |
                 static_cast<int64_t>(alignment));
    for (int axis = 0; axis < t.ndim; ++axis) call.key.add(t.shape[axis]), call.key.add(t.strides[axis]);
    return true;
}

bool current_stream(Call &call) {
    if (exchange->current_work_stream(call.device.device_type, call.device.device_id, &call.stream) == 0) return true;
    PyErr_Clear();  // a device without streams that PyTorch could name
    return false;
}

/// An operation and tensors as they are. False where these are not plain tensors of one device (or with a Python error).
bool read(PyObject *const *args, Py_ssize_t count, Call &call) {
    if (exchange == nullptr || count < 2 || count > 1 + MAX_TENSORS) {
        PyErr_Format(PyExc_TypeError, "open() first; then an operation and 1 to %d tensors, not %zd", MAX_TENSORS, count - 1);
        return false;
    }
    call.key.add(PyLong_AsLongLong(args[0]));
    if (PyErr_Occurred()) return false;
    for (Py_ssize_t i = 1; i < count; ++i) {
        DLTensor t;
        if (!describe(args[i], t) || !add(call, t)) return false;
    }
    return current_stream(call);
}

/// The workspace that this call can use, or null. `capture`: id of the capture that the stream is in, else 0.
Workspace *workspace_of(const Entry &entry, const Call &call, uint64_t &capture) {
    int status = 0;
    const int failed = driver.cuStreamGetCaptureInfo(call.stream, &status, &capture, nullptr, nullptr, nullptr);
    if (failed != 0) capture = UNKNOWN_CAPTURE;  // another stream's capture forbids to use this one now; PyTorch will say so
    if (failed != 0) return nullptr;
    if (status == 0) capture = 0;
    const auto found = workspaces.find({call.device.device_id, call.stream, entry.zeroed, capture != 0});
    if (found == workspaces.end() || found->second.capture != capture || found->second.size < entry.workspace) return nullptr;
    return &found->second;
}

Failure enqueue(const Launch &launch, const Call &call, const Workspace *workspace) {
    alignas(128) unsigned char params[MAX_PARAM_BYTES];
    void *addresses[MAX_PARAMS];
    std::memcpy(params, launch.params.data(), launch.params.size());
    for (const Patch &patch : launch.patches) {
        if (patch.kind == Patch::TENSOR_MAP) {
            const cuda::Result result = maps.get(patch.map, call.data[patch.number], params + patch.at);
            if (result != 0) return {"encoding a tensor map", result};
            continue;
        }
        const void *address = patch.kind == Patch::TENSOR ? call.data[patch.number] : workspace->address + patch.number;
        std::memcpy(params + patch.at, &address, sizeof address);
    }
    for (size_t i = 0; i < launch.offsets.size(); ++i) addresses[i] = params + launch.offsets[i];
    cuda::LaunchConfig config = launch.config;
    config.stream = call.stream;
    config.attributes = const_cast<cuda::LaunchAttribute *>(launch.attributes);
    return {"launching", driver.cuLaunchKernelEx(&config, launch.function, addresses, nullptr)};
}

enum class Served { UNKNOWN, LIBRARY, LAUNCHED, FAILED };

Served serve(const Call &call, Failure &failure) {
    const std::shared_lock<std::shared_mutex> guard(lock);
    const auto found = entries.find(call.key);
    if (found == entries.end()) return Served::UNKNOWN;
    const Entry &entry = found->second;
    if (entry.library) return Served::LIBRARY;
    Workspace *workspace = nullptr;
    std::unique_lock<std::mutex> turn;
    cuda::Context current = nullptr;
    if ((failure = {"asking for the context", driver.cuCtxGetCurrent(&current)}).result != 0) return Served::FAILED;
    const bool elsewhere = current != entry.context;
    if (elsewhere) failure = {"switching the device", driver.cuCtxPushCurrent(entry.context)};
    if (failure.result != 0) return Served::FAILED;
    Served served = Served::LAUNCHED;
    if (entry.workspace != 0) {
        uint64_t capture;
        workspace = workspace_of(entry, call, capture);
        if (workspace != nullptr) turn = std::unique_lock<std::mutex>(workspace->turn);
        // looked at again: a launch that failed meanwhile gave it up
        if (workspace == nullptr || workspace->size < entry.workspace) served = Served::UNKNOWN;
    }
    for (auto launch = entry.launches.begin(); served == Served::LAUNCHED && launch != entry.launches.end(); ++launch) {
        failure = enqueue(*launch, call, workspace);
        if (failure.result != 0) served = Served::FAILED;
    }
    if (served == Served::FAILED && workspace != nullptr) workspace->size = 0;  // half a plan may have left it other than zero
    if (elsewhere) driver.cuCtxPopCurrent(&current);
    return served;
}

Served served_without_gil(const Call &call, Failure &failure) {
    PyThreadState *thread = PyEval_SaveThread();
    const Served served = serve(call, failure);
    PyEval_RestoreThread(thread);
    return served;
}

PyObject *launch(PyObject *, PyObject *const *args, Py_ssize_t count) {
    Call call;
    if (!read(args, count, call)) return PyErr_Occurred() ? nullptr : Py_NewRef(Py_None);
    Failure failure;
    const Served served = served_without_gil(call, failure);
    if (served == Served::UNKNOWN) return Py_NewRef(Py_None);
    if (served != Served::FAILED) return Py_NewRef(served == Served::LAUNCHED ? Py_True : Py_False);
    const char *name = nullptr, *text = nullptr;
    driver.cuGetErrorName(failure.result, &name);
    driver.cuGetErrorString(failure.result, &text);
    return PyErr_Format(launch_error, "%s: %s (%s)", failure.what, text ? text : "unknown", name ? name : "CUDA error");
}

// -- products, from what a user of PyTorch calls

Py_ssize_t payload = 0;  // bytes from the start of a Python tensor to the pointer to its TensorImpl
PyObject *forward_ad = nullptr, *current_level = nullptr;  // names of torch.autograd.forward_ad, and one of them

/// Whether PyTorch's dispatcher has nothing to do on this thread but the product itself. Autocast, torch.func, tracing, dispatch
/// modes and functionalization are keys that it includes for a thread; autocast's are excluded until it is switched on.
bool plain_thread() {
    const c10::impl::LocalDispatchKeySet local = c10::impl::tls_local_dispatch_key_set();
    const uint64_t usual = c10::default_included_set.raw_repr(), autocast = c10::autocast_dispatch_keyset.raw_repr();
    if ((local.included_.raw_repr() & ~usual) != 0 || (local.excluded_.raw_repr() & autocast) != autocast) return false;
    PyObject *level = PyDict_GetItemWithError(forward_ad, current_level);  // -1 where there are no dual numbers
    return level != nullptr && PyLong_AsLong(level) == -1 && !PyErr_Occurred();
}

c10::TensorImpl *impl_of(PyObject *tensor) {
    return *reinterpret_cast<c10::TensorImpl **>(reinterpret_cast<char *>(tensor) + payload);
}

/// Whether a tensor's values are those in memory (no negatives or conjugates of them, no wrapper around another tensor), and
/// nobody wants its gradient.
bool plain(PyObject *tensor, bool gradients) {
    using Key = c10::DispatchKey;
    constexpr c10::DispatchKeySet usual({Key::CPU, Key::CUDA, Key::AutogradCPU, Key::AutogradCUDA, Key::ADInplaceOrView,
                                         Key::AutocastCPU, Key::AutocastCUDA});
    const c10::TensorImpl *impl = impl_of(tensor);
    return (impl->key_set().raw_repr() & ~usual.raw_repr()) == 0 && !(gradients && impl->requires_grad());
}

/// x (..., K) as a matrix over the same memory, as Tensor.view makes it; false where it is not one. `axes`: room for its shape
/// and strides.
bool as_rows(DLTensor &x, int64_t (&axes)[4]) {
    if (x.ndim <= 2) return x.ndim == 2;
    const int last = x.ndim - 1;
    int64_t rows = 1, stride = x.shape[last] * x.strides[last];
    for (int axis = last - 1; axis >= 0; --axis) {
        if (x.shape[axis] == 1) continue;
        if (rows == 1) stride = x.strides[axis];
        else if (x.strides[axis] != stride * rows) return false;
        rows *= x.shape[axis];
    }
    axes[0] = rows, axes[1] = x.shape[last], axes[2] = stride, axes[3] = x.strides[last];
    x.ndim = 2, x.shape = axes, x.strides = axes + 2;
    return true;
}

/// Whether two tensors of one device may share memory: the ranges of their addresses meet.
bool meet(const DLTensor &x, const DLTensor &y) {
    const auto range = [](const DLTensor &t) {
        const uintptr_t from = reinterpret_cast<uintptr_t>(t.data) + t.byte_offset;
        int64_t last = 0;
        for (int axis = 0; axis < t.ndim; ++axis) {
            if (t.shape[axis] == 0) return std::pair(from, from);
            last += (t.shape[axis] - 1) * t.strides[axis];  // PyTorch has no negative strides
        }
        return std::pair(from, from + (last + 1) * (t.dtype.bits / 8));
    };
    const auto [x_from, x_to] = range(x);
    const auto [y_from, y_to] = range(y);
    return x_from < y_to && y_from < x_to;
}

/// What is registered for a call, without waiting for the lock: the GIL is held.
Served registered(const Call &call) {
    const std::shared_lock<std::shared_mutex> guard(lock, std::try_to_lock);
    if (!guard.owns_lock()) return Served::UNKNOWN;
    const auto found = entries.find(call.key);
    return found == entries.end() ? Served::UNKNOWN : found->second.library ? Served::LIBRARY : Served::LAUNCHED;
}

/// fp16 or bf16.
bool half(const DLTensor &t) {
    return t.dtype.bits == 16 && t.dtype.lanes == 1 && (t.dtype.code == kDLFloat || t.dtype.code == kDLBfloat);
}

/// An uninitialized contiguous tensor of fp16 or bf16, and its address; null, without a Python error, where there is no memory
/// or it is of another device.
PyObject *empty(const DLTensor &like, int rank, const int64_t *shape, void **address) {
    const bool cuda = like.device.device_type == kDLCUDA;
    if (!cuda && like.device.device_type != kDLCPU) return nullptr;
    int64_t strides[MAX_RANK], stride = 1;
    for (int axis = rank - 1; axis >= 0; --axis) strides[axis] = stride, stride *= shape[axis] > 1 ? shape[axis] : 1;
    at::Tensor *made = nullptr;
    const int32_t dtype = like.dtype.code == kDLFloat ? aoti_torch_dtype_float16() : aoti_torch_dtype_bfloat16();
    if (aoti_torch_empty_strided(rank, shape, strides, dtype,
                                 cuda ? aoti_torch_device_type_cuda() : aoti_torch_device_type_cpu(),
                                 cuda ? like.device.device_id : 0, &made) != 0)
        return nullptr;
    PyObject *result = nullptr;
    if (aoti_torch_get_data_ptr(made, address) == 0) result = THPVariable_Wrap(*reinterpret_cast<at::TensorBase *>(made));
    aoti_torch_delete_tensor_object(made);
    return result;
}

/// product(operation, a, b, bias, out, transposed): the product a (..., K) times b (K, N), with `transposed` b (N, K), into `out`
/// or, for None, a new tensor, which is returned. False: the library's, for certain. None: unknown, or PyTorch has to look at it.
PyObject *product(PyObject *, PyObject *const *args, Py_ssize_t count) {
    if (exchange == nullptr || count != 6)
        return PyErr_Format(PyExc_TypeError, "open() first; then six arguments, not %zd", count);
    PyObject *const bias = args[3] == Py_None ? nullptr : args[3], *const out = args[4] == Py_None ? nullptr : args[4];
    DLTensor a, b, c, v;
    if (!describe(args[1], a) || !describe(args[2], b) || (bias && !describe(bias, v)) || (out && !describe(out, c)))
        return Py_NewRef(Py_None);
    if (!half(a)) return Py_NewRef(Py_False);  // whatever else there is to look at: ours multiply nothing else
    if (!plain_thread()) return PyErr_Occurred() ? nullptr : Py_NewRef(Py_None);
    const bool gradients = c10::AutogradState::get_tls_state().get_grad_mode();
    for (PyObject *const tensor : {args[1], args[2], bias, out})
        if (tensor != nullptr && !plain(tensor, gradients)) return PyErr_Occurred() ? nullptr : Py_NewRef(Py_None);
    const int rank = a.ndim;
    int64_t rows[4], columns[4], shape[MAX_RANK], matrix[4];
    for (int axis = 0; axis < rank; ++axis) shape[axis] = a.shape[axis];
    if (b.ndim != 2 || !as_rows(a, rows)) return Py_NewRef(Py_None);
    if (args[5] == Py_True) {
        columns[0] = b.shape[1], columns[1] = b.shape[0], columns[2] = b.strides[1], columns[3] = b.strides[0];
        b.shape = columns, b.strides = columns + 2;
    }
    if (out == nullptr) {
        c = a, c.data = nullptr, c.byte_offset = 0;
        matrix[0] = a.shape[0], matrix[1] = b.shape[1], matrix[2] = b.shape[1] > 1 ? b.shape[1] : 1, matrix[3] = 1;
        c.shape = matrix, c.strides = matrix + 2;
        shape[rank - 1] = b.shape[1];
    } else if (meet(c, a) || meet(c, b) || (bias && meet(c, v))) {
        return Py_NewRef(Py_None);
    }
    Call call;
    call.key.add(PyLong_AsLongLong(args[0]));
    if (PyErr_Occurred()) return nullptr;
    if (!add(call, a) || !add(call, b) || (bias && !add(call, v)) || !add(call, c)) return Py_NewRef(Py_None);
    Served served = registered(call);
    if (served == Served::LIBRARY) return Py_NewRef(Py_False);
    if (served == Served::UNKNOWN || !current_stream(call)) return Py_NewRef(Py_None);
    void *address = nullptr;
    PyObject *result = out ? Py_NewRef(out) : empty(a, rank, shape, &address);
    if (result == nullptr) return PyErr_Occurred() ? nullptr : Py_NewRef(Py_None);
    if (out == nullptr) call.data[call.tensors - 1] = address;
    Failure failure;
    served = served_without_gil(call, failure);
    if (served == Served::LAUNCHED && out != nullptr && !impl_of(out)->is_inference())
        impl_of(out)->bump_version();  // autograd must see that what it may have kept was overwritten
    if (served == Served::LAUNCHED) return result;
    Py_DECREF(result);
    return Py_NewRef(served == Served::LIBRARY ? Py_False : Py_None);  // a failure is told by `launch`, when Python tries again
}

// -- preparation

/// Calls `work` with the lock held alone and without the GIL.
template <class F>
void alone(F work) {
    PyThreadState *thread = PyEval_SaveThread();
    {
        const std::unique_lock<std::shared_mutex> guard(lock);
        work();
    }
    PyEval_RestoreThread(thread);
}

struct Reader {
    const char *at, *end;

    template <class T>
    bool take(T *to, size_t count = 1) {
        const size_t size = count * sizeof(T);
        if (static_cast<size_t>(end - at) < size) return false;
        if (size != 0) std::memcpy(static_cast<void *>(to), at, size);
        at += size;
        return true;
    }
    template <class T>
    bool take(std::vector<T> &to, size_t count) {
        return to.resize(count), take(to.data(), count);
    }

    bool take(Launch &launch) {
        Head &head = launch;
        if (!take(&head) || head.params > MAX_PARAMS || head.param_bytes > MAX_PARAM_BYTES) return false;
        if (!take(launch.patches, head.patches) || !take(launch.offsets, head.params)) return false;
        for (Patch &patch : launch.patches) patch.map.id = ++last_map;
        return take(launch.params, head.param_bytes);
    }
};

/// enroll(operation, *tensors, description): description is None (the library serves such tensors) or bytes.
PyObject *enroll(PyObject *, PyObject *const *args, Py_ssize_t count) {
    Call call;
    if (!read(args, count - 1, call)) {
        if (PyErr_Occurred()) return nullptr;
        return PyErr_Format(PyExc_ValueError, "plain tensors of one device and at most %d axes can be registered", MAX_RANK);
    }
    Entry entry;
    entry.library = args[count - 1] == Py_None;
    if (!entry.library) {
        char *bytes = nullptr;
        Py_ssize_t size = 0;
        if (PyBytes_AsStringAndSize(args[count - 1], &bytes, &size) != 0) return nullptr;
        Reader reader{bytes, bytes + size};
        uint64_t head[3] = {};  // workspace, zeroed, launches
        bool ok = reader.take(head, 3);
        entry.workspace = head[0], entry.zeroed = head[1] != 0;
        for (uint64_t i = 0; ok && i < head[2]; ++i) ok = reader.take(entry.launches.emplace_back());
        if (!ok)
            return PyErr_Format(PyExc_ValueError, "a damaged description, or more than %d parameters or %d bytes of them",
                                MAX_PARAMS, MAX_PARAM_BYTES);
        if (driver.cuCtxGetCurrent(&entry.context) != 0 || entry.context == nullptr)
            return PyErr_Format(launch_error, "no CUDA context is current on this thread");
    }
    alone([&] {
        if (entries.size() >= MAX_ENTRIES) entries.clear();
        entries.insert_or_assign(call.key, std::move(entry));
    });
    Py_RETURN_NONE;
}

/// provide(operation, *tensors, address): the workspace that the current stream lacks to launch this, as (bytes, zeroed, device,
/// stream, capture); None: nothing, or nothing is registered. With an address other than 0 the stream gets it there.
PyObject *provide(PyObject *, PyObject *const *args, Py_ssize_t count) {
    Call call;
    const uint64_t address = PyLong_AsUnsignedLongLong(args[count - 1]);
    if (PyErr_Occurred()) return nullptr;
    if (!read(args, count - 1, call)) return PyErr_Occurred() ? nullptr : Py_NewRef(Py_None);
    Py_ssize_t size = 0;
    bool zeroed = false;
    uint64_t capture = 0;
    alone([&] {
        const auto found = entries.find(call.key);
        if (found == entries.end() || found->second.workspace == 0) return;
        if (workspace_of(found->second, call, capture) != nullptr || capture == UNKNOWN_CAPTURE) return;
        size = found->second.workspace, zeroed = found->second.zeroed;
        if (address == 0) return;
        Workspace &one = workspaces[{call.device.device_id, call.stream, zeroed, capture != 0}];
        one.capture = capture, one.address = reinterpret_cast<unsigned char *>(address), one.size = size;
    });
    if (size == 0) Py_RETURN_NONE;
    return Py_BuildValue("nOiKK", size, zeroed ? Py_True : Py_False, call.device.device_id,
                         reinterpret_cast<unsigned long long>(call.stream), static_cast<unsigned long long>(capture));
}

PyObject *release(PyObject *, PyObject *) {
    alone([] { entries.clear(), workspaces.clear(); });
    Py_RETURN_NONE;
}

/// watch(tensor, parameter, their _cdata, the names of torch.autograd.forward_ad): what `product` looks at. ImportError where it
/// cannot.
PyObject *watch(PyObject *, PyObject *args) {
    PyObject *tensor, *parameter, *names;
    unsigned long long impl, other;
    if (!PyArg_ParseTuple(args, "OOKKO!", &tensor, &parameter, &impl, &other, &PyDict_Type, &names)) return nullptr;
    payload = sizeof(PyObject);  // PyTorch's header that says so takes 17 s to compile
    const auto number = [](PyObject *of) { return reinterpret_cast<unsigned long long>(impl_of(of)); };
    if (number(tensor) != impl || number(parameter) != other)
        return PyErr_Format(PyExc_ImportError, "a tensor does not begin with its TensorImpl");
    if (current_level == nullptr && (current_level = PyUnicode_InternFromString("_current_level")) == nullptr) return nullptr;
    if (PyDict_Contains(names, current_level) != 1)
        return PyErr_Format(PyExc_ImportError, "torch.autograd.forward_ad has no _current_level");
    forward_ad = Py_NewRef(names);
    Py_RETURN_NONE;
}

/// open(library, exchange API capsule, Tensor, Parameter, exception, tensor maps kept)
PyObject *open_driver(PyObject *, PyObject *args) {
    const char *library;
    PyObject *capsule, *tensor, *parameter, *error;
    Py_ssize_t kept;
    if (!PyArg_ParseTuple(args, "sOOOOn", &library, &capsule, &tensor, &parameter, &error, &kept)) return nullptr;
    auto *api = static_cast<const DLPackExchangeAPI *>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
    if (api == nullptr) return nullptr;
    if (api->header.version.major != DLPACK_MAJOR_VERSION || api->dltensor_from_py_object_no_sync == nullptr)
        return PyErr_Format(PyExc_ImportError, "this PyTorch has version %d of the DLPack exchange API, not %d",
                            static_cast<int>(api->header.version.major), DLPACK_MAJOR_VERSION);
    cuda::Driver found{};
    if (const char *problem = found.open(library)) return PyErr_Format(PyExc_ImportError, "%s", problem);
    alone([&] {
        entries.clear(), workspaces.clear(), maps.resize(kept);
        driver = found;
    });
    exchange = api;
    tensor_type = Py_NewRef(tensor), parameter_type = Py_NewRef(parameter), launch_error = Py_NewRef(error);
    Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"open", open_driver, METH_VARARGS, nullptr},
    {"watch", watch, METH_VARARGS, nullptr},
    {"launch", (PyCFunction)(void *)launch, METH_FASTCALL, nullptr},
    {"product", (PyCFunction)(void *)product, METH_FASTCALL, nullptr},
    {"enroll", (PyCFunction)(void *)enroll, METH_FASTCALL, nullptr},
    {"provide", (PyCFunction)(void *)provide, METH_FASTCALL, nullptr},
    {"release", release, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_launcher", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__launcher() { return PyModule_Create(&definition); }
