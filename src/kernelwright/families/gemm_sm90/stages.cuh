// The ring of stages between TMA and the warpgroups that multiply: where one stands in it, and how a warp says that it has read a
// stage.
#pragma once
#include "kernelwright/barrier.cuh"

/// A stage of the ring and the parity of its present round.
template <int Stages>
struct RingPosition {
    int slot = 0;
    unsigned parity = 0;

    __device__ __forceinline__ void advance() {
        if (++slot == Stages) slot = 0, parity ^= 1;
    }
    __device__ __forceinline__ void skip(int steps) {
        slot += steps % Stages;
        parity ^= steps / Stages % 2;
        if (slot >= Stages) slot -= Stages, parity ^= 1;
    }
};

/// A warp's share of saying that a stage has been read, to every block that loads into it: one lane for each. A block at (p, q)
/// of ClusterP x ClusterQ shares loads with those of its row and column, itself counted once.
template <int ClusterP, int ClusterQ>
struct Release {
    static constexpr int blocks = ClusterP + ClusterQ - 1;

    unsigned empty;
    bool active;

    /// `empty_barriers`: shared address of the first stage's. `first_rank`: in the cluster, of the block at (0, 0).
    __device__ __forceinline__ Release(unsigned empty_barriers, int p, int q, int first_rank) : empty(empty_barriers) {
        const int lane = threadIdx.x % 32;
        active = lane < blocks;
        if constexpr (blocks > 1) {
            int to_p = lane, to_q = q;
            if (lane >= ClusterP) to_p = p, to_q = lane - ClusterP, to_q += to_q >= q;
            if (active) empty = kw::cluster_address(empty, first_rank + to_q * ClusterP + to_p);
        }
    }

    __device__ __forceinline__ void operator()(int slot) const {
        if (!active) return;
        if constexpr (blocks > 1)
            kw::barrier_arrive_cluster(empty + slot * 8);
        else
            kw::barrier_arrive(empty + slot * 8);
    }
};
