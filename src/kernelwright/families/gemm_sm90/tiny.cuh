// C = A B for the tiniest products: mma.sync on fragments that come straight from global memory. Every warp has a tile of its own;
// with warps_k = 1 it loads, multiplies and stores without shared memory and without a barrier. With more, warps that share a tile
// take parts of K, and their sums meet in shared memory, added in the order of the warps.
//
// m16n8k16 wants of lane (g, t) = (lane / 4, lane % 4) the pairs k = 2t, 2t + 1 and 2t + 8, 2t + 9 of row g, and gives it columns
// 2t, 2t + 1 of C. Which k and which row of the matrix these stand for is free, since K is a sum and rows are separate addresses:
//   K      pair h of lane t in the m-th of the two mma of a step of 32 is k = 8 t + 4 m + 2 h and the next (m, h = 0, 1). Where K
//          is contiguous, a lane's 16 bytes are thus its operands of both.
//   rows   place c of the i-th of Group fragments is row c / 2 * 2 Group + 2 i + c % 2. In C a lane then has 2 Group neighbours of
//          a row, one store of up to 16 bytes. Where rows are contiguous, a lane loads 2 Group neighbours of one k, and movmatrix
//          turns each register, 8 x 8 elements over the warp, into the fragment of exactly these rows.
// The loads allocate in L1, where warps of a block that share rows of Q meet.
#include "kernelwright/copy.cuh"
#include "kernelwright/epilogue.cuh"
#include "kernelwright/layout.cuh"
#include "kernelwright/mma.cuh"
#include "kernelwright/numeric.cuh"
#include "kernelwright/pdl.cuh"
#include "sums.cuh"

// config: begin (render.py fills in another)
struct Config {
    using Element = kw::f16;
    static constexpr bool p_k_contiguous = true, q_k_contiguous = true;
    static constexpr bool swap = false;
    static constexpr bool fp16_accumulate = false;
    static constexpr int block_p = 16, block_q = 16, block_k = 32;
    static constexpr kw::Steps epilogue = {};
    static constexpr int warps_p = 1, warps_k = 2;
    static constexpr int batches = 1;         // loads of block_k that each warp makes; warps_k * batches * block_k is at least K
    static constexpr bool full_tiles = false;  // P, Q and K are multiples: nothing is checked
    static constexpr bool wide_store = true;   // rows of C are whole chunks of 16 bytes
};
// config: end

using Element = Config::Element;
constexpr int threads = Config::warps_p * Config::warps_k * 32;
constexpr int warp_p = Config::block_p / Config::warps_p, steps = Config::block_k / 32;
constexpr int eighths_p = warp_p / 8, eighths_q = Config::block_q / 8, fragments = eighths_p / 2 * eighths_q;
constexpr int group_p = Config::p_k_contiguous ? 1 : kw::smaller(4, eighths_p);  // rows of P lie anywhere in C: their own order is cheapest
constexpr int group_q = kw::smaller(4, eighths_q), neighbours = 2 * group_q;

/// An mma waits about 33 cycles for the sums of the one before, and issues in 8: few fragments are summed in several chains.
constexpr int chains = kw::smaller(steps * 2, fragments <= 8 ? kw::larger(2, 4 / fragments) : 1);

__device__ __forceinline__ unsigned lane() { return threads == 32 ? threadIdx.x : threadIdx.x % 32; }

/// The row, of 8 * Group, that place g of fragment i of a group stands for: row_of<Group>(g, 0) + row_of<Group>(0, i).
template <int Group>
__device__ __forceinline__ constexpr int row_of(unsigned g, int i) {
    return i / Group * 8 * Group + i % Group * 2 + (Group == 1 ? g : g / 2 * 2 * Group + g % 2);
}

// ------------------------------------------------------------------------------------------------------------------- loads

/// A warp's rows of an operand for block_k of K. words[s][i][2m + h]: pair h of the m-th mma of step s, for the i-th 8 rows.
template <int Rows, bool KContiguous, int Group>
struct Operand {
    const Element* source;  // of this lane's first load
    unsigned ld_bytes;
    int rows_left, k_left;
    unsigned words[steps][Rows / 8][4];

    __device__ __forceinline__ Operand(const Element* matrix, int ld, int first_row, int rows, int first_k, int K)
        : ld_bytes(ld * 2u) {
        const unsigned g = lane() / 4, t = lane() % 4;
        const int row = first_row + (KContiguous ? row_of<Group>(g, 0) : t * 2 * Group);
        const int k = first_k + (KContiguous ? t * 8 : g / 2 * 8 + g % 2);
        source = matrix + (KContiguous ? k : row);
        source = kw::opaque(line(KContiguous ? row : k));
        rows_left = rows - row, k_left = K - k;
    }

    /// `count` lines of the matrix further: one instruction.
    __device__ __forceinline__ const Element* line(unsigned count) const {
        return reinterpret_cast<const Element*>(reinterpret_cast<const char*>(source) + (unsigned long long)ld_bytes * count);
    }

