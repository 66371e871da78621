// C = A B for the tiniest products, both operands K contiguous: mma.sync on fragments that come straight from global memory.
//
// No shared memory on the way in, no barrier before the first multiplication. Lane (g, t) = (lane / 4, lane % 4) loads 16 bytes,
// which are k = 8 t to 8 t + 7 of row g: four registers where m16n8k16 wants pairs (2t, 2t + 1) and (2t + 8, 2t + 9). K is a sum,
// so its order is free as long as both operands agree: registers 0 and 1 serve as these pairs in one mma, 2 and 3 in the next.
// Each warp takes its own part of K; the partial sums meet in shared memory and are added in the order of the warps.
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
    static constexpr int warps = 2;
    static constexpr int batches = 1;         // loads of block_k that each warp makes; warps * batches * block_k is at least K
    static constexpr bool full_tiles = false;  // P, Q and K are multiples: nothing is checked
    static constexpr bool wide_store = true;   // rows of C are whole chunks of 16 bytes
};
// config: end

using Element = Config::Element;
constexpr int threads = Config::warps * 32;
constexpr int fragments_p = Config::block_p / 16, fragments_q = Config::block_q / 8, fragments = fragments_p * fragments_q;
constexpr int loads = Config::block_k / 32;  // of 16 bytes, of one row, by a lane in a batch
static_assert(Config::p_k_contiguous && Config::q_k_contiguous, "fragments are loaded along K");

/// A lane's rows g, g + 8, g + 16 ... of an operand.
template <int Rows>
struct Reader {
    const Element* source;
    int ld, rows_left;

    __device__ __forceinline__ Reader(const Element* matrix, int ld, int first_row, int rows, int first_k) : ld(ld) {
        const int g = threadIdx.x % 32 / 4;
        source = matrix + (long long)(first_row + g) * ld + first_k;
        rows_left = rows - first_row - g;
    }

    /// Row g + 8 i, from the lane's first k + `k` on, of which k_left exist.
    __device__ __forceinline__ uint4 load(int i, int k, int k_left) const {
        const bool present = Config::full_tiles || (i * 8 < rows_left && k < k_left);
        return present ? kw::load_global_16(source + (long long)ld * (i * 8) + k) : make_uint4(0, 0, 0, 0);
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

// Partial sums lie in shared memory as rows of C: warp after warp, each `rows` rows of `columns` floats. 4 floats of padding make
// the 8 rows of a fragment start in different banks.
constexpr int rows = Config::swap ? Config::block_q : Config::block_p;
constexpr int columns = Config::swap ? Config::block_p : Config::block_q;
constexpr int row_bytes = (columns + 4) * 4, tile_bytes = rows * row_bytes;

__device__ __forceinline__ void put(const float (&sums)[fragments][4], unsigned tile) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < fragments; i++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int p = i / fragments_q * 16 + e / 2 * 8 + g, q = i % fragments_q * 8 + t * 2 + e % 2;
            const int row = Config::swap ? q : p, column = Config::swap ? p : q;
            kw::store_shared_4(tile + row * row_bytes + column * 4, __float_as_uint(sums[i][e]));
        }
    }
}

/// Sum over the warps of four neighbours.
__device__ __forceinline__ float4 total(unsigned from) {
    float4 sum = kw::load_shared_float4(from);
#pragma unroll
    for (int w = 1; w < Config::warps; w++) {
        float4 part = kw::load_shared_float4(from + w * tile_bytes);
        sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
    }
    return sum;
}

