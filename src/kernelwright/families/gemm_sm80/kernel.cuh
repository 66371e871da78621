// C = A B for 16-bit types on the tensor cores of Ampere and later: cp.async pipeline, swizzled shared memory, mma.sync.
//
// A block computes block_m x block_n of C. K is walked in steps of block_k; `stages` steps of A and B lie in shared memory at a
// time, stages - 1 of them on their way. Each warp owns (block_m / warps_m) x (block_n / warps_n) of the tile; with
// warps_k > 1, groups of warps share a tile and each takes its own part of every step. Fragments are double-buffered in
// registers: while one 16-wide slice of K is multiplied, the next is read from shared memory.
//
// An operand is `k_contiguous` when neighbours along K are neighbours in memory (A: layout n, B: layout t). Both kinds
// are copied as they are and turned, where need be, by ldmatrix on the way to registers.
#include "kernelwright/copy.cuh"
#include "kernelwright/epilogue.cuh"
#include "kernelwright/layout.cuh"
#include "kernelwright/mma.cuh"
#include "kernelwright/numeric.cuh"
#include "kernelwright/pdl.cuh"

/// How far the matrix may miss the tile grid.
enum class Tails {
    none,   // M, N, K are multiples of the tile: nothing is checked
    chunk,  // the contiguous extents are multiples of vector_bytes: a copy is whole or absent
    any,    // a copy may be cut at any element
};

// config: begin (render.py fills in another)
struct Config {
    using Element = kw::f16;
    static constexpr bool a_k_contiguous = true;
    static constexpr bool b_k_contiguous = false;
    static constexpr bool fp16_accumulate = false;
    static constexpr int block_m = 128, block_n = 128, block_k = 64;
    static constexpr int warps_m = 2, warps_n = 2, warps_k = 1;
    static constexpr int stages = 3;
    static constexpr int blocks_per_sm = 1;    // how many ptxas shall make room for in the register file
    static constexpr int split_k = 1;
    static constexpr bool one_kernel = false;  // split-K: the last block reduces, else a second kernel
    static constexpr int raster_group = 8;     // tile rows walked together; 0: blockIdx.x, y are the tile
    static constexpr int vector_bytes = 16;    // size of one copy from global memory; 2: through registers, any alignment
    static constexpr Tails tails = Tails::chunk;
    static constexpr bool staged_store = true;  // C through shared memory in 16-byte stores, else straight from registers
    static constexpr bool swap = false;         // C is not the transpose of what is multiplied (epilogue.cuh)
    static constexpr kw::Steps epilogue = {};
};
// config: end

using Element = Config::Element;
constexpr int threads = 32 * Config::warps_m * Config::warps_n * Config::warps_k;
constexpr int group_threads = threads / Config::warps_k;  // threads that together hold one tile of sums
constexpr int warp_m = Config::block_m / Config::warps_m, warp_n = Config::block_n / Config::warps_n;
constexpr int fragments_m = warp_m / 16, fragments_n = warp_n / 8;
constexpr int fragments = fragments_m * fragments_n;
constexpr int slices = Config::block_k / 16 / Config::warps_k;  // 16-wide slices of K that one warp takes of each step
static_assert(slices % 2 == 0, "the two fragment buffers alternate: a warp needs an even number of slices a step");

__device__ __forceinline__ void store_element(Element* to, float value) { kw::store_global_2(to, kw::pack2<Element>(value, 0.f)); }

#include "split_k.cuh"

// ------------------------------------------------------------------------------------------- global memory to shared memory

