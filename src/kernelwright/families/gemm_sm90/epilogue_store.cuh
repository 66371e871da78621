// From wgmma's sums to C through shared memory: rounded, turned by stmatrix into rows of C, and stored by TMA in the background.
//
// Unswapped, a warp's 16 rows of a subtile are rows of C: every warp has buffers of its own, and no warp waits for another.
// Swapped, they are 16 columns of C, only 32 bytes of each row; so the four warps of a warpgroup write side by side into one
// buffer with rows of 64 elements, which costs two barriers of the warpgroup and keeps TMA's rows at 128 bytes. stmatrix's .trans
// does the turning.
#pragma once
#include "kernelwright/barrier.cuh"
#include "kernelwright/copy.cuh"
#include "kernelwright/layout.cuh"
#include "kernelwright/mma.cuh"
#include "kernelwright/numeric.cuh"
#include "kernelwright/tma.cuh"

/// Stores subtiles of 64 x N sums of one warpgroup. `Buffers` of them may be on their way to C.
/// Map of C: box of `width` columns x 16 rows, swizzle width * 2 bytes; swapped: 64 columns x `width` rows, swizzle 128 bytes.
template <class Element, int N, bool Swap, int Buffers>
struct TileStore {
    static constexpr int width = N % 64 == 0 ? 64 : N % 32 == 0 ? 32 : 16;  // of wgmma's N side, in one box
    using Buffer = kw::SwizzledTile<Swap ? width : 16, Swap ? 8 : width / 8>;
    static constexpr int box_bytes = Buffer::bytes;
    static constexpr int warpgroup_bytes = Buffers * width * 128;  // of shared memory, aligned to 1024

    unsigned buffers;  // the first one of this warp, swapped: of this warpgroup
    int barrier;       // of this warpgroup (swapped only)
    int next = 0;

    /// `first`: shared address of the warpgroup's warpgroup_bytes.
    __device__ __forceinline__ TileStore(unsigned first, int barrier_id) : barrier(barrier_id) {
        buffers = Swap ? first : first + threadIdx.x / 32 % 4 * Buffers * box_bytes;
    }

    /// The thread that issues the stores and waits for them.
    static __device__ __forceinline__ bool issuer() { return threadIdx.x % (Swap ? 128 : 32) == 0; }

    __device__ __forceinline__ void sync() const {
        if constexpr (Swap)
            kw::named_sync(barrier, 128);
        else
            __syncwarp();
    }

    /// One subtile whose first element lies at (row p, column q) of D. What lies outside C, TMA leaves out.
    template <class Epilogue>
    __device__ __forceinline__ void store(const float (&sums)[N / 2], const Epilogue& epilogue, const CUtensorMap* map_c, int p,
                                          int q) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
        for (int box = 0; box < N / width; box++) {
            const auto loaded = epilogue.template load<width>(p + warp * 16, q + box * width);
            if (issuer()) kw::tma_store_wait<Buffers - 1>();
            sync();
            const unsigned buffer = buffers + next * box_bytes;
#pragma unroll
            for (int j = 0; j < width / 16; j++) {
                // 16 x 16 sums: the matrices (rows 0-7, columns 0-7), (8-15, 0-7), (0-7, 8-15), (8-15, 8-15)
                float x[8];
#pragma unroll
                for (int i = 0; i < 8; i++) x[i] = sums[box * (width / 2) + j * 8 + i];
                epilogue.apply(x, loaded, j * 2);
                epilogue.apply(x + 4, loaded, j * 2 + 1);
                unsigned r0 = kw::pack2<Element>(x[0], x[1]), r1 = kw::pack2<Element>(x[2], x[3]);
                unsigned r2 = kw::pack2<Element>(x[4], x[5]), r3 = kw::pack2<Element>(x[6], x[7]);
                if constexpr (Swap) {
                    int row = j * 16 + lane / 16 * 8 + lane % 8, chunk = warp * 2 + lane / 8 % 2;
                    kw::stmatrix_x4_trans(buffer + Buffer::offset(row, chunk), r0, r1, r2, r3);
                } else {
                    kw::stmatrix_x4(buffer + Buffer::offset(lane % 16, j * 2 + lane / 16), r0, r1, r2, r3);
                }
            }
            kw::fence_async_proxy();
            sync();
            if (issuer()) {
                int column = q + box * width;
                if constexpr (Swap)
                    kw::tma_store(map_c, buffer, p, column);
                else
                    kw::tma_store(map_c, buffer, column, p + warp * 16);
            }
            if (++next == Buffers) next = 0;
        }
    }

    /// Before the block ends: its shared memory must outlive the stores.
    static __device__ __forceinline__ void finish() {
        if (issuer()) kw::tma_store_wait<0>();
    }
};