    __device__ __forceinline__ bool present(int row, int k) const {
        return Config::full_tiles || (row < rows_left && k < k_left);
    }

    __device__ __forceinline__ void load(int first) {
#pragma unroll
        for (int s = 0; s < steps; s++) {
#pragma unroll
            for (int i = 0; i < Rows / 8; i += KContiguous ? 1 : Group) {
                if constexpr (KContiguous) {
                    const int row = row_of<Group>(0, i), k = first + s * 32;
                    kw::load_global_or_zero(words[s][i], line(row) + k, present(row, k));
                } else {
#pragma unroll
                    for (int pair = 0; pair < 4; pair++) {
                        const int row = i * 8, k = first + s * 32 + pair * 2;
                        unsigned found[Group];
                        kw::load_global_or_zero(found, line(k) + row, present(row, k));
#pragma unroll
                        for (int j = 0; j < Group; j++) words[s][i + j][pair] = found[j];
                    }
                }
            }
        }
    }

    /// A pair of the i-th 8 rows, as mma wants it.
    __device__ __forceinline__ void arrange(int s) {
        if constexpr (!KContiguous) {
#pragma unroll
            for (int i = 0; i < Rows / 8; i++) {
#pragma unroll
                for (int pair = 0; pair < 4; pair++) words[s][i][pair] = kw::movmatrix_trans(words[s][i][pair]);
            }
        }
    }
};

__device__ __forceinline__ void multiply_add(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    if constexpr (kw::is_bf16<Element>)
        kw::mma_bf16_f32(d, a, b);
    else
        kw::mma_f16_f32(d, a, b);
}
__device__ __forceinline__ void multiply_add(unsigned (&d)[2], const unsigned (&a)[4], const unsigned (&b)[2]) {
    kw::mma_f16_f16(d, a, b);
}

// ------------------------------------------------------------------------------------------------------------------- store

struct Output {
    Element* c;
    int ld, rows, columns;

    /// Neighbours of a row of C.
    template <int Count>
    __device__ __forceinline__ void store(const float (&x)[Count], int m, int n) const {
        unsigned words[Count / 2];
#pragma unroll
        for (int i = 0; i < Count / 2; i++) words[i] = kw::pack2<Element>(x[i * 2], x[i * 2 + 1]);
        Element* to = c + (long long)m * ld + n;
        if constexpr (Config::wide_store) {
            kw::store_global_if(to, words, Config::full_tiles || (m < rows && n < columns));
        } else if (m < rows) {
#pragma unroll
            for (int e = 0; e < Count; e++)
                if (n + e < columns) kw::store_global_2(to + e, words[e / 2] >> e % 2 * 16);
        }
    }
};

/// A lane's sums as rows of C: x[i][j] are the neighbours in row row_of<group_p>(lane / 4, i) from column (j * 4 + lane % 4) * neighbours on.
using Rows = float[eighths_p][eighths_q / group_q][neighbours];

__device__ __forceinline__ void as_rows(Rows& x, const float (&sums)[chains][fragments][4]) {
#pragma unroll
    for (int i = 0; i < eighths_p; i++) {
#pragma unroll
        for (int column = 0; column < eighths_q * 2; column++) {
            float sum = 0.f;
#pragma unroll
            for (int chain = 0; chain < chains; chain++) {
                const float part = sums[chain][i / 2 * eighths_q + column / 2][i % 2 * 2 + column % 2];
                sum = chain == 0 ? part : sum + part;
            }
            x[i][column / neighbours][column % neighbours] = sum;
        }
    }
}

/// Straight from the registers: what the epilogue loads for all rows, and then all stores.
__device__ __forceinline__ void store_rows(Rows& x, const kw::Epilogue<Config>& epilogue, const Output& out, int first_p, int first_q) {
    const int m = first_p + row_of<group_p>(lane() / 4, 0), n = first_q + lane() % 4 * neighbours;
#pragma unroll
    for (int i = 0; i < eighths_p; i++) {
#pragma unroll
        for (int j = 0; j < eighths_q / group_q; j++)
            epilogue.row_sums(x[i][j], m + row_of<group_p>(0, i), n + j * 4 * neighbours);
    }
#pragma unroll
    for (int i = 0; i < eighths_p; i++) {
#pragma unroll
        for (int j = 0; j < eighths_q / group_q; j++) out.store(x[i][j], m + row_of<group_p>(0, i), n + j * 4 * neighbours);
    }
}

/// Shared memory, where K is split: warp after warp along K, block_p rows of block_q floats. The padding of 4 floats sets
/// neighbouring rows into different banks.
constexpr int row_bytes = (Config::block_q + 4) * 4, tile_bytes = Config::block_p * row_bytes;