/// Copies one 16-byte chunk of 8 elements in pieces of V bytes, of which the first `present` (negative: none) exist; the others become zero.
template <int V>
__device__ __forceinline__ void copy_chunk(unsigned to, const Element* from, int present) {
    if constexpr (V == 2) {
        unsigned short e[8];
#pragma unroll
        for (int i = 0; i < 8; i++) e[i] = i < present ? kw::load_global_2(from + i) : static_cast<unsigned short>(0);
        kw::store_shared_16(to, make_uint4(e[0] | unsigned(e[1]) << 16, e[2] | unsigned(e[3]) << 16,
                                           e[4] | unsigned(e[5]) << 16, e[6] | unsigned(e[7]) << 16));
    } else {
#pragma unroll
        for (int i = 0; i < 16; i += V) {
            if constexpr (Config::tails == Tails::none)
                kw::cp_async<V>(to + i, from + i / 2);
            else if constexpr (Config::tails == Tails::chunk)
                kw::cp_async_or_zero<V>(to + i, from + i / 2, i / 2 < present);
            else
                kw::cp_async_partial<V>(to + i, from + i / 2, kw::larger(0, kw::smaller(V, present * 2 - i)));
        }
    }
}

/// One thread's share of the copies of one operand. Extent is block_m or block_n.
template <bool KContiguous, int Extent>
struct Operand {
    static constexpr int rows = KContiguous ? Extent : Config::block_k;
    static constexpr int chunks = (KContiguous ? Config::block_k : Extent) / 8;
    using Tile = kw::SwizzledTile<rows, chunks>;
    static constexpr int rows_per_pass = threads / chunks;
    static constexpr int passes = kw::ceil_div(rows, rows_per_pass);
    static_assert(threads % chunks == 0, "a thread keeps its chunk column over all passes");

    const Element* source;  // this thread's first chunk of the next step
    size_t pass_stride, step_stride;
    int row, chunk;
    int present;  // elements from this thread's first chunk to the end of the operand's other axis (M or N)

    __device__ __forceinline__ Operand(const Element* matrix, int ld, int first, int extent, int first_k) {
        row = threadIdx.x / chunks;
        chunk = threadIdx.x % chunks;
        pass_stride = size_t(rows_per_pass) * ld;
        if constexpr (KContiguous) {
            source = matrix + size_t(first + row) * ld + first_k + chunk * 8;
            step_stride = Config::block_k;
            present = extent - first - row;
        } else {
            source = matrix + size_t(first_k + row) * ld + first + chunk * 8;
            step_stride = size_t(Config::block_k) * ld;
            present = extent - first - chunk * 8;
        }
    }

    /// Issues one of `parts` equal parts of one step's copies. `k_left`: K minus the step's first k.
    __device__ __forceinline__ void copy(unsigned slot, int k_left, int part, int parts) const {
#pragma unroll
        for (int pass = 0; pass < passes; pass++) {
            if (pass * parts / passes != part) continue;
            int r = row + pass * rows_per_pass;
            if (rows % rows_per_pass != 0 && r >= rows) continue;
            int exist;
            if constexpr (KContiguous)
                exist = pass * rows_per_pass < present ? k_left - chunk * 8 : 0;
            else
                exist = r < k_left ? present : 0;
            copy_chunk<Config::vector_bytes>(slot + Tile::offset(r, chunk), source + pass * pass_stride, exist);
        }
    }

    __device__ __forceinline__ void advance() { source += step_stride; }
};

using OperandA = Operand<Config::a_k_contiguous, Config::block_m>;
using OperandB = Operand<Config::b_k_contiguous, Config::block_n>;
constexpr int stage_bytes = OperandA::Tile::bytes + OperandB::Tile::bytes;

// ------------------------------------------------------------------------------------------------ shared memory to registers

/// The warp's A fragments of one 16-wide slice: matrices of ldmatrix in the order (rows 0-7, k 0-7), (8-15, 0-7), (0-7, 8-15),
/// (8-15, 8-15), as mma wants them.
__device__ __forceinline__ void load_a(unsigned (&a)[fragments_m][4], unsigned tile, int first_m, int slice, int lane) {
#pragma unroll
    for (int i = 0; i < fragments_m; i++) {
        if constexpr (Config::a_k_contiguous)
            kw::ldmatrix_x4(a[i], tile + OperandA::Tile::offset(first_m + i * 16 + lane % 16, slice * 2 + lane / 16));
        else
            kw::ldmatrix_x4_trans(a[i], tile + OperandA::Tile::offset(slice * 16 + lane / 16 * 8 + lane % 8,
                                                                      first_m / 8 + i * 2 + lane / 8 % 2));
    }
}

