// C = A B for small and narrow products on Hopper: a block has all of its K in shared memory at once. No ring, no producer warp:
// all loads are issued first, stage by stage of block_k, and wgmma starts on the first stage while the others are on their way.
//
// Latency is everything here (an empty kernel takes 0.63 us, 64 x 64 x 64 about 1.3). `load` says how the tiles come: cp_async,
// 16 bytes a thread straight into the swizzled layout, needs no tensor map (the first copy through a map waits about half a
// microsecond for it) and no mbarrier, and wins up to K = 512 a block; tma costs few instructions however much is loaded. Both
// lay the tiles out as operands.cuh says. With split_k > 1 the blocks of a cluster share a tile of C, each with its own part of
// K, and add up through distributed shared memory.
#include "kernelwright/barrier.cuh"
#include "kernelwright/copy.cuh"
#include "kernelwright/epilogue.cuh"
#include "kernelwright/layout.cuh"
#include "kernelwright/numeric.cuh"
#include "kernelwright/pdl.cuh"
// How the tiles of an operand lie in shared memory, for both storage orders: what TMA writes, and what wgmma's descriptors say.
//
// The product is seen as D = P Q^T: P gives wgmma's 64-row side, Q its N side. Unswapped, P is A and Q is B; swapped, P is B and Q is A, and
// D is C transposed. P has `rows` = a multiple of 64, Q any multiple of 16 (or 8).
#include "kernelwright/tma.cuh"
#include "kernelwright/wgmma.cuh"

/// A descriptor whose operand starts `bytes` (a multiple of 16) further. Shared memory ends within the 14 bits of the address, so
/// only the low word changes: one addition a step, where building each descriptor took four dependent instructions before every
/// wgmma (ptxas 13.0).
__device__ __forceinline__ unsigned long long advanced(unsigned long long descriptor, int bytes) {
    return descriptor & 0xffffffff00000000ull | (static_cast<unsigned>(descriptor) + (static_cast<unsigned>(bytes) >> 4));
}

/// A tile of Rows x K elements of 2 bytes; K is a multiple of 64. KContiguous: neighbours along K are neighbours in memory.
template <int Rows, int K, bool KContiguous>
struct Operand;

/// K contiguous: K / 64 slabs side by side, each of Rows rows of 64 elements (128 bytes, swizzled). Map: dims (K, rows), box (64, Rows
/// / parts).
template <int Rows, int K>
struct Operand<Rows, K, true> {
    static constexpr bool transposed = false;
    static constexpr int slab = Rows * 128, bytes = Rows * K * 2;

    /// Issues this block's part of the tile that starts at (first_row, first_k), `parts` of them make the whole. With parts > 1 each goes
    /// to all blocks of `mask`.
    template <int Parts>
    static __device__ __forceinline__ void load(unsigned to, const CUtensorMap* map, unsigned bar, int first_row, int first_k, int part,
                                                unsigned short mask, kw::Evict policy) {
        constexpr int rows = Rows / Parts;
#pragma unroll
        for (int s = 0; s < K / 64; s++) {
            unsigned place = to + s * slab + part * rows * 128;
            if constexpr (Parts > 1)
                kw::tma_load_multicast(place, map, bar, first_k + s * 64, first_row + part * rows, mask, policy);
            else
                kw::tma_load(place, map, bar, first_k + s * 64, first_row, policy);
        }
    }

    /// Descriptor of the 16-wide step `k` of the rows from `row` on (a multiple of 8), tile at shared address `tile`.
    static __device__ __forceinline__ unsigned long long descriptor(unsigned tile, int row, int k) {
        return advanced(kw::wgmma_descriptor<128>(tile, 16, 1024), k / 4 * slab + row * 128 + k % 4 * 32);
    }
};

/// Rows contiguous: Rows / width chunks, each of K rows of `width` elements, swizzled over the whole row. Map: dims (rows, K), box
/// (width, K / parts). The chunk is as wide as Rows allows: 64, 32 or 16 elements.
template <int Rows, int K>
struct Operand<Rows, K, false> {
    static constexpr bool transposed = true;
    static constexpr int width = Rows % 64 == 0 ? 64 : Rows % 32 == 0 ? 32 : 16;
    static constexpr int row_bytes = width * 2, chunk = K * row_bytes, bytes = Rows * K * 2;
    static_assert(Rows % 16 == 0, "rows come in chunks of 16, 32 or 64");

