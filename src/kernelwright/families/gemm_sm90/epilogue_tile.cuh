// From a warpgroup's sums to C: rounded once, laid out in shared memory by stmatrix, written in 16-byte stores along C's rows.
//
// Measured on an H200: this beats stores straight from the registers of wgmma (4 bytes a thread, 16 bytes a row) even for 64 x
// 16 tiles.
#pragma once
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
