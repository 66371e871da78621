// Programmatic dependent launch (sm_90): a kernel may start while its predecessor in the stream still runs.
//
// A kernel launched so must call grid_dependency_wait() before it touches global memory that others read or write. On
// older devices both calls compile to nothing, which is right: there the launch never overlaps.
#pragma once

namespace kw {

/// Blocks until all kernels that this one depends on have ended and their writes are visible.
__device__ __forceinline__ void grid_dependency_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Lets the next kernel start once every block has called this or ended. It promises nothing about this kernel's writes:
/// the next kernel sees them only after its own grid_dependency_wait().
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace kw
