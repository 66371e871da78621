// Split-K through the workspace: several blocks share one tile of C, each sums its part of K. Every warpgroup meets only its own
// counterparts in the other blocks; none waits, the last one to arrive adds all parts up in their order, so the result does not
// depend on who was last.
#pragma once
#include "kernelwright/barrier.cuh"
#include "kernelwright/copy.cuh"

/// True in the warpgroup that came last, whose `sums` are then the whole. `partials` is this unit's room for split x Count x 128
/// floats and `counter` its own; both zero on entry and left zeroed, as the launch plan promises. `flag`: a word of shared memory
/// of this warpgroup. The fence-and-count pattern is the one of the CUDA programming guide's threadFenceReduction sample.
template <int Count>
__device__ __forceinline__ bool reduce_in_last_warpgroup(float* sums, float* partials, int* counter, int part, int split,
                                                         unsigned flag, int barrier) {
    static_assert(Count % 4 == 0, "sums move in words of four");
    float* mine = partials + threadIdx.x % 128 * 4;
#pragma unroll
    for (int i = 0; i < Count; i += 4)
        kw::store_global_float4(mine + (size_t(part) * Count + i) * 128,
                                make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]));
    __threadfence();
    kw::named_sync(barrier, 128);
    if (threadIdx.x % 128 == 0) {
        int arrived = atomicAdd(counter, 1);
        if (arrived == split - 1) atomicExch(counter, 0);
        kw::store_shared_4(flag, arrived == split - 1);
    }
    kw::named_sync(barrier, 128);
    if (kw::load_shared_4(flag) == 0) return false;
    __threadfence();
#pragma unroll
    for (int i = 0; i < Count; i++) sums[i] = 0.f;
#pragma unroll 1
    for (int p = 0; p < split; p++) {
#pragma unroll
        for (int i = 0; i < Count; i += 4) {
            float* from = mine + (size_t(p) * Count + i) * 128;
            float4 v = kw::load_l2_float4(from);
            sums[i] += v.x, sums[i + 1] += v.y, sums[i + 2] += v.z, sums[i + 3] += v.w;
            kw::store_global_float4(from, make_float4(0.f, 0.f, 0.f, 0.f));
        }
    }
    return true;
}
