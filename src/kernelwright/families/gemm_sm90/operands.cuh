// How the tiles of an operand lie in shared memory, for both storage orders: what TMA writes, and what wgmma's descriptors say.
//
// The product is seen as D = P Q^T: P gives wgmma's 64-row side, Q its N side. Unswapped, P is A and Q is B; swapped, P is B and Q is A, and
// D is C transposed. P has `rows` = a multiple of 64, Q any multiple of 16 (or 8).
#pragma once
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
