// C = A B for the tiniest products: mma.sync on fragments that come straight from global memory. Where K is not split over warps
// (warps_k = 1), a warp loads, multiplies and stores its tile without shared memory and without a barrier; else the sums of the
// warps that share a tile meet in shared memory, and are added in the order of the warps.
//
// m16n8k16 wants of lane (g, t) = (lane / 4, lane % 4) the pairs k = 2t, 2t + 1 and 2t + 8, 2t + 9 of row g, and gives it columns
// 2t, 2t + 1 of C. What they stand for is free, since K is a sum and rows are separate addresses:
//   K      the h-th pair of lane t in the m-th of the two mma of a step of 32 is k = 8t + 4m + 2h and the next (h, m = 0, 1).
//          Where K is contiguous, the 16 bytes that a lane loads are its operands of both.
//   rows   place c of the i-th of Group fragments is row c / 2 * 2 Group + 2i + c % 2. In C a lane then has 2 Group neighbours of
//          a row, one store of up to 16 bytes. Where rows are contiguous, a lane loads 2 Group neighbours of one k, and movmatrix
//          turns each register, 8 x 8 elements over the warp, into the fragment of exactly these rows.
// All loads of a batch are issued before its first mma. They go through L1, where the warps of a block meet that share rows of Q.
#include "kernelwright/copy.cuh"
#include "kernelwright/epilogue.cuh"
#include "kernelwright/layout.cuh"
#include "kernelwright/mma.cuh"
#include "kernelwright/numeric.cuh"
#include "kernelwright/pdl.cuh"
// The sums that a thread keeps along K, as wgmma and mma.sync hold them: fp32, or, for Workloads that ask for it (acc=fp16), fp16 in pairs,
// rounded in every step of 16. What comes after the main loop (the parts of a split K, the epilogue) sees fp32 either way.
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

struct Config {
    using Element = kw::f16;