__device__ __forceinline__ void put(const Rows& x, unsigned tile, int first_row) {
#pragma unroll
    for (int i = 0; i < eighths_p; i++) {
#pragma unroll
        for (int j = 0; j < eighths_q / group_q; j++) {
            const unsigned to = tile + (first_row + row_of<group_p>(lane() / 4, i)) * row_bytes + (j * 4 + lane() % 4) * neighbours * 4;
            const float(&v)[neighbours] = x[i][j];
            if constexpr (neighbours == 2) {
                kw::store_shared_4(to, __float_as_uint(v[0])), kw::store_shared_4(to + 4, __float_as_uint(v[1]));
            } else {
#pragma unroll
                for (int e = 0; e < neighbours; e += 4)
                    kw::store_shared_float4(to + e * 4, make_float4(v[e], v[e + 1], v[e + 2], v[e + 3]));
            }
        }
    }
}

/// Each thread adds the parts of 8 neighbours, and stores them.
__device__ __forceinline__ void store_totals(unsigned tiles, const kw::Epilogue<Config>& epilogue, const Output& out, int first_p,
                                             int first_q) {
    constexpr int chunks = eighths_q, count = Config::block_p * chunks;
#pragma unroll
    for (int first = 0; first < count; first += threads) {
        const unsigned index = first + threadIdx.x, row = index / chunks, column = index % chunks * 8;
        if (first + threads > count && index >= count) break;
        float x[8];
#pragma unroll
        for (int w = 0; w < Config::warps_k; w++) {
            const unsigned from = tiles + w * tile_bytes + row * row_bytes + column * 4;
            const float4 low = kw::load_shared_float4(from), high = kw::load_shared_float4(from + 16);
            const float part[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
            for (int e = 0; e < 8; e++) x[e] = w == 0 ? part[e] : x[e] + part[e];
        }
        epilogue.row_sums(x, first_p + row, first_q + column);
        out.store(x, first_p + row, first_q + column);
    }
}

// ------------------------------------------------------------------------------------------------------------------ kernel

/// Grid: (tiles along P, tiles along Q). Dynamic shared memory: warps_k * tile_bytes, none where warps_k is 1. Chunks of 8 along
/// whatever is contiguous are whole.
extern "C" __global__ void __launch_bounds__(threads, 1)
    gemm(const Element* p, const Element* q, Element* c, int P, int Q, int K, int ld_p, int ld_q, int ld_c,
         const Element* bias, const Element* addend, int ld_addend, float alpha, float beta) {
    const int warp = threads == 32 ? 0 : threadIdx.x / 32, warp_k = warp / Config::warps_p;
    const int row_in_block = warp % Config::warps_p * warp_p, first_p = blockIdx.x * Config::block_p + row_in_block;
    const int first_q = blockIdx.y * Config::block_q, first_k = warp_k * (Config::batches * Config::block_k);
    Operand<warp_p, Config::p_k_contiguous, group_p> left(p, ld_p, first_p, P, first_k, K);
    Operand<Config::block_q, Config::q_k_contiguous, group_q> right(q, ld_q, first_q, Q, first_k, K);
    kw::launch_dependents();
    kw::grid_dependency_wait();

    RunningSums<4, Config::fp16_accumulate>::Array running[chains][fragments] = {};
    // An mma wants its four registers of P side by side, which those of two rows are not. ptxas 13.0 would move them anew for each mma,
    // 64 times instead of 16 (16 x 32, K = 64), and order the mma by that; of an operation it keeps the result.
    const unsigned zero = Config::p_k_contiguous ? kw::unknown_zero() : 0;
#pragma unroll 1
    for (int batch = 0; batch < Config::batches; batch++) {
        left.load(batch * Config::block_k);
        right.load(batch * Config::block_k);
        kw::launch_dependents();  // again, for nothing but that ptxas moves no load past it, and so no load behind an mma
#pragma unroll
        for (int s = 0; s < steps; s++) {
            left.arrange(s), right.arrange(s);
#pragma unroll
            for (int m = 0; m < 2; m++) {
#pragma unroll
                for (int i = 0; i < eighths_p / 2; i++) {
                    const auto &top = left.words[s][i * 2], &bottom = left.words[s][i * 2 + 1];
                    const unsigned a[4] = {zero | top[m * 2], zero | bottom[m * 2], zero | top[m * 2 + 1], zero | bottom[m * 2 + 1]};
#pragma unroll
                    for (int j = 0; j < eighths_q; j++) {
                        const auto& columns = right.words[s][j];
                        multiply_add(running[(s * 2 + m) % chains][i * eighths_q + j], a, {columns[m * 2], columns[m * 2 + 1]});
                    }
                }
            }
        }
    }

    float room[chains][fragments][4];
    auto& sums = as_floats(running, room);
    Rows x;
    as_rows(x, sums);
    const kw::Epilogue<Config> epilogue = {bias, addend, ld_addend, alpha, beta, P, Q};
    const Output out = {c, ld_c, P, Q};
    if constexpr (Config::warps_k > 1) {
        extern __shared__ __align__(128) unsigned char dynamic_smem[];
        const unsigned smem = kw::shared_address(dynamic_smem);
        put(x, smem + warp_k * tile_bytes, row_in_block);
        __syncthreads();
        store_totals(smem, epilogue, out, first_p - row_in_block, first_q);
    } else {
        store_rows(x, epilogue, out, first_p, first_q);
    }
}
