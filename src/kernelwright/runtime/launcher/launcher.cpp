// Launches kernels that were prepared once. Here: what prepares them, and the Python module. What is kept is in registered.h, the
// calls themselves are in launch.h and product.h.
//
// Tensors and the stream come through the DLPack C exchange API of torch.Tensor; with c10's headers in it (product.h) the binary is
// for one PyTorch, and with the limited API for every Python.
//
// Locks: none is waited for while the GIL is held, and the GIL is not waited for while one is held. The driver may block when a
// stream has too many launches pending, possibly on a host callback that needs the GIL.
#include "launch.h"
#include "product.h"
#include "registered.h"

namespace {

uint64_t last_map = 0;  // id of a TensorMapSpec

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

/// enroll(operation, *tensors, description): description is None (PyTorch calls the library for such tensors) or bytes.
/// True: all that was registered before was forgotten.
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
        uint64_t head[4] = {};  // workspace, zeroed, launches, products of the library
        bool ok = reader.take(head, 4);
        entry.workspace = head[0], entry.zeroed = head[1] != 0;
        for (uint64_t i = 0; ok && i < head[2]; ++i) ok = reader.take(entry.launches.emplace_back());
        ok = ok && head[3] <= 1 && reader.take(entry.vendor, head[3]);
        entry.bias_turn = std::make_unique<std::mutex>();
        if (!ok)
            return PyErr_Format(PyExc_ValueError, "a damaged description, or more than %d parameters or %d bytes of them",
                                MAX_PARAMS, MAX_PARAM_BYTES);
        if (driver.cuCtxGetCurrent(&entry.context) != 0 || entry.context == nullptr)
            return PyErr_Format(launch_error, "no CUDA context is current on this thread");
    }
    bool full = false;
    alone([&] {
        full = entries.size() >= MAX_ENTRIES;
        if (full) entries.clear();
        entries.insert_or_assign(call.key, std::move(entry));
    });
    return Py_NewRef(full ? Py_True : Py_False);
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