    template <int Parts>
    static __device__ __forceinline__ void load(unsigned to, const CUtensorMap* map, unsigned bar, int first_row, int first_k, int part,
                                                unsigned short mask, kw::Evict policy) {
        constexpr int depth = K / Parts;  // a part is some of the K rows of every chunk
        static_assert(depth % 8 == 0, "a part must be whole swizzle atoms");
#pragma unroll
        for (int c = 0; c < Rows / width; c++) {
            unsigned place = to + c * chunk + part * depth * row_bytes;
            if constexpr (Parts > 1)
                kw::tma_load_multicast(place, map, bar, first_row + c * width, first_k + part * depth, mask, policy);
            else
                kw::tma_load(place, map, bar, first_row + c * width, first_k, policy);
        }
    }

    /// `row` is a multiple of `width`.
    static __device__ __forceinline__ unsigned long long descriptor(unsigned tile, int row, int k) {
        return advanced(kw::wgmma_descriptor<row_bytes>(tile, chunk, 8 * row_bytes), row / width * chunk + k * 16 * row_bytes);
    }
};

/// All wgmma of one stage: Subtiles sums of 64 x N each, P's rows from `first_row` on. Sums: an array as Wgmma takes it.
template <class Element, class P, class Q, int Subtiles, int N, int K, class Sums>
__device__ __forceinline__ void multiply_stage(Sums (&sums)[Subtiles], unsigned p, int first_row, unsigned q, bool accumulate) {
#pragma unroll
    for (int k = 0; k < K / 16; k++) {
#pragma unroll
        for (int s = 0; s < Subtiles; s++)
            kw::Wgmma<Element, N, P::transposed, Q::transposed>::run(sums[s], P::descriptor(p, first_row + s * 64, k),
                                                                     Q::descriptor(q, 0, k), k > 0 || accumulate);
    }
}
// The sums that a thread keeps along K, as wgmma and mma.sync hold them: fp32, or, for Workloads that ask for it (acc=fp16), fp16 in pairs,
// rounded in every step of 16. What comes after the main loop (the parts of a split K, the epilogue) sees fp32 either way.
#include "kernelwright/numeric.cuh"

/// Count sums; the four of each 16 x 8 fragment are neighbours.
template <int Count, bool Fp16>
struct RunningSums {
    using Array = float[Count];
};
template <int Count>
struct RunningSums<Count, true> {
    using Array = unsigned[Count / 2];
};

/// The running sums as floats: those in fp32 themselves, with nothing copied (ptxas 13.0 spilled where they were), those in fp16
/// converted into `room`. Afterwards they are zero: a loop that comes back for the next tile would keep the registers of old ones.
template <class Floats>
__device__ __forceinline__ Floats& as_floats(Floats& running, Floats&) {
    return running;
}
template <class Floats, class Pairs>
__device__ __forceinline__ Floats& as_floats(Pairs& running, Floats& room) {
    static_assert(sizeof(Floats) == 2 * sizeof(Pairs), "two sums in each register");
    unsigned* from = reinterpret_cast<unsigned*>(&running);
    float* to = reinterpret_cast<float*>(&room);
#pragma unroll
    for (int i = 0; i < int(sizeof(Pairs) / 4); i++) {
        kw::unpack2<kw::f16>(from[i], to[i * 2], to[i * 2 + 1]);
        from[i] = 0u;
    }
    return room;
}
// Split-K inside a cluster: every block pushes its partial sums into the shared memory of the block that owns them (st.async),
// which adds them up in the order of the parts and writes its share of C. No workspace, no second kernel, no barrier at the
// end.
//
// The unit of ownership is what one warp holds of 16 x 8 sums: one 16-byte store per lane. Units are numbered along C's rows,
// so that a share is a run of whole rows as far as it divides; block `part` owns units [units * part / Parts, units * (part +
// 1) / Parts).
// From a warpgroup's sums to C: rounded once, laid out in shared memory by stmatrix, written in 16-byte stores along C's rows.
//
// Measured on an H200: this beats stores straight from the registers of wgmma (4 bytes a thread, 16 bytes a row) even for 64 x
// 16 tiles.
#include "kernelwright/barrier.cuh"
#include "kernelwright/copy.cuh"
#include "kernelwright/layout.cuh"
#include "kernelwright/mma.cuh"
#include "kernelwright/numeric.cuh"

