// C = A B in fp32 on the ordinary FMA units (no TF32: every product and sum is a real fp32 one), Ampere and later.
//
// A block computes block_m x block_n of C, each thread thread_m x thread_n of it. Steps of block_k lie in shared memory as
// [k][m] and [k][n], so that a thread reads its operands as 16-byte vectors; `stages` steps at a time. A k-contiguous
// operand is turned on the way in, by 4-byte cp.async with a scattered destination; the other kind is copied as it is.
#include "kernelwright/copy.cuh"
#include "kernelwright/layout.cuh"
#include "kernelwright/pdl.cuh"

// config: begin (render.py fills in another)
struct Config {
    static constexpr bool a_k_contiguous = true;
    static constexpr bool b_k_contiguous = false;
    static constexpr int block_m = 128, block_n = 128, block_k = 16;
    static constexpr int thread_m = 8, thread_n = 8;
    static constexpr int stages = 3;
    static constexpr int blocks_per_sm = 1;    // how many ptxas shall make room for in the register file
    static constexpr int split_k = 1;
    static constexpr bool one_kernel = false;  // split-K: the last block reduces, else a second kernel
    static constexpr int raster_group = 8;     // tile rows walked together; 0: blockIdx.x, y are the tile
    static constexpr int vector_bytes = 16;    // size of one copy of an operand that is not k-contiguous: 16 or 4
};
// config: end

using Element = float;
constexpr int threads_m = Config::block_m / Config::thread_m, threads_n = Config::block_n / Config::thread_n;
constexpr int threads = threads_m * threads_n;
constexpr int vectors_m = Config::thread_m / 4, vectors_n = Config::thread_n / 4;

__device__ __forceinline__ void store_element(Element* to, float value) { kw::store_global_float(to, value); }

#include "split_k.cuh"

/// One operand's step in shared memory, and one thread's share of its copies. Extent is block_m or block_n.
template <bool KContiguous, int Extent>
struct Operand {
    // 4 floats of padding shift neighbouring k by 4 banks: without it the scattered stores of 16 k would meet in one bank
    static constexpr int row_floats = Extent + (KContiguous ? 4 : 0);
    static constexpr int bytes = Config::block_k * row_floats * 4;
    static constexpr int width = KContiguous ? 1 : Config::vector_bytes / 4;  // floats a copy
    static constexpr int rows = KContiguous ? Extent : Config::block_k;        // of the tile as it lies in global memory
    static constexpr int across = (KContiguous ? Config::block_k : Extent) / width;
    static constexpr int rows_per_pass = threads / across;
    static constexpr int passes = kw::ceil_div(rows, rows_per_pass);
    static_assert(threads % across == 0, "a thread keeps its column over all passes");

    const float* source;  // this thread's first element of the next step
    size_t pass_stride, step_stride;
    int row, column;
    int present;  // elements from this thread's first one to the end of the operand's other axis (M or N)

    __device__ __forceinline__ Operand(const float* matrix, int ld, int first, int extent, int first_k) {
        row = threadIdx.x / across;
        column = threadIdx.x % across * width;
        pass_stride = size_t(rows_per_pass) * ld;
        if constexpr (KContiguous) {
            source = matrix + size_t(first + row) * ld + first_k + column;
            step_stride = Config::block_k;
            present = extent - first - row;
        } else {
            source = matrix + size_t(first_k + row) * ld + first + column;
            step_stride = size_t(Config::block_k) * ld;
            present = extent - first - column;
        }
    }

    __device__ __forceinline__ void copy(unsigned slot, int k_left) const {
        const unsigned to = slot + (KContiguous ? column * row_floats + row : row * row_floats + column) * 4;
#pragma unroll
        for (int pass = 0; pass < passes; pass++) {
            const int down = pass * rows_per_pass;
            if (rows % rows_per_pass != 0 && row + down >= rows) break;
            const bool exists = KContiguous ? column < k_left && down < present : row + down < k_left && 0 < present;
            kw::cp_async_or_zero<width * 4>(to + down * (KContiguous ? 1 : row_floats) * 4, source + pass * pass_stride, exists);
        }
    }

    __device__ __forceinline__ void advance() { source += step_stride; }
};

using OperandA = Operand<Config::a_k_contiguous, Config::block_m>;
using OperandB = Operand<Config::b_k_contiguous, Config::block_n>;
constexpr int stage_bytes = OperandA::bytes + OperandB::bytes;
constexpr int flag_offset = Config::stages * stage_bytes;

/// A thread's rows (or columns) come in runs of four, spread over the tile so that a warp reads shared memory in one stroke.
__device__ __forceinline__ int offset_in_tile(int thread, int threads_along, int vector) { return (vector * threads_along + thread) * 4; }

