// What is used of the CUDA driver's binary interface (cuda.h), so that no CUDA toolkit is needed to build; a test holds it
// against cuda.h. The driver is found at run time.
#pragma once
#include <cstdint>
#include <dlfcn.h>
#include <utility>

namespace cuda {

using Result = int;
using Context = void *;
using Function = void *;
using Stream = void *;

struct LaunchAttribute {  // ids: __init__.py
    alignas(8) uint32_t id;
    alignas(8) char value[64];
};

struct LaunchConfig {
    uint32_t grid[3], block[3], smem;
    Stream stream;
    LaunchAttribute *attributes;
    uint32_t attribute_count;
};

struct alignas(128) TensorMap {
    uint64_t opaque[16];
};

/// Functions of libcuda.
struct Driver {
    Result (*cuCtxGetCurrent)(Context *);
    Result (*cuCtxPushCurrent)(Context);
    Result (*cuCtxPopCurrent)(Context *);
    Result (*cuGetErrorName)(Result, const char **);
    Result (*cuGetErrorString)(Result, const char **);
    Result (*cuLaunchKernelEx)(const LaunchConfig *, Function, void **params, void **extra);
    Result (*cuStreamGetCaptureInfo)(Stream, int *status, uint64_t *id, void *graph, void *dependencies, void *count);
    Result (*cuTensorMapEncodeTiled)(TensorMap *, int dtype, uint32_t rank, void *address, const uint64_t *dims,
                                     const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,
                                     int interleave, int swizzle, int l2_promotion, int fill);

    /// nullptr, or what is missing (dlerror's text).
    const char *open(const char *library) {
        void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
        if (handle == nullptr) return dlerror();
        const std::pair<const char *, void *> wanted[] = {
            {"cuCtxGetCurrent", &cuCtxGetCurrent},
            {"cuCtxPushCurrent_v2", &cuCtxPushCurrent},
            {"cuCtxPopCurrent_v2", &cuCtxPopCurrent},
            {"cuGetErrorName", &cuGetErrorName},
            {"cuGetErrorString", &cuGetErrorString},
            {"cuLaunchKernelEx", &cuLaunchKernelEx},
            {"cuStreamGetCaptureInfo_v2", &cuStreamGetCaptureInfo},
            {"cuTensorMapEncodeTiled", &cuTensorMapEncodeTiled},
        };
        for (auto [name, function] : wanted)
            if ((*static_cast<void **>(function) = dlsym(handle, name)) == nullptr) return dlerror();
        return nullptr;
    }
};

}  // namespace cuda