/// C in global memory, of any extent, row stride and alignment.
template <class Element>
struct Output {
    Element* c;
    int ld, rows, columns;
    bool vectors;  // all rows start at multiples of 16 bytes

    /// D = P Q^T has P x Q elements; Swap says that C is D transposed.
    template <bool Swap>
    static __device__ __forceinline__ Output of(Element* c, int ld, int P, int Q) {
        return {c, ld, Swap ? Q : P, Swap ? P : Q, (reinterpret_cast<size_t>(c) | size_t(ld) * sizeof(Element)) % 16 == 0};
    }

    /// Whether a tile lies inside and may be written in 16-byte stores.
    __device__ __forceinline__ bool whole(int row, int column, int tile_rows, int tile_columns) const {
        return vectors && row + tile_rows <= rows && column + tile_columns <= columns;
    }

    /// Eight neighbours of one row, `column` a multiple of 8: those that exist.
    __device__ __forceinline__ void store(int row, int column, uint4 v) const {
        if (row >= rows || column >= columns) return;
        Element* to = c + (long long)row * ld + column;
        if (vectors && column + 8 <= columns) {
            kw::store_global_16(to, v);
            return;
        }
        const unsigned words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int e = 0; e < 8; e++)
            if (column + e < columns) kw::store_global_2(to + e, words[e / 2] >> e % 2 * 16);
    }
};

/// Copies a tile from shared memory to C; thread 0 to Threads - 1 call it.
template <class Tile, int Threads, class Element>
__device__ __forceinline__ void copy_tile(unsigned staging, int thread, const Output<Element>& out, int first_row,
                                          int first_column) {
    constexpr int all = Tile::rows * Tile::chunks;
    if (out.whole(first_row, first_column, Tile::rows, Tile::chunks * 8)) {
#pragma unroll
        for (int pass = 0; pass < kw::ceil_div(all, Threads); pass++) {
            int index = pass * Threads + thread, row = index / Tile::chunks, chunk = index % Tile::chunks;
            if (all % Threads != 0 && index >= all) break;
            kw::store_global_16(out.c + (long long)(first_row + row) * out.ld + first_column + chunk * 8,
                                kw::load_shared_16(staging + Tile::offset(row, chunk)));
        }
        return;
    }
#pragma unroll 1
    for (int index = thread; index < all; index += Threads) {
        int row = index / Tile::chunks, chunk = index % Tile::chunks;
        out.store(first_row + row, first_column + chunk * 8, kw::load_shared_16(staging + Tile::offset(row, chunk)));
    }
}

/// Shared memory that one warpgroup needs to write Subtiles x 64 x N sums.
template <int Subtiles, int N>
constexpr int staging_bytes = Subtiles * 64 * N * 2;

