// The tensor memory accelerator: tiles of a tensor between global and shared memory, by one thread, in the background (sm_90).
//
// A map describes the tensor and the box that one copy moves (cuTensorMapEncodeTiled); x counts elements along the contiguous
// dimension. Elements outside the tensor are read as zeros and not written. Shared addresses: 128-byte aligned; 1024, 512 or 256 for
// swizzles of 128, 64 or 32 bytes, whose pattern starts at multiples of these.
#pragma once
#include "kernelwright/tensormap.cuh"

namespace kw {

/// L2 eviction policies as createpolicy would make them for a whole access (the encodings that CUTLASS documents).
enum class Evict : unsigned long long { normal = 0x1000000000000000ull, first = 0x12F0000000000000ull, last = 0x14F0000000000000ull };

/// Fetches the map itself, which otherwise costs the first copy about half a microsecond.
__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<unsigned long long>(map)) : "memory");
}

/// One box from (x, y) to shared memory; its bytes count at `bar` (also those outside the tensor).
__device__ __forceinline__ void tma_load(unsigned to, const CUtensorMap* map, unsigned bar, int x, int y, Evict policy) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
        "l"(reinterpret_cast<unsigned long long>(map)), "r"(bar), "r"(x), "r"(y), "l"(static_cast<unsigned long long>(policy))
        : "memory");
}

/// Consecutive bytes (a multiple of 16, all addresses too) to shared memory; they count at `bar`.
__device__ __forceinline__ void bulk_load(unsigned to, const void* from, unsigned bytes, unsigned bar, Evict policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to), "l"(from),
        "r"(bytes), "r"(bar), "l"(static_cast<unsigned long long>(policy))
        : "memory");
}

/// The same to L2 alone, without waiting for it.
__device__ __forceinline__ void bulk_prefetch(const void* from, unsigned bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

/// The same box to the same place of every block whose bit is set in `blocks`, counted at each one's barrier at the place of `bar`.
__device__ __forceinline__ void tma_load_multicast(unsigned to, const CUtensorMap* map, unsigned bar, int x, int y,
                                                   unsigned short blocks, Evict policy) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
        " [%0], [%1, {%3, %4}], [%2], %5, %6;" ::"r"(to),
        "l"(reinterpret_cast<unsigned long long>(map)), "r"(bar), "r"(x), "r"(y), "h"(blocks),
        "l"(static_cast<unsigned long long>(policy))
        : "memory");
}

/// One box from shared memory, as a group of its own. What threads wrote there must be fenced (fence_async_proxy) by the writers first.
__device__ __forceinline__ void tma_store(const CUtensorMap* map, unsigned from, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(
                     reinterpret_cast<unsigned long long>(map)),
                 "r"(from), "r"(x), "r"(y)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/// Waits until at most Pending of this thread's stores still read shared memory. (A kernel's end waits for the writes.)
template <int Pending>
__device__ __forceinline__ void tma_store_wait() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}

/// Lets TMA and wgmma, which access shared memory by another path, see this thread's writes to it.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace kw
