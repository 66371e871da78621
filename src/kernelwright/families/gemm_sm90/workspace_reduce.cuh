// Parts of one tile of C, summed in different blocks, meet in the workspace. Every warpgroup meets only its own counterparts in the
// other blocks. They meet in pairs, as in a knock-out: the first of two to arrive leaves its sums there and is done, the second
// takes them along to the next round. Nobody waits, so any order of blocks will do; the tree is fixed and x + y = y + x, so the
// result does not depend on who came when. A chain of n parts costs its last block log2(n) reads; reading all parts at the end,
// as the last of all, would cost n.
#pragma once
#include "kernelwright/barrier.cuh"
#include "kernelwright/copy.cuh"
#include "kernelwright/layout.cuh"

/// Where the sums of warpgroups meet: Count of each thread. A meeting of two has a number, which is that of the right one's share,
/// and every one of Units warpgroups that work on a tile its own counter and room for the two.
template <int Count, int Units>
struct Meetings {
    static_assert(Count % 4 == 0, "sums move in words of four");
    static constexpr int words = Count / 4;

    float* partials;
    int* counters;  // both zero on entry and left zeroed, as the launch plan promises
    int unit;
    unsigned flag;  // a word of shared memory of this warpgroup
    int barrier;    // of this warpgroup

    /// Where this thread's words lie, 128 words (2 KB) from each other: a warp's are 512 bytes in a row.
    __device__ __forceinline__ float* room(int meeting, bool right) const {
        return partials + ((size_t(meeting) * 2 + right) * Units + unit) * (Count * 128) + threadIdx.x % 128 * 4;
    }

    /// Whether the other of two is through with its sums, to all threads. `arrivals` 1 says the same of ours; with 0 we only look.
    /// One thread fences for the warpgroup, on both sides of its barriers, as a grid barrier does it.
    __device__ __forceinline__ bool other_came(int* counter, int arrivals) const {
        kw::named_sync(barrier, 128);
        if (threadIdx.x % 128 == 0) {
            if (arrivals) __threadfence();
            const int came = atomicAdd(counter, arrivals);
            if (came) __threadfence(), atomicExch(counter, 0);
            kw::store_shared_4(flag, came);
        }
        kw::named_sync(barrier, 128);
        return kw::load_shared_4(flag) != 0;
    }

    static __device__ __forceinline__ void clear(float* from) {
#pragma unroll
        for (int i = 0; i < words; i++) kw::store_global_float4(from + i * 512, make_float4(0.f, 0.f, 0.f, 0.f));
    }

    /// True in the warpgroup whose `sums` are then the whole of `parts` parts, of which it brings number `part`; part p has share
    /// first_share + p.
    __device__ __forceinline__ bool climb(float* sums, int first_share, int part, int parts) const {
#pragma unroll 1
        for (int width = 1; width < parts; width *= 2) {
            const int middle = part / (2 * width) * (2 * width) + width;  // the right one's first part
            if (middle >= parts) continue;                                // nobody to meet in this round
            const bool right = part >= middle;
            const int meeting = first_share + middle;
            int* counter = counters + meeting * Units + unit;
            float *mine = room(meeting, right), *other = room(meeting, !right);
            const bool writes = !other_came(counter, 0);
            if (writes) {
#pragma unroll
                for (int i = 0; i < words; i++)
                    kw::store_global_float4(mine + i * 512,
                                            make_float4(sums[i * 4], sums[i * 4 + 1], sums[i * 4 + 2], sums[i * 4 + 3]));
                if (!other_came(counter, 1)) return false;
            }
            // ptxas sends loads ahead until registers run out (13.0: 21 of 32 beside 128 sums), cleared is what they read after that
#pragma unroll
            for (int i = 0; i < words; i++) {
                const float4 x = kw::load_l2_float4(other + i * 512);
                sums[i * 4] += x.x, sums[i * 4 + 1] += x.y, sums[i * 4 + 2] += x.z, sums[i * 4 + 3] += x.w;
            }
            clear(other);
            if (writes) clear(mine);  // for nobody: the other came in the meantime, and left
        }
        return true;
    }
};