/// Writes one warpgroup's sums: those of P's rows first_p + 64 s + (0 to 63) and Q's rows first_q + (0 to N - 1). `staging`:
/// 128-byte aligned shared memory of this warpgroup, which nobody reads or writes any more. `barrier`: a named barrier of this
/// warpgroup.
template <bool Swap, class Element, int Subtiles, int N, class Epilogue>
__device__ __forceinline__ void store_tile(const float (&sums)[Subtiles][N / 2], unsigned staging, const Epilogue& epilogue,
                                           const Output<Element>& out, int first_p, int first_q, int barrier) {
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    // columns for which the epilogue's loads go out together
    constexpr int width = Epilogue::identity ? N : N % 32 == 0 ? 32 : N % 16 == 0 ? 16 : 8;
    // the two (N = 8) or four matrices of fragment j on, rounded
    unsigned packed[4];
    auto pack = [&](int s, int j, const auto& loaded) {
#pragma unroll
        for (int i = 0; i < (N == 8 ? 1 : 2); i++) {
            float x[4];
#pragma unroll
            for (int e = 0; e < 4; e++) x[e] = sums[s][(j + i) * 4 + e];
            epilogue.apply(x, loaded, (j + i) % (width / 8));
            packed[i * 2] = kw::pack2<Element>(x[0], x[1]), packed[i * 2 + 1] = kw::pack2<Element>(x[2], x[3]);
        }
    };
    if constexpr (Swap) {  // rows of C are columns of D: all four warps have a part of each, 64 elements together
        using Tile = kw::SwizzledTile<N, Subtiles * 8>;
#pragma unroll
        for (int s = 0; s < Subtiles; s++) {
            const int chunk = s * 8 + warp * 2 + lane / 8 % 2;
#pragma unroll
            for (int first = 0; first < N / 8; first += width / 8) {
                const auto loaded = epilogue.template load<width>(first_p + s * 64 + warp * 16, first_q + first * 8);
                if constexpr (N == 8) {
                    pack(s, 0, loaded);
                    kw::stmatrix_x2_trans(staging + Tile::offset(lane % 8, chunk), packed[0], packed[1]);
                } else {
#pragma unroll
                    for (int j = first; j < first + width / 8; j += 2) {
                        pack(s, j, loaded);
                        kw::stmatrix_x4_trans(staging + Tile::offset((j + lane / 16) * 8 + lane % 8, chunk), packed[0], packed[1],
                                              packed[2], packed[3]);
                    }
                }
            }
        }
        kw::named_sync(barrier, 128);
        copy_tile<Tile, 128>(staging, threadIdx.x % 128, out, first_q, first_p);
    } else {  // every warp writes its own 16 rows, and waits for nobody else
        using Tile = kw::SwizzledTile<16, N / 8>;
#pragma unroll
        for (int s = 0; s < Subtiles; s++) {
            const unsigned place = staging + (warp * Subtiles + s) * Tile::bytes;
#pragma unroll
            for (int first = 0; first < N / 8; first += width / 8) {
                const auto loaded = epilogue.template load<width>(first_p + s * 64 + warp * 16, first_q + first * 8);
                if constexpr (N == 8) {
                    pack(s, 0, loaded);
                    kw::stmatrix_x2(place + Tile::offset(lane % 16, 0), packed[0], packed[1]);
                } else {
#pragma unroll
                    for (int j = first; j < first + width / 8; j += 2) {
                        pack(s, j, loaded);
                        kw::stmatrix_x4(place + Tile::offset(lane % 16, j + lane / 16), packed[0], packed[1], packed[2],
                                        packed[3]);
                    }
                }
            }
            __syncwarp();
            copy_tile<Tile, 32>(place, lane, out, first_p + s * 64 + warp * 16, first_q);
        }
    }
}

/// A tile of Rows x N sums (of P's and Q's rows), reduced over Parts blocks. Block `part` has rank `first_rank + part *
/// RankStride`.
template <bool Swap, int Rows, int N, int Parts, int RankStride>
struct ClusterReduce {
    static constexpr int warps = Rows / 16, columns = N / 8, units = warps * columns;
    static constexpr int share = kw::ceil_div(units, Parts);  // the largest
    static constexpr int unit_bytes = 512;
    static constexpr int bytes = Parts * share * unit_bytes;  // of the area where partial sums arrive, 128-byte aligned

    static __device__ __forceinline__ int first_unit(int part) { return units * part / Parts; }

    /// The bytes that will arrive, to be announced once (barrier_expect) at a barrier of count 1 before the cluster's first
    /// barrier.
    static __device__ __forceinline__ unsigned expected(int part) {
        return (first_unit(part + 1) - first_unit(part)) * Parts * unit_bytes;
    }

    /// Where a lane's 16 bytes lie.
    static __device__ __forceinline__ unsigned offset(int part, int local, int lane) {
        return (part * share + local) * unit_bytes + lane * 16;
    }

