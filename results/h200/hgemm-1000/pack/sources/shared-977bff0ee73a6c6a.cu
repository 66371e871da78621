    static constexpr bool full_tiles = true;
    static constexpr bool wide_store = true;
};

using Element = Config::Element;
constexpr int threads = Config::warps_p * Config::warps_k * 32;
constexpr int warp_p = Config::block_p / Config::warps_p, steps = Config::block_k / 32;
constexpr int eighths_p = warp_p / 8, eighths_q = Config::block_q / 8, fragments = eighths_p / 2 * eighths_q;
constexpr int group_p = Config::p_k_contiguous ? 1 : kw::smaller(4, eighths_p);  // C takes rows in any order
constexpr int group_q = kw::smaller(4, eighths_q), groups_q = eighths_q / group_q;

/// An mma waits about 33 cycles for the sums of the one before, and issues in 8: few fragments are summed in several chains.
constexpr int chains = kw::smaller(steps * 2, fragments <= 8 ? kw::larger(2, 4 / fragments) : 1);

__device__ __forceinline__ unsigned lane() { return threads == 32 ? threadIdx.x : threadIdx.x % 32; }

/// The row that place g of the i-th 8 rows stands for: row_of<Group>(g, 0) + row_of<Group>(0, i).
template <int Group>
__device__ __forceinline__ constexpr int row_of(unsigned g, int i) {
    return i / Group * 8 * Group + i % Group * 2 + (Group == 1 ? g : g / 2 * 2 * Group + g % 2);
}

/// `count` lines further: one multiply-add, of 32 bits to 64.
template <class T>
__device__ __forceinline__ T* line(T* from, unsigned ld_bytes, unsigned count) {
    return reinterpret_cast<T*>(reinterpret_cast<unsigned long long>(from) + (unsigned long long)ld_bytes * count);
}

// ------------------------------------------------------------------------------------------------------------------- loads

/// A warp's rows of an operand for block_k of K. words[s][i][2m + h]: pair h of the m-th mma of step s, for the i-th 8 rows.
template <int Rows, bool KContiguous, int Group>
struct Operand {
    const Element* source;  // of this lane's first load
    unsigned ld_bytes;
    int rows_left, k_left;
    unsigned words[steps][Rows / 8][4];

    __device__ __forceinline__ Operand(const Element* matrix, int ld, int first_row, int rows, int first_k, int K) {
        const unsigned g = lane() / 4, t = lane() % 4;
        const int row = first_row + (KContiguous ? row_of<Group>(g, 0) : t * 2 * Group);
        const int k = first_k + (KContiguous ? t * 8 : g / 2 * 8 + g % 2);
        ld_bytes = ld * 2u, rows_left = rows - row, k_left = K - k;
        source = kw::opaque(line(matrix + (KContiguous ? k : row), ld_bytes, KContiguous ? row : k));
    }

    __device__ __forceinline__ bool present(int row, int k) const {
        return Config::full_tiles || (row < rows_left && k < k_left);
    }
    __device__ __forceinline__ void load(int first_k) {
#pragma unroll
        for (int s = 0; s < steps; s++) {
#pragma unroll
            for (int i = 0; i < Rows / 8 && KContiguous; i++) {
                const int row = row_of<Group>(0, i), k = first_k + s * 32;
                kw::load_global_or_zero(words[s][i], line(source, ld_bytes, row) + k, present(row, k));
            }
#pragma unroll
            for (int i = 0; i < Rows / Group / 2 && !KContiguous; i++) {  // the pairs of group i / 4
                const int row = i / 4 * Group * 8, k = first_k + s * 32 + i % 4 * 2;
                unsigned found[Group];
                kw::load_global_or_zero(found, line(source, ld_bytes, k) + row, present(row, k));
#pragma unroll
                for (int j = 0; j < Group; j++) words[s][i / 4 * Group + j][i % 4] = found[j];
            }
        }
    }

