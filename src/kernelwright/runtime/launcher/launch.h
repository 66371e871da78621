// launch(operation, *tensors), the fast path: reads the tensors, finds what was registered for exactly such tensors, fills in their
// addresses and enqueues on PyTorch's current stream. No allocation, no synchronisation, no Python in between.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <ATen/dlpack.h>

#include "registered.h"

namespace {

struct Call {
    Key key;
    void *data[MAX_TENSORS];
    int tensors = 0;
    DLDevice device{};
    cuda::Stream stream = nullptr;
};

struct Failure {
    const char *what = nullptr;
    cuda::Result result = 0;
};

const DLPackExchangeAPI *exchange = nullptr;
PyObject *tensor_type = nullptr, *parameter_type = nullptr, *launch_error = nullptr;

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

/// cuBLASLt's status. A row-major product is the column-major one of the operands in turn: `first` is b. `call`: a, b, a bias if
/// there is one, out.
int multiply(const Entry &entry, const Call &call, const Workspace *workspace) {
    static constexpr float one = 1, zero = 0;
    static constexpr int BIAS_POINTER = 8;  // cublasLtMatmulDescAttributes_t
    const Vendor &v = entry.vendor.front();
    std::unique_lock<std::mutex> turn;
    if (v.set != nullptr) {
        turn = std::unique_lock<std::mutex>(*entry.bias_turn);
        if (const int status = v.set(v.desc, BIAS_POINTER, &call.data[2], sizeof call.data[2])) return status;
    }
    void *const out = call.data[call.tensors - 1];
    return v.matmul(v.handle, v.desc, &one, call.data[1], v.first, call.data[0], v.second, &zero, out, v.out, out, v.out, v.algo,
                    workspace == nullptr ? nullptr : workspace->address, entry.workspace, call.stream);
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
    // what the library refuses, PyTorch asks it for in its own way
    if (served == Served::LAUNCHED && !entry.vendor.empty() && multiply(entry, call, workspace) != 0) served = Served::LIBRARY;
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

}  // namespace