/// The warp's B fragments: one ldmatrix serves two 8-wide columns: (n 0-7, k 0-7), (0-7, 8-15), (8-15, 0-7), (8-15, 8-15).
__device__ __forceinline__ void load_b(unsigned (&b)[fragments_n][2], unsigned tile, int first_n, int slice, int lane) {
#pragma unroll
    for (int j = 0; j < fragments_n; j += 2) {
        unsigned r[4];
        if constexpr (Config::b_k_contiguous)
            kw::ldmatrix_x4(r, tile + OperandB::Tile::offset(first_n + j * 8 + lane / 16 * 8 + lane % 8,
                                                             slice * 2 + lane / 8 % 2));
        else
            kw::ldmatrix_x4_trans(r, tile + OperandB::Tile::offset(slice * 16 + lane % 16, first_n / 8 + j + lane / 16));
        b[j][0] = r[0], b[j][1] = r[1], b[j + 1][0] = r[2], b[j + 1][1] = r[3];
    }
}

// ---------------------------------------------------------------------------------------------------------------- multiply

/// The running sum of one 16 x 8 fragment.
template <bool Half>
struct Accumulator {
    float value[4] = {0.f, 0.f, 0.f, 0.f};
};
template <>
struct Accumulator<true> {
    unsigned value[2] = {0u, 0u};
};
using Sum = Accumulator<Config::fp16_accumulate>;

__device__ __forceinline__ void multiply_add(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    if constexpr (kw::is_bf16<Element>)
        kw::mma_bf16_f32(d, a, b);
    else
        kw::mma_f16_f32(d, a, b);
}
__device__ __forceinline__ void multiply_add(unsigned (&d)[2], const unsigned (&a)[4], const unsigned (&b)[2]) {
    kw::mma_f16_f16(d, a, b);
}

__device__ __forceinline__ void to_floats(const float (&d)[4], float (&sum)[4]) {
#pragma unroll
    for (int e = 0; e < 4; e++) sum[e] = d[e];
}
__device__ __forceinline__ void to_floats(const unsigned (&d)[2], float (&sum)[4]) {
    kw::unpack2<Element>(d[0], sum[0], sum[1]);
    kw::unpack2<Element>(d[1], sum[2], sum[3]);
}