__device__ __forceinline__ void store(unsigned tile, const kw::Epilogue<Config>& epilogue, Element* c, int ld_c, int first_row,
                                      int first_column, int M, int N) {
    constexpr int chunks = columns / 8;
#pragma unroll
    for (int i = 0; i < kw::ceil_div(rows * chunks, threads); i++) {
        const unsigned index = i * threads + threadIdx.x;
        const int row = index / chunks, column = index % chunks * 8;
        if (rows * chunks % threads != 0 && index >= rows * chunks) break;
        const unsigned from = tile + row * row_bytes + column * 4;
        const float4 low = total(from), high = total(from + 16);
        const int m = first_row + row, n = first_column + column;
        float x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        epilogue.row_sums(x, m, n);
        const uint4 packed = make_uint4(kw::pack2<Element>(x[0], x[1]), kw::pack2<Element>(x[2], x[3]),
                                        kw::pack2<Element>(x[4], x[5]), kw::pack2<Element>(x[6], x[7]));
        Element* to = c + (long long)m * ld_c + n;
        if constexpr (Config::full_tiles && Config::wide_store) {
            kw::store_global_16(to, packed);
        } else if constexpr (Config::wide_store) {
            kw::store_global_16_if(to, packed, m < M && n < N);
        } else if (m < M) {
            const unsigned words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
            for (int e = 0; e < 8; e++)
                if (n + e < N) kw::store_global_2(to + e, words[e / 2] >> e % 2 * 16);
        }
    }
}

// ------------------------------------------------------------------------------------------------------------------ kernel

/// Grid: (tiles along P, tiles along Q). Dynamic shared memory: warps * tile_bytes. Chunks of 8 along K are whole.
extern "C" __global__ void __launch_bounds__(threads)
    gemm(const Element* p, const Element* q, Element* c, int P, int Q, int K, int ld_p, int ld_q, int ld_c,
         const Element* bias, const Element* addend, int ld_addend, float alpha, float beta) {
    extern __shared__ __align__(128) unsigned char dynamic_smem[];
    const int first_p = blockIdx.x * Config::block_p, first_q = blockIdx.y * Config::block_q;
    const int warp = threadIdx.x / 32;
    const int first_k = warp * (Config::batches * Config::block_k) + threadIdx.x % 4 * 8;
    const Reader<Config::block_p> reader_p(p, ld_p, first_p, P, first_k);
    const Reader<Config::block_q> reader_q(q, ld_q, first_q, Q, first_k);
    kw::launch_dependents();
    kw::grid_dependency_wait();

    RunningSums<4, Config::fp16_accumulate>::Array running[fragments] = {};
#pragma unroll 1
    for (int batch = 0; batch < Config::batches; batch++) {
        const int k = batch * Config::block_k;
        uint4 part_p[loads][fragments_p * 2], part_q[loads][fragments_q];
#pragma unroll
        for (int s = 0; s < loads; s++) {
#pragma unroll
            for (int i = 0; i < fragments_p * 2; i++) part_p[s][i] = reader_p.load(i, k + s * 32, K - first_k);
#pragma unroll
            for (int j = 0; j < fragments_q; j++) part_q[s][j] = reader_q.load(j, k + s * 32, K - first_k);
        }
#pragma unroll
        for (int s = 0; s < loads; s++) {
#pragma unroll
            for (int i = 0; i < fragments; i++) {
                const uint4 &top = part_p[s][i / fragments_q * 2], &bottom = part_p[s][i / fragments_q * 2 + 1];
                const uint4& right = part_q[s][i % fragments_q];
                multiply_add(running[i], {top.x, bottom.x, top.y, bottom.y}, {right.x, right.y});
                multiply_add(running[i], {top.z, bottom.z, top.w, bottom.w}, {right.z, right.w});
            }
        }
    }

    float room[fragments][4];
    const unsigned smem = kw::shared_address(dynamic_smem);
    put(as_floats(running, room), smem + warp * tile_bytes);
    __syncthreads();
    const kw::Epilogue<Config> epilogue = {bias, addend, ld_addend, alpha, beta, P, Q};
    if constexpr (Config::swap)
        store(smem, epilogue, c, ld_c, first_q, first_p, Q, P);
    else
        store(smem, epilogue, c, ld_c, first_p, first_q, P, Q);
}
