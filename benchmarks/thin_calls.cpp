// cublasLtMatmul and cublasGemmEx with everything prepared, called from Python with three tensors: the path of
// runtime/launcher/launch.h (DLPack's C exchange API, PyTorch's current stream, the GIL released around the library) without its
// table: a call names what was prepared, and the tensors are only held against it. So it costs at most what the launcher costs.
//
// The libraries' functions arrive as addresses of the copies that PyTorch loaded; no header of theirs is needed.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <ATen/dlpack.h>

#include <cstdint>
#include <cstring>
#include <vector>

namespace {

using Pointer = void *;
using Matmul = int (*)(Pointer handle, Pointer desc, const void *alpha, const void *a, Pointer a_layout, const void *b,
                       Pointer b_layout, const void *beta, const void *c, Pointer c_layout, void *d, Pointer d_layout,
                       const void *algo, void *workspace, size_t workspace_bytes, Pointer stream);
using GemmEx = int (*)(Pointer handle, int op_a, int op_b, int m, int n, int k, const void *alpha, const void *a, int a_type,
                       int lda, const void *b, int b_type, int ldb, const void *beta, void *c, int c_type, int ldc, int compute,
                       int algo);
using SetStream = int (*)(Pointer handle, Pointer stream);
using SetWorkspace = int (*)(Pointer handle, void *workspace, size_t bytes);
using SetMath = int (*)(Pointer handle, int mode);

constexpr int TENSORS = 3, GEMM_DEFAULT = -1;
const float ONE = 1, ZERO = 0;

/// What a tensor must be: a matrix of this type, device, size and strides, aligned at least so.
struct Matrix {
    int64_t words[5];
    uintptr_t alignment;
};

struct Prepared {
    Matrix matrices[TENSORS];
    DLDevice device;
    bool lt;
    Pointer handle, workspace;
    size_t workspace_bytes;
    // cuBLASLt
    Matmul matmul;
    Pointer desc, first, second, out;
    uint64_t algo[8];
    // cuBLAS
    GemmEx gemm;
    SetStream set_stream;
    SetWorkspace set_workspace;
    SetMath set_math;
    int op_first, op_second, m, n, k, ld_first, ld_second, ld_out, type, compute, math;
};

const DLPackExchangeAPI *exchange = nullptr;
PyObject *tensor_type = nullptr;
std::vector<Prepared> prepared;
Pointer last_stream = reinterpret_cast<Pointer>(-1);  // of cuBLAS's handle
int last_math = -1;

bool describe(PyObject *tensor, Matrix &matrix, void *&data, DLDevice &device) {
    DLTensor t;
    if (reinterpret_cast<PyObject *>(Py_TYPE(tensor)) != tensor_type) return false;
    if (exchange->dltensor_from_py_object_no_sync(tensor, &t) != 0) return PyErr_Clear(), false;
    if (t.ndim != 2 || t.strides == nullptr) return false;
    data = static_cast<unsigned char *>(t.data) + t.byte_offset;
    const uintptr_t address = reinterpret_cast<uintptr_t>(data) | 16;  // at most 16, as the launcher
    device = t.device;
    matrix = {{static_cast<int64_t>(t.dtype.code) << 48 | static_cast<int64_t>(t.dtype.bits) << 40 |
                   static_cast<int64_t>(t.device.device_type) << 16 | t.device.device_id,
               t.shape[0], t.shape[1], t.strides[0], t.strides[1]},
              address & -address};
    return true;
}

int run(const Prepared &p, void *const *data, Pointer stream) {
    if (p.lt)
        return p.matmul(p.handle, p.desc, &ONE, data[1], p.first, data[0], p.second, &ZERO, data[2], p.out, data[2], p.out, p.algo,
                        p.workspace, p.workspace_bytes, stream);
    int status = 0;
    if (stream != last_stream) {
        status = p.set_stream(p.handle, stream);
        if (status == 0) status = p.set_workspace(p.handle, p.workspace, p.workspace_bytes);  // a new stream takes it away
        if (status != 0) return status;
        last_stream = stream;
    }
    if (p.math != last_math) {
        if ((status = p.set_math(p.handle, p.math)) != 0) return status;
        last_math = p.math;
    }
    return p.gemm(p.handle, p.op_first, p.op_second, p.m, p.n, p.k, &ONE, data[1], p.type, p.ld_first, data[0], p.type, p.ld_second,
                  &ZERO, data[2], p.type, p.ld_out, p.compute, GEMM_DEFAULT);
}

/// call(number, a, b, out): enqueues out = a @ b on PyTorch's current stream.
PyObject *call(PyObject *, PyObject *const *args, Py_ssize_t count) {
    if (count != 1 + TENSORS) return PyErr_Format(PyExc_TypeError, "a number and %d tensors, not %zd arguments", TENSORS, count);
    const long long number = PyLong_AsLongLong(args[0]);
    if (PyErr_Occurred()) return nullptr;
    if (number < 0 || number >= static_cast<long long>(prepared.size())) return PyErr_Format(PyExc_IndexError, "nothing is prepared as %lld", number);
    const Prepared &p = prepared[number];
    void *data[TENSORS];
    for (int i = 0; i < TENSORS; ++i) {
        Matrix found;
        DLDevice device;
        const Matrix &wanted = p.matrices[i];
        if (!describe(args[1 + i], found, data[i], device) || std::memcmp(found.words, wanted.words, sizeof found.words) != 0 ||
            found.alignment < wanted.alignment)
            return PyErr_Format(PyExc_ValueError, "tensor %d is not what was prepared", i);
    }
    Pointer stream = nullptr;
    if (exchange->current_work_stream(p.device.device_type, p.device.device_id, &stream) != 0) return nullptr;
    PyThreadState *thread = PyEval_SaveThread();
    const int status = run(p, data, stream);
    PyEval_RestoreThread(thread);
    if (status != 0) return PyErr_Format(PyExc_RuntimeError, "%s: status %d", p.lt ? "cublasLtMatmul" : "cublasGemmEx", status);
    Py_RETURN_NONE;
}

bool describe_all(PyObject *const *tensors, Prepared &p) {
    void *data;
    for (int i = 0; i < TENSORS; ++i)
        if (!describe(tensors[i], p.matrices[i], data, p.device))
            return PyErr_Format(PyExc_ValueError, "tensor %d is no plain matrix", i), false;
    return true;
}

Pointer pointer(unsigned long long address) { return reinterpret_cast<Pointer>(address); }

PyObject *keep(const Prepared &p) {
    prepared.push_back(p);
    return PyLong_FromSize_t(prepared.size() - 1);
}

/// prepare_lt(a, b, out, addresses of (cublasLtMatmul, handle, description, layouts of first, second and out, workspace), workspace
/// bytes, the 64 bytes of the algorithm): the number for `call`.
PyObject *prepare_lt(PyObject *, PyObject *args) {
    PyObject *tensors[TENSORS];
    unsigned long long at[7], bytes;
    const char *algo;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "OOO(KKKKKKK)Ky#", &tensors[0], &tensors[1], &tensors[2], &at[0], &at[1], &at[2], &at[3], &at[4],
                          &at[5], &at[6], &bytes, &algo, &size))
        return nullptr;
    Prepared p{};
    if (size != sizeof p.algo) return PyErr_Format(PyExc_ValueError, "an algorithm has %zu bytes, not %zd", sizeof p.algo, size);
    if (!describe_all(tensors, p)) return nullptr;
    p.lt = true, p.matmul = reinterpret_cast<Matmul>(pointer(at[0])), p.handle = pointer(at[1]), p.desc = pointer(at[2]);
    p.first = pointer(at[3]), p.second = pointer(at[4]), p.out = pointer(at[5]), p.workspace = pointer(at[6]);
    p.workspace_bytes = bytes;
    std::memcpy(p.algo, algo, sizeof p.algo);
    return keep(p);
}