/// a, b, c: as stored, rows ld_x elements apart. Grid: (tiles, 1, split_k), or (tiles along M, along N, split_k) without raster
/// order. partials, counters: split-K only. Dynamic shared memory: flag_offset + 16 bytes.
extern "C" __global__ void __launch_bounds__(threads, Config::blocks_per_sm)
    gemm(const float* a, const float* b, float* c, int M, int N, int K, int ld_a, int ld_b, int ld_c, float* partials,
         int* counters) {
    extern __shared__ __align__(128) unsigned char dynamic_smem[];
    const unsigned smem = kw::shared_address(dynamic_smem);
    if (M == 0 || N == 0) {
        kw::grid_dependency_wait();  // a launch that ended before its predecessor would let its successor start before that, too
        return;
    }

    const int tiles_m = kw::ceil_div(M, Config::block_m), tiles_n = kw::ceil_div(N, Config::block_n);
    kw::TileCoordinates tile = {int(blockIdx.x), int(blockIdx.y)};
    if constexpr (Config::raster_group > 0) tile = kw::grouped_tile(blockIdx.x, tiles_m, tiles_n, Config::raster_group);
    const int first_m = tile.m * Config::block_m, first_n = tile.n * Config::block_n;
    const int thread_n = threadIdx.x % threads_n, thread_m = threadIdx.x / threads_n;

    const int k_steps = kw::ceil_div(K, Config::block_k), part = blockIdx.z;
    const int begin = k_steps * part / Config::split_k, end = k_steps * (part + 1) / Config::split_k;
    OperandA copy_a(a, ld_a, first_m, M, begin * Config::block_k);
    OperandB copy_b(b, ld_b, first_n, N, begin * Config::block_k);
    kw::grid_dependency_wait();

    int next = begin;  // the next step to copy
    auto copy_step = [&](unsigned slot) {
        if (next < end) {
            copy_a.copy(slot, K - next * Config::block_k);
            copy_b.copy(slot + OperandA::bytes, K - next * Config::block_k);
        }
        kw::cp_async_commit();
        copy_a.advance();
        copy_b.advance();
        next++;
    };
#pragma unroll 1
    for (int stage = 0; stage < Config::stages - 1; stage++) copy_step(smem + stage * stage_bytes);
    unsigned read_slot = smem, write_slot = smem + (Config::stages - 1) * stage_bytes;
    auto following = [&](unsigned slot) {
        return slot == smem + (Config::stages - 1) * stage_bytes ? smem : slot + stage_bytes;
    };

    // sums[(row of the thread) * vectors_n + vector]: four neighbouring columns
    float sums[Config::thread_m * vectors_n][4] = {};
#pragma unroll 1
    for (int step = begin; step < end; step++) {
        kw::cp_async_wait<Config::stages - 2>();  // this step has arrived, for this thread
        __syncthreads();                          // and for all; and all have read the slot that the next copy overwrites
        copy_step(write_slot);
#pragma unroll
        for (int k = 0; k < Config::block_k; k++) {
            float4 x[vectors_m], y[vectors_n];
#pragma unroll
            for (int i = 0; i < vectors_m; i++)
                x[i] = kw::load_shared_float4(read_slot + (k * OperandA::row_floats + offset_in_tile(thread_m, threads_m, i)) * 4);
#pragma unroll
            for (int j = 0; j < vectors_n; j++)
                y[j] = kw::load_shared_float4(read_slot + OperandA::bytes +
                                              (k * OperandB::row_floats + offset_in_tile(thread_n, threads_n, j)) * 4);
#pragma unroll
            for (int i = 0; i < Config::thread_m; i++) {
                const float4 v = x[i / 4];
                const float left = i % 4 == 0 ? v.x : i % 4 == 1 ? v.y : i % 4 == 2 ? v.z : v.w;
#pragma unroll
                for (int j = 0; j < vectors_n; j++) {
                    float(&sum)[4] = sums[i * vectors_n + j];
                    sum[0] = fmaf(left, y[j].x, sum[0]), sum[1] = fmaf(left, y[j].y, sum[1]);
                    sum[2] = fmaf(left, y[j].z, sum[2]), sum[3] = fmaf(left, y[j].w, sum[3]);
                }
            }
        }
        write_slot = following(write_slot);
        read_slot = following(read_slot);
    }
    kw::launch_dependents();

    if constexpr (Config::split_k > 1 && Config::one_kernel) {
        int index = tile.m * tiles_n + tile.n;
        if (!reduce_in_last_block<threads>(sums, partials, counters + index, index, part, Config::split_k, true,
                                           smem + flag_offset))
            return;
    }
    const bool vectors = reinterpret_cast<size_t>(c) % 16 == 0 && ld_c % 4 == 0;
#pragma unroll
    for (int i = 0; i < Config::thread_m; i++) {
#pragma unroll
        for (int j = 0; j < vectors_n; j++) {
            const float(&sum)[4] = sums[i * vectors_n + j];
            int m = first_m + offset_in_tile(thread_m, threads_m, i / 4) + i % 4, n = first_n + offset_in_tile(thread_n, threads_n, j);
            if constexpr (Config::split_k > 1 && !Config::one_kernel) {
                store_partial_pair(partials, part, m, n, M, N, sum[0], sum[1]);
                store_partial_pair(partials, part, m, n + 2, M, N, sum[2], sum[3]);
            } else if (m < M) {
                float* to = c + size_t(m) * ld_c + n;
                if (vectors && n + 4 <= N) {
                    kw::store_global_float4(to, make_float4(sum[0], sum[1], sum[2], sum[3]));
                } else {
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        if (n + e < N) kw::store_global_float(to + e, sum[e]);
                }
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) reduce(const float* partials, float* c, int M, int N, int ld_c) {
    reduce_partials<Element, Config::split_k>(partials, c, M, N, ld_c);
}
