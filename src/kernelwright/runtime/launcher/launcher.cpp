// Launches kernels that were prepared once: reads the tensors, finds what was registered for exactly such tensors, fills in their
// addresses and enqueues on PyTorch's current stream. No allocation, no synchronisation, no Python in between.
//
// Tensors and the stream come through the DLPack C exchange API of torch.Tensor, so one binary serves every PyTorch that has it;
// with Python's limited API it serves every Python as well.
//
// Locks: none is waited for while the GIL is held, and the GIL is not waited for while one is held. The driver may block when a
// stream has too many launches pending, possibly on a host callback that needs the GIL.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <ATen/dlpack.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "driver_abi.h"

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

/// False where these are no plain tensors that DLPack can describe (or with a Python error). Subclasses have a behaviour of their
/// own, and a FakeTensor would even show an address.
bool read(PyObject *const *args, Py_ssize_t count, Call &call) {
    if (exchange == nullptr || count < 2 || count > 1 + MAX_TENSORS) {
        PyErr_Format(PyExc_TypeError, "open() first; then an operation and 1 to %d tensors, not %zd", MAX_TENSORS, count - 1);
        return false;
    }
    call.key.add(PyLong_AsLongLong(args[0]));
    if (PyErr_Occurred()) return false;
    for (Py_ssize_t i = 1; i < count; ++i) {
        PyObject *type = reinterpret_cast<PyObject *>(Py_TYPE(args[i]));
        if (type != tensor_type && type != parameter_type) return false;
        DLTensor t;
        if (exchange->dltensor_from_py_object_no_sync(args[i], &t) != 0) {
            PyErr_Clear();  // no storage, a sparse layout, a device that DLPack does not know
            return false;
        }
        if (t.ndim > MAX_RANK || t.strides == nullptr) return false;
        if (i == 1) call.device = t.device;
        if (t.device.device_type != call.device.device_type || t.device.device_id != call.device.device_id) return false;
        unsigned char *data = static_cast<unsigned char *>(t.data) + t.byte_offset;
        const uintptr_t address = reinterpret_cast<uintptr_t>(data) | 16, alignment = address & -address;  // at most 16
        call.data[call.tensors++] = data;
        call.key.add(static_cast<int64_t>(t.dtype.code) << 56 | static_cast<int64_t>(t.dtype.bits) << 48 |
                     static_cast<int64_t>(t.dtype.lanes) << 32 | t.device.device_type << 24 | t.device.device_id << 16 |
                     t.ndim << 8 | static_cast<int64_t>(alignment));
        for (int axis = 0; axis < t.ndim; ++axis) call.key.add(t.shape[axis]), call.key.add(t.strides[axis]);
    }
    if (exchange->current_work_stream(call.device.device_type, call.device.device_id, &call.stream) == 0) return true;
    PyErr_Clear();  // a device without streams that PyTorch could name
    return false;
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

PyObject *launch(PyObject *, PyObject *const *args, Py_ssize_t count) {
    Call call;
    if (!read(args, count, call)) return PyErr_Occurred() ? nullptr : Py_NewRef(Py_None);
    Failure failure;
    PyThreadState *thread = PyEval_SaveThread();
    const Served served = serve(call, failure);
    PyEval_RestoreThread(thread);
    if (served == Served::UNKNOWN) return Py_NewRef(Py_None);
    if (served != Served::FAILED) return Py_NewRef(served == Served::LAUNCHED ? Py_True : Py_False);
    const char *name = nullptr, *text = nullptr;
    driver.cuGetErrorName(failure.result, &name);
    driver.cuGetErrorString(failure.result, &text);
    return PyErr_Format(launch_error, "%s: %s (%s)", failure.what, text ? text : "unknown", name ? name : "CUDA error");
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
    {"launch", (PyCFunction)(void *)launch, METH_FASTCALL, nullptr},
    {"enroll", (PyCFunction)(void *)enroll, METH_FASTCALL, nullptr},
    {"provide", (PyCFunction)(void *)provide, METH_FASTCALL, nullptr},
    {"release", release, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_launcher", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__launcher() { return PyModule_Create(&definition); }