/// prepare_gemm(a, b, out, addresses of (cublasGemmEx, cublasSetStream, cublasSetWorkspace, cublasSetMathMode, handle, workspace),
/// workspace bytes, (operations of first and second, m, n, k, leading dimensions of first, second and out, type, compute type, math
/// mode)): the number for `call`.
PyObject *prepare_gemm(PyObject *, PyObject *args) {
    PyObject *tensors[TENSORS];
    unsigned long long at[6], bytes;
    Prepared p{};
    if (!PyArg_ParseTuple(args, "OOO(KKKKKK)K(iiiiiiiiiii)", &tensors[0], &tensors[1], &tensors[2], &at[0], &at[1], &at[2], &at[3],
                          &at[4], &at[5], &bytes, &p.op_first, &p.op_second, &p.m, &p.n, &p.k, &p.ld_first, &p.ld_second, &p.ld_out,
                          &p.type, &p.compute, &p.math))
        return nullptr;
    if (!describe_all(tensors, p)) return nullptr;
    p.gemm = reinterpret_cast<GemmEx>(pointer(at[0])), p.set_stream = reinterpret_cast<SetStream>(pointer(at[1]));
    p.set_workspace = reinterpret_cast<SetWorkspace>(pointer(at[2])), p.set_math = reinterpret_cast<SetMath>(pointer(at[3]));
    p.handle = pointer(at[4]), p.workspace = pointer(at[5]), p.workspace_bytes = bytes;
    return keep(p);
}

/// open(capsule of PyTorch's exchange API, torch.Tensor)
PyObject *open(PyObject *, PyObject *args) {
    PyObject *capsule, *tensor;
    if (!PyArg_ParseTuple(args, "OO", &capsule, &tensor)) return nullptr;
    auto *api = static_cast<const DLPackExchangeAPI *>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
    if (api == nullptr) return nullptr;
    exchange = api, tensor_type = Py_NewRef(tensor);
    prepared.clear(), last_stream = pointer(-1), last_math = -1;
    Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"open", open, METH_VARARGS, nullptr},
    {"prepare_lt", prepare_lt, METH_VARARGS, nullptr},
    {"prepare_gemm", prepare_gemm, METH_VARARGS, nullptr},
    {"call", (PyCFunction)(void *)call, METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_thin_calls", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__thin_calls() { return PyModule_Create(&definition); }