    /// The words of step s as mma wants them.
    __device__ __forceinline__ void arrange(int s) {
#pragma unroll
        for (int i = 0; i < Rows / 2 && !KContiguous; i++) words[s][i / 4][i % 4] = kw::movmatrix_trans(words[s][i / 4][i % 4]);
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
    /// Neighbours of a row, from a multiple of their number on.
    template <int Count>
    __device__ __forceinline__ void store(const float (&x)[Count], int m, int n) const {
        unsigned words[Count / 2];
#pragma unroll
        for (int i = 0; i < Count / 2; i++) words[i] = kw::pack2<Element>(x[i * 2], x[i * 2 + 1]);
        Element* to = line(c + n, ld * 2u, m);
        if constexpr (Config::wide_store) {
            kw::store_global_if(to, words, Config::full_tiles || (m < rows && n < columns));
        } else if (m < rows) {
#pragma unroll
            for (int e = 0; e < Count; e++)
                if (n + e < columns) kw::store_global_2(to + e, words[e / 2] >> e % 2 * 16);
        }
    }
};

/// A lane's sums as pieces of rows of C, each `neighbours` columns from column_of_piece on.
constexpr int neighbours = 2 * group_q, pieces = eighths_p * groups_q;
using Pieces = float[pieces][neighbours];
__device__ __forceinline__ int row_of_piece(int i) { return row_of<group_p>(lane() / 4, 0) + row_of<group_p>(0, i / groups_q); }
__device__ __forceinline__ int column_of_piece(int i) { return (i % groups_q * 4 + lane() % 4) * neighbours; }

__device__ __forceinline__ void gather(Pieces& x, const float (&sums)[chains][fragments][4]) {
#pragma unroll
    for (int i = 0; i < pieces; i++) {
        const int eighth = i / groups_q, first = eighth / 2 * eighths_q + i % groups_q * group_q;
#pragma unroll
        for (int e = 0; e < neighbours; e++) {
            x[i][e] = sums[0][first + e / 2][eighth % 2 * 2 + e % 2];
#pragma unroll
            for (int chain = 1; chain < chains; chain++) x[i][e] += sums[chain][first + e / 2][eighth % 2 * 2 + e % 2];
        }
    }
}

/// Straight from the registers: first all that the epilogue loads, then all stores.
__device__ __forceinline__ void store_pieces(Pieces& x, const kw::Epilogue<Config>& epilogue, const Output& out, int m, int n) {
#pragma unroll
    for (int i = 0; i < pieces; i++) epilogue.row_sums(x[i], m + row_of_piece(i), n + column_of_piece(i));
#pragma unroll
    for (int i = 0; i < pieces; i++) out.store(x[i], m + row_of_piece(i), n + column_of_piece(i));
}

/// Shared memory, where K is split: part after part, block_p rows of block_q floats each. The padding of 4 floats sets
/// neighbouring rows into different banks.
constexpr int row_bytes = (Config::block_q + 4) * 4, tile_bytes = Config::block_p * row_bytes;
__device__ __forceinline__ void put(const Pieces& x, unsigned tile, int first_row) {
#pragma unroll
    for (int i = 0; i < pieces; i++) {
        const unsigned to = tile + (first_row + row_of_piece(i)) * row_bytes + column_of_piece(i) * 4;
#pragma unroll
        for (int e = 0; e < neighbours; e++) kw::store_shared_4(to + e * 4, __float_as_uint(x[i][e]));  // ptxas joins them
    }
}

/// Adds the parts, `width` neighbours a thread, and stores them.
__device__ __forceinline__ void store_totals(unsigned tiles, const kw::Epilogue<Config>& epilogue, const Output& out, int m,
                                             int n) {
    constexpr int tile = Config::block_p * Config::block_q, width = tile / threads < 8 ? 4 : 8;
#pragma unroll
    for (int first = 0; first < tile; first += threads * width) {
        const unsigned index = first + threadIdx.x * width, row = index / Config::block_q, column = index % Config::block_q;
        if (first + threads * width > tile && index >= tile) break;
        float x[width];
#pragma unroll
        for (int part = 0; part < Config::warps_k; part++) {
#pragma unroll
            for (int e = 0; e < width; e += 4) {
                const float4 sums = kw::load_shared_float4(tiles + part * tile_bytes + row * row_bytes + (column + e) * 4);
                x[e] = part == 0 ? sums.x : x[e] + sums.x, x[e + 1] = part == 0 ? sums.y : x[e + 1] + sums.y;
                x[e + 2] = part == 0 ? sums.z : x[e + 2] + sums.z, x[e + 3] = part == 0 ? sums.w : x[e + 3] + sums.w;
            }
        }
        epilogue.row_sums(x, m + row, n + column);
        out.store(x, m + row, n + column);
    }
}

// ------------------------------------------------------------------------------------------------------------------ kernel

/// Grid: (tiles along P, tiles along Q). Dynamic shared memory: warps_k * tile_bytes, or none. Chunks of 8 along whatever is
/// contiguous are whole. One block is enough for a multiprocessor: ptxas 13.0 would save registers for more, and spill, or put
/// loads off until the first mma are done.
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
    // An mma wants its registers of P side by side, as those of two rows are not. ptxas 13.0 moves them anew for each mma (64
    // times, not 16, for 16 x 32 x 64) and orders the mma by that; the result of an operation it keeps.
    const unsigned zero = Config::p_k_contiguous ? kw::unknown_zero() : 0;
#pragma unroll 1
    for (int batch = 0; batch < Config::batches; batch++) {
        left.load(batch * Config::block_k);
        right.load(batch * Config::block_k);
#pragma unroll
        for (int s = 0; s < steps; s++) {
            left.arrange(s), right.arrange(s);
#pragma unroll
            for (int m = 0; m < 2; m++) {
#pragma unroll
                for (int i = 0; i < eighths_p / 2; i++) {
                    const auto &top = left.words[s][i * 2], &bottom = left.words[s][i * 2 + 1];
                    const unsigned a[4] = {zero | top[2 * m], zero | bottom[2 * m],  //
                                           zero | top[2 * m + 1], zero | bottom[2 * m + 1]};
#pragma unroll
                    for (int j = 0; j < eighths_q; j++) {
                        const auto& columns = right.words[s][j];
                        multiply_add(running[(s * 2 + m) % chains][i * eighths_q + j], a, {columns[2 * m], columns[2 * m + 1]});
                    }
                }
            }
        }
    }

    float room[chains][fragments][4];
    Pieces x;
    gather(x, as_floats(running, room));
    const kw::Epilogue<Config> epilogue = {bias, addend, ld_addend, alpha, beta, P, Q};
    const Output out = {c, ld_c, P, Q};
    if constexpr (Config::warps_k > 1) {
        extern __shared__ __align__(128) unsigned char dynamic_smem[];
        const unsigned smem = kw::shared_address(dynamic_smem);
        put(x, smem + warp_k * tile_bytes, row_in_block);
        __syncthreads();
        store_totals(smem, epilogue, out, first_p - row_in_block, first_q);
    } else {
        store_pieces(x, epilogue, out, first_p, first_q);
    }
}