__device__ __forceinline__ void multiply(Sum (&sums)[fragments], const unsigned (&a)[fragments_m][4],
                                         const unsigned (&b)[fragments_n][2]) {
#pragma unroll
    for (int i = 0; i < fragments_m; i++) {
#pragma unroll
        for (int jj = 0; jj < fragments_n; jj++) {
            int j = i % 2 ? fragments_n - 1 - jj : jj;  // back and forth: neighbouring mma share an operand
            multiply_add(sums[i * fragments_n + j].value, a[i], b[j]);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------- epilogue

// After the last step's barrier no warp reads the stages any more (but for fragments of a step that does not exist, which are not
// used), so the epilogue may overwrite them at once.

/// Adds up the sums of the warps_k groups, in their order, in the first group. One 16-byte word a fragment and thread.
__device__ __forceinline__ void reduce_warp_groups(float (&sums)[fragments][4], unsigned smem) {
    const int group = threadIdx.x / group_threads, member = threadIdx.x % group_threads;
    if (group > 0) {
#pragma unroll
        for (int i = 0; i < fragments; i++)
            kw::store_shared_float4(smem + (((group - 1) * fragments + i) * group_threads + member) * 16,
                                    make_float4(sums[i][0], sums[i][1], sums[i][2], sums[i][3]));
    }
    __syncthreads();
    if (group > 0) return;
#pragma unroll
    for (int g = 0; g < Config::warps_k - 1; g++) {
#pragma unroll
        for (int i = 0; i < fragments; i++) {
            float4 v = kw::load_shared_float4(smem + ((g * fragments + i) * group_threads + member) * 16);
            sums[i][0] += v.x, sums[i][1] += v.y, sums[i][2] += v.z, sums[i][3] += v.w;
        }
    }
}

/// To a warp's sums, which start at (m, n) of C.
__device__ __forceinline__ void apply_epilogue(float (&sums)[fragments][4], const kw::Epilogue<Config>& epilogue, int m, int n) {
    constexpr int batch = fragments_n % 4 == 0 ? 4 : 2;  // fragments whose loads go out together
    if constexpr (!kw::Epilogue<Config>::identity) {
#pragma unroll
        for (int i = 0; i < fragments; i += batch) {
            const auto loaded = epilogue.template load<batch * 8>(m + i / fragments_n * 16, n + i % fragments_n * 8);
#pragma unroll
            for (int j = 0; j < batch; j++) epilogue.apply(sums[i + j], loaded, j);
        }
    }
}

/// Rounds the tile into shared memory, then writes it in 16-byte stores, neighbouring threads along rows.
__device__ __forceinline__ void store_staged(const float (&sums)[fragments][4], Element* c, int ld_c, int first_m, int first_n,
                                             int warp_first_m, int warp_first_n, int M, int N, bool owner, unsigned smem) {
    using Tile = kw::SwizzledTile<Config::block_m, Config::block_n / 8>;
    const int lane = threadIdx.x % 32;
    if constexpr (Config::warps_k > 1) __syncthreads();  // the groups' sums have been read
    if (owner) {
#pragma unroll
        for (int i = 0; i < fragments_m; i++) {
#pragma unroll
            for (int j = 0; j < fragments_n; j += 2) {
                const float(&left)[4] = sums[i * fragments_n + j];
                const float(&right)[4] = sums[i * fragments_n + j + 1];
                unsigned r0 = kw::pack2<Element>(left[0], left[1]), r1 = kw::pack2<Element>(left[2], left[3]);
                unsigned r2 = kw::pack2<Element>(right[0], right[1]), r3 = kw::pack2<Element>(right[2], right[3]);
                int m = warp_first_m + i * 16, chunk = warp_first_n / 8 + j;
#if __CUDA_ARCH__ >= 900
                kw::stmatrix_x4(smem + Tile::offset(m + lane % 16, chunk + lane / 16), r0, r1, r2, r3);
#else
                int top = m + lane / 4, within = lane % 4 * 4;
                kw::store_shared_4(smem + Tile::offset(top, chunk) + within, r0);
                kw::store_shared_4(smem + Tile::offset(top + 8, chunk) + within, r1);
                kw::store_shared_4(smem + Tile::offset(top, chunk + 1) + within, r2);
                kw::store_shared_4(smem + Tile::offset(top + 8, chunk + 1) + within, r3);
#endif
            }
        }
    }
    __syncthreads();
    constexpr int all = Tile::rows * Tile::chunks;
    if (Config::tails == Tails::none || (first_m + Config::block_m <= M && first_n + Config::block_n <= N)) {
#pragma unroll
        for (int pass = 0; pass < kw::ceil_div(all, threads); pass++) {
            int index = pass * threads + threadIdx.x;
            if (all % threads != 0 && index >= all) break;
            int row = index / Tile::chunks, chunk = index % Tile::chunks;
            uint4 v = kw::load_shared_16(smem + Tile::offset(row, chunk));
            kw::store_global_16(c + size_t(first_m + row) * ld_c + first_n + chunk * 8, v);
        }
        return;
    }
#pragma unroll 1
    for (int index = threadIdx.x; index < all; index += threads) {
        int row = index / Tile::chunks, chunk = index % Tile::chunks;
        int m = first_m + row, n = first_n + chunk * 8;
        if (m >= M) continue;
        unsigned from = smem + Tile::offset(row, chunk);
        Element* to = c + size_t(m) * ld_c + n;
        if (n + 8 <= N) {
            kw::store_global_16(to, kw::load_shared_16(from));
        } else {
#pragma unroll 1
            for (int e = 0; e < N - n; e++) kw::store_global_2(to + e, kw::load_shared_2(from + e * 2));
        }
    }
}

/// Writes straight from registers: 4 bytes at a time where C's rows allow it, else 2.
__device__ __forceinline__ void store_direct(const float (&sums)[fragments][4], Element* c, int ld_c, int first_m, int first_n,
                                             int M, int N) {
    const int lane = threadIdx.x % 32;
    const bool pairs = (reinterpret_cast<size_t>(c) | size_t(ld_c) * 2) % 4 == 0;
#pragma unroll
    for (int i = 0; i < fragments; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int m = first_m + i / fragments_n * 16 + half * 8 + lane / 4, n = first_n + i % fragments_n * 8 + lane % 4 * 2;
            if (m >= M || n >= N) continue;
            unsigned packed = kw::pack2<Element>(sums[i][half * 2], sums[i][half * 2 + 1]);
            Element* to = c + size_t(m) * ld_c + n;
            if (pairs && n + 1 < N) {
                kw::store_global_4(to, packed);
            } else {
                kw::store_global_2(to, packed);
                if (n + 1 < N) kw::store_global_2(to + 1, packed >> 16);
            }
        }
    }
}

// ------------------------------------------------------------------------------------------------------------------ kernel

/// Shared memory: the stages, over which the epilogue lays its own data, then one word for the last-block flag.
constexpr int epilogue_bytes = kw::larger((Config::warps_k - 1) * Config::block_m * Config::block_n * 4,
                                          Config::staged_store ? Config::block_m * Config::block_n * 2 : 0);
constexpr int flag_offset = kw::larger(Config::stages * stage_bytes, epilogue_bytes);

/// a, b, c: as stored, rows ld_x elements apart. Grid: (tiles, 1, split_k), or (tiles along M, along N, split_k) without raster
/// order. partials, counters: split-K only. Dynamic shared memory: flag_offset + 16 bytes.
extern "C" __global__ void __launch_bounds__(threads, Config::blocks_per_sm)
    gemm(const Element* a, const Element* b, Element* c, int M, int N, int K, int ld_a, int ld_b, int ld_c, float* partials,
         int* counters, const Element* bias, const Element* addend, int ld_addend, float alpha, float beta) {
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

    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int warp_first_m = warp % Config::warps_m * warp_m;
    const int warp_first_n = warp / Config::warps_m % Config::warps_n * warp_n;
    const int first_slice = warp / (Config::warps_m * Config::warps_n) * slices;

    // this block's part of K, in whole steps
    const int k_steps = kw::ceil_div(K, Config::block_k), part = blockIdx.z;
    const int begin = k_steps * part / Config::split_k, end = k_steps * (part + 1) / Config::split_k;

    OperandA copy_a(a, ld_a, first_m, M, begin * Config::block_k);
    OperandB copy_b(b, ld_b, first_n, N, begin * Config::block_k);
    kw::grid_dependency_wait();

    int next = begin;  // the next step to copy
    auto copy_part = [&](unsigned slot, int copy_index, int copies) {
        if (next < end) {
            int k_left = K - next * Config::block_k;
            copy_a.copy(slot, k_left, copy_index, copies);
            copy_b.copy(slot + OperandA::Tile::bytes, k_left, copy_index, copies);
        }
    };
    auto finish_copy = [&] {
        kw::cp_async_commit();
        copy_a.advance();
        copy_b.advance();
        next++;
    };
#pragma unroll 1
    for (int stage = 0; stage < Config::stages - 1; stage++) {
        copy_part(smem + stage * stage_bytes, 0, 1);
        finish_copy();
    }
    unsigned read_slot = smem, write_slot = smem + (Config::stages - 1) * stage_bytes;
    auto following = [&](unsigned slot) {
        return slot == smem + (Config::stages - 1) * stage_bytes ? smem : slot + stage_bytes;
    };

    Sum accumulators[fragments];
    unsigned fragments_a[2][fragments_m][4], fragments_b[2][fragments_n][2];
    auto load_fragments = [&](int buffer, int slice) {
        load_a(fragments_a[buffer], read_slot, warp_first_m, first_slice + slice, lane);
        load_b(fragments_b[buffer], read_slot + OperandA::Tile::bytes, warp_first_n, first_slice + slice, lane);
    };
    kw::cp_async_wait<Config::stages - 2>();
    __syncthreads();
    load_fragments(0, 0);
#pragma unroll 1
    for (int step = begin; step < end; step++) {
#pragma unroll
        for (int slice = 0; slice < slices; slice++) {
            if (slice < slices - 1) load_fragments((slice + 1) % 2, slice + 1);
            // spread, so that copies do not hold up the multiplications; none in the last slice, where the wait follows
            if (slice < slices - 1) copy_part(write_slot, slice, slices - 1);
            if (slice == slices - 1) {
                finish_copy();
                write_slot = following(write_slot);
                read_slot = following(read_slot);
                kw::cp_async_wait<Config::stages - 2>();  // the next step has arrived, for this thread
                __syncthreads();                          // and for all; and all have read this step's slot for the last time
                load_fragments(0, 0);
            }
            multiply(accumulators, fragments_a[slice % 2], fragments_b[slice % 2]);
        }
    }
    kw::launch_dependents();

    const kw::Epilogue<Config> epilogue = {bias, addend, ld_addend, alpha, beta, M, N};
    float sums[fragments][4];
#pragma unroll
    for (int i = 0; i < fragments; i++) to_floats(accumulators[i].value, sums[i]);
    const bool owner = threadIdx.x < group_threads;
    if constexpr (Config::warps_k > 1) reduce_warp_groups(sums, smem);
    if constexpr (Config::split_k > 1 && Config::one_kernel) {
        int index = tile.m * tiles_n + tile.n;
        if (!reduce_in_last_block<group_threads>(sums, partials, counters + index, index, part, Config::split_k, owner,
                                                 smem + flag_offset))
            return;
    }
    if constexpr (Config::split_k > 1 && !Config::one_kernel) {
        if (!owner) return;
#pragma unroll
        for (int i = 0; i < fragments; i++) {
            int m = first_m + warp_first_m + i / fragments_n * 16 + lane / 4;
            int n = first_n + warp_first_n + i % fragments_n * 8 + lane % 4 * 2;
            store_partial_pair(partials, part, m, n, M, N, sums[i][0], sums[i][1]);
            store_partial_pair(partials, part, m + 8, n, M, N, sums[i][2], sums[i][3]);
        }
    } else if constexpr (Config::staged_store) {
        if (owner) apply_epilogue(sums, epilogue, first_m + warp_first_m, first_n + warp_first_n);
        store_staged(sums, c, ld_c, first_m, first_n, warp_first_m, warp_first_n, M, N, owner, smem);
    } else if (owner) {
        apply_epilogue(sums, epilogue, first_m + warp_first_m, first_n + warp_first_n);
        store_direct(sums, c, ld_c, first_m + warp_first_m, first_n + warp_first_n, M, N);
    }
}

extern "C" __global__ void __launch_bounds__(256) reduce(const float* partials, Element* c, int M, int N, int ld_c) {
    reduce_partials<Element, Config::split_k>(partials, c, M, N, ld_c);
}
