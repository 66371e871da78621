// product(operation, a, b, bias, out, transposed): `launch` for what a user of PyTorch calls, with a look at all that PyTorch's
// dispatcher would do beside a product. That is a word of each tensor and two of each thread, which c10 declares.
#pragma once
#include <c10/core/AutogradState.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <utility>

#include "launch.h"

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

}  // namespace
