// What the 32 threads of a warp do together.
#pragma once

namespace emulator {

enum {
    op_ldmatrix = 1,
    op_ldmatrix_trans,
    op_stmatrix,
    op_stmatrix_trans,
    op_movmatrix,
    op_mma,
    op_shuffle,
    op_syncwarp,
    op_elect,
    op_registers,
    op_wgmma,
    op_wgmma_fence,
    op_wgmma_commit,
    op_wgmma_wait
};

inline Warp& my_warp() { return block->warps[threadIdx.x / 32]; }

/// Publishes `bytes` (at most 32) of this lane and waits for the whole warp. The last lane to come calls `last` with all lanes'
/// data, before any goes on. Returns all lanes' data.
template <class Last>
const Lanes* collective(int operation, const void* data, int bytes, Last last) {
    Warp& warp = my_warp();
    unsigned mine = warp.generation;
    if (warp.arrived == 0)
        warp.operation = operation;
    else if (warp.operation != operation)
        fail("the lanes of a warp execute different warp-wide instructions");
    if (bytes) memcpy(warp.data[mine % 2][threadIdx.x % 32], data, bytes);
    if (++warp.arrived == 32) {
        last(warp.data[mine % 2]);
        warp.arrived = 0;
        warp.generation++;
    } else
        wait_for_change(warp.generation, mine, "the rest of its warp", threadIdx.x / 32);
    return warp.data[mine % 2];
}

inline const Lanes* exchange(int operation, const void* data, int bytes) {
    return collective(operation, data, bytes, [](const Lanes*) {});
}

}  // namespace emulator
