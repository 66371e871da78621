// apache-tvm-ffi.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include "common.h"

using tvm::ffi::TensorView;

bool launch(int64_t op, TensorView a, TensorView b, TensorView c) {
    Call call(op);
    for (const TensorView *t : {&a, &b, &c})
        call.add(t->data_ptr(), t->size(0), t->size(1), t->stride(0), t->stride(1),
                 t->dtype().code << 16 | t->dtype().bits << 8 | t->device().device_id);
    return call.launch(TVMFFIEnvGetStream(c.device().device_type, c.device().device_id));
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(launch, launch);