    /// Sends a warp's sums: its 16 rows of each subtile, which start at P's row first_row + 64 s of the tile. All blocks of the
    /// cluster must have started, and nobody may use their areas for anything else any more.
    template <int Subtiles>
    static __device__ __forceinline__ void push(const float (&sums)[Subtiles][N / 2], unsigned area, unsigned bar, int first_row,
                                                int part, int first_rank) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int s = 0; s < Subtiles; s++) {
            const int row = first_row / 16 + s * 4;
            // Addresses change with the owner only, in a branch: worked out for all units at once, they spill beside the sums.
            int end = 0;
            unsigned to = 0, arrived = 0;
#pragma unroll
            for (int j = 0; j < columns; j++) {
                const int unit = Swap ? j * warps + row : row * columns + j;
                if (unit >= end) {
                    const int owner = (unit * Parts + Parts - 1) / units;  // the last part whose first unit is not beyond this one
                    const unsigned base = kw::cluster_address(area, first_rank + owner * RankStride);
                    end = first_unit(owner + 1);
                    to = base + offset(part, -first_unit(owner), lane), arrived = base + (bar - area);
                }
                kw::store_async(to + unit * unit_bytes, arrived, sums[s][j * 4], sums[s][j * 4 + 1], sums[s][j * 4 + 2],
                                sums[s][j * 4 + 3]);
            }
        }
    }

    /// Waits for all parts of this block's share, adds them up, applies the epilogue and writes them; thread 0 to threads - 1
    /// (whole warps) call it.
    ///
    /// A warp takes a batch of neighbouring units at a time: every lane adds up its own 16 bytes of each part; stmatrix lays
    /// the rounded sums out as pieces of C's rows where part 0 was, which no other warp reads.
    template <class Epilogue, class Element>
    static __device__ __forceinline__ void finish(unsigned area, unsigned bar, int part, int thread, int threads,
                                                  const Epilogue& epilogue, const Output<Element>& out, int first_p,
                                                  int first_q) {
        constexpr int batch = share >= 32 ? 4 : share >= 8 ? 2 : 1;  // more loads in flight where a warp has several units anyway
        const int first = first_unit(part), count = first_unit(part + 1) - first;
        const unsigned lane = thread & 31u, warp = unsigned(thread) / 32;
        if (count == 0) return;
        kw::barrier_wait_cluster(bar, 0);
#pragma unroll 1
        for (int local = warp * batch; local < count; local += threads / 32 * batch) {
            typename Epilogue::template Loaded<8> loaded[batch];
#pragma unroll
            for (int u = 0; u < batch; u++) {
                const int unit = first + kw::smaller(local + u, count - 1);
                loaded[u] = epilogue.template load<8>(first_p + (Swap ? unit % warps : unit / columns) * 16,
                                                      first_q + (Swap ? unit / warps : unit % columns) * 8);
            }
            float4 sums[batch];
#pragma unroll
            for (int p = 0; p < Parts; p++) {
#pragma unroll
                for (int u = 0; u < batch; u++) {  // beyond the share lie bytes that nobody uses
                    const float4 x = kw::load_shared_float4(area + offset(p, kw::smaller(local + u, share - 1), lane));
                    if (p == 0)
                        sums[u] = x;
                    else
                        sums[u].x += x.x, sums[u].y += x.y, sums[u].z += x.z, sums[u].w += x.w;
                }
            }
            const unsigned staging = area + offset(0, local, 0);
#pragma unroll
            for (int u = 0; u < batch; u++) {
                if (local + u >= count) break;
                const unsigned place = staging + u * unit_bytes + lane % 16 * 16;
                float x[4] = {sums[u].x, sums[u].y, sums[u].z, sums[u].w};
                epilogue.apply(x, loaded[u], 0);
                const unsigned top = kw::pack2<Element>(x[0], x[1]), bottom = kw::pack2<Element>(x[2], x[3]);
                if constexpr (Swap)
                    kw::stmatrix_x2_trans(place, top, bottom);
                else
                    kw::stmatrix_x2(place, top, bottom);
            }
            __syncwarp();
#pragma unroll
            for (unsigned piece = lane; piece < batch * 16; piece += 32) {
                // unswapped, a unit's pieces are 16 rows of 8; swapped, two columns of 8 rows. Neighbours in a row of C go to
                // neighbouring lanes.
                const unsigned u = Swap ? piece / 2 % batch : piece % batch;
                const unsigned within = Swap ? piece % 2 * 8 + piece / 2 / batch : piece / batch;
                const unsigned unit = first + local + u;
                if (unit >= unsigned(first + count)) continue;
                const uint4 v = kw::load_shared_16(staging + u * unit_bytes + within * 16);
                if constexpr (Swap)
                    out.store(first_q + unit / warps * 8 + within % 8, first_p + unit % warps * 16 + within / 8 * 8, v);
                else
                    out.store(first_p + unit / columns * 16 + within, first_q + unit % columns * 8, v);
            }
        }
    }
};

enum class Load { cp_async, tma };

/// How far the matrices may miss the tiles (cp_async only; tma checks everything for nothing).
enum class Tails {
    none,   // every tile is full: nothing is checked
    chunk,  // the contiguous extents are multiples of 8: a copy of 16 bytes is whole or absent
    any,    // a copy may be cut at any element
};

struct Config {
    using Element = kw::bf16;
    static constexpr bool p_k_contiguous = true, q_k_contiguous = true;
