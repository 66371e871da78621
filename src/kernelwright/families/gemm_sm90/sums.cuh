// The sums that a thread keeps along K, as wgmma and mma.sync hold them: fp32, or, for Workloads that ask for it (acc=fp16), fp16 in pairs,
// rounded in every step of 16. What comes after the main loop (the parts of a split K, the epilogue) sees fp32 either way.
#pragma once
#include "kernelwright/numeric.cuh"

/// Count sums; the four of each 16 x 8 fragment are neighbours.
template <int Count, bool Fp16>
struct RunningSums {
    using Array = float[Count];
};
template <int Count>
struct RunningSums<Count, true> {
    using Array = unsigned[Count / 2];
};

/// The running sums as floats: those in fp32 themselves, with nothing copied (ptxas 13.0 spilled where they were), those in fp16
/// converted into `room`. Afterwards they are zero: a loop that comes back for the next tile would keep the registers of old ones.
template <class Floats>
__device__ __forceinline__ Floats& as_floats(Floats& running, Floats&) {
    return running;
}
template <class Floats, class Pairs>
__device__ __forceinline__ Floats& as_floats(Pairs& running, Floats& room) {
    static_assert(sizeof(Floats) == 2 * sizeof(Pairs), "two sums in each register");
    unsigned* from = reinterpret_cast<unsigned*>(&running);
    float* to = reinterpret_cast<float*>(&room);
#pragma unroll
    for (int i = 0; i < int(sizeof(Pairs) / 4); i++) {
        kw::unpack2<kw::f16>(from[i], to[i * 2], to[i * 2 + 1]);
        from[i] = 0u;
    }
    return room;
}
