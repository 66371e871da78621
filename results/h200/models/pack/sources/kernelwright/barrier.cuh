// Waiting for each other: mbarriers in shared memory, named barriers, clusters (sm_90).
//
// An mbarrier counts arrivals and bytes. It starts in phase 0; a phase ends when all its arrivals are in and all bytes that were
// announced (barrier_expect) have landed. barrier_wait(bar, parity) returns once the phase of that parity has ended: the first wait
// of a consumer asks for parity 0; a producer that must find a fresh slot empty asks for parity 1 first, which returns at once.
// Bar arguments are shared addresses (8 bytes, aligned); `cluster` addresses come from cluster_address.
#pragma once

namespace kw {

// --------------------------------------------------------------------------------------------------------------- mbarriers

/// By one thread; then fence_barrier_init() by the same thread and a barrier of all threads (of the cluster, if others arrive).
__device__ __forceinline__ void barrier_init(unsigned bar, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}

/// Makes initialised barriers visible to TMA and to the other blocks of the cluster.
__device__ __forceinline__ void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

/// One arrival that announces `bytes` more of this phase.
__device__ __forceinline__ void barrier_expect(unsigned bar, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_arrive(unsigned bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

/// At a barrier of any block of the cluster. Without `.release.cluster`, which ptxas turns into a memory barrier of the whole GPU:
/// enough to say that a slot has been read, not to hand over data.
__device__ __forceinline__ void barrier_arrive_cluster(unsigned cluster_bar) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(cluster_bar) : "memory");
}

__device__ __forceinline__ bool barrier_try_wait(unsigned bar, unsigned parity) {
    unsigned done;
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(bar), "r"(parity)
        : "memory");
    return done;
}

/// Waits for the end of the phase of that parity; sees what TMA and this block's threads wrote before.
__device__ __forceinline__ void barrier_wait(unsigned bar, unsigned parity) {
    while (!barrier_try_wait(bar, parity)) {
    }
}

/// The same, and sees what other blocks of the cluster wrote with store_async.
__device__ __forceinline__ void barrier_wait_cluster(unsigned bar, unsigned parity) {
    unsigned done;
    do {
        asm volatile(
            "{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
            : "=r"(done)
            : "r"(bar), "r"(parity)
            : "memory");
    } while (!done);
}

// ---------------------------------------------------------------------------------------------------------- named barriers

/// Barrier Id (1 to 15; 0 is __syncthreads) for `threads` threads, whole warps: waits for all of them.
template <int Id>
__device__ __forceinline__ void named_sync(int threads) {
    asm volatile("bar.sync %0, %1;" ::"n"(Id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Counts this warp's threads without waiting.
__device__ __forceinline__ void named_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// ---------------------------------------------------------------------------------------------------------------- clusters

/// This block's rank among the blocks of its cluster, x fastest.
__device__ __forceinline__ unsigned cluster_rank() {
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/// The address of the same place in the shared memory of block `rank` of the cluster.
__device__ __forceinline__ unsigned cluster_address(unsigned shared, unsigned rank) {
    unsigned address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared), "r"(rank));
    return address;
}

/// All threads of the cluster arrive, then wait. What a thread wrote to shared memory before cluster_arrive is seen after cluster_wait;
/// after the relaxed form only the fact of the arrival is.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

/// A float from another block's shared memory.
__device__ __forceinline__ float load_cluster_float(unsigned cluster_from) {
    float v;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(cluster_from) : "memory");
    return v;
}

/// Four floats into another block's shared memory (16 bytes, aligned); counted as 16 bytes at that block's barrier.
__device__ __forceinline__ void store_async(unsigned cluster_to, unsigned cluster_bar, float x, float y, float z, float w) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%2, %3, %4, %5}, [%1];" ::"r"(cluster_to),
                 "r"(cluster_bar), "f"(x), "f"(y), "f"(z), "f"(w)
                 : "memory");
}

// ------------------------------------------------------------------------------------------------------------------- warps

/// True in exactly one thread of a converged warp.
__device__ __forceinline__ bool elect_one() {
    unsigned elected;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(elected)::"memory");
    return elected;
}

/// The warp's number in its block, in a register that ptxas knows to be the same for all lanes.
__device__ __forceinline__ int warp_index() { return __shfl_sync(0xffffffffu, threadIdx.x / 32, 0); }

/// Gives registers back, or asks for more, for all warps of a warpgroup (4 warps, aligned). Counts are multiples of 8, 24 to 240. A
/// `trap` anywhere in the kernel makes ptxas ignore both (found with 13.0).
template <int Registers>
__device__ __forceinline__ void shrink_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers>
__device__ __forceinline__ void grow_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

}  // namespace kw
