// Where things lie: the XOR swizzle of shared-memory tiles, and the order in which blocks walk over the output.
// Plain C++: no instruction of a particular device.
#pragma once

namespace kw {

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
__host__ __device__ constexpr int smaller(int a, int b) { return a < b ? a : b; }
__host__ __device__ constexpr int larger(int a, int b) { return a > b ? a : b; }

/// A tile of Rows rows of Chunks 16-byte chunks in shared memory, without padding, whose chunks are permuted within each
/// row such that the 8 rows of one ldmatrix or stmatrix phase (same chunk, rows r to r + 7) fall into 8 different groups
/// of 4 banks, and so does any run of 8 neighbouring chunks of one row whose count divides into 8.
///
/// Why it holds: chunk position modulo 8 is (row * Chunks + (chunk ^ f(row))) mod 8. Let P be the largest power of two that
/// divides Chunks, at most 8. Over 8 rows, row * Chunks takes 8 / P different multiples of P, each P times in a row
/// of row / (8 / P), and f(row) = (row / (8 / P)) mod P takes all P values there.
template <int Rows, int Chunks>
struct SwizzledTile {
    static constexpr int rows = Rows;
    static constexpr int chunks = Chunks;
    static constexpr int row_bytes = Chunks * 16;
    static constexpr int bytes = Rows * row_bytes;
    static constexpr int power = Chunks % 8 == 0 ? 8 : Chunks % 4 == 0 ? 4 : Chunks % 2 == 0 ? 2 : 1;

    /// Bytes from the start of the tile to a chunk.
    static __host__ __device__ constexpr int offset(int row, int chunk) {
        return row * row_bytes + ((chunk ^ ((row / (8 / power)) % power)) * 16);
    }
};

struct TileCoordinates {
    int m, n;
};

/// Output tile of a block in grouped raster order: `group` tile rows are walked together, column by column, so that the
/// blocks that run at one time share few rows of A and few columns of B, and those stay in L2.
__device__ __forceinline__ TileCoordinates grouped_tile(int block, int tiles_m, int tiles_n, int group) {
    int per_group = group * tiles_n;
    int first_m = block / per_group * group;
    int rows = smaller(tiles_m - first_m, group);
    int within = block % per_group;
    return {first_m + within % rows, within / rows};
}

/// Output tile of a block on a Hilbert curve: any run of blocks covers about a square, whatever its length, so it needs few rows
/// of A and few columns of B at all levels of cache at once. A power of two of tiles on a side has such a curve (Hilbert 1891; bit by
/// bit as in Warren, Hacker's Delight, chapter 16); any other grid is cut into squares: as large ones as its shorter side allows
/// along the longer, where the end of one curve lies beside the start of the next, then what is left at their end, then what is
/// left beside them.
__host__ __device__ __forceinline__ TileCoordinates hilbert_tile(int block, int tiles_m, int tiles_n) {
    int longer = tiles_n, shorter = tiles_m, first_long = 0, first_short = 0;
    bool turned = false;  // the longer side is m's
    for (;;) {
        if (longer < shorter) {
            int side = longer, first = first_long;
            longer = shorter, shorter = side, first_long = first_short, first_short = first, turned = !turned;
        }
        int side = 1;
        while (side * 2 <= shorter) side *= 2;
        const int rest = longer % side, in_squares = (longer - rest) * side;
        if (block < in_squares) {
            int along = 0, across = 0, within = block % (side * side);
            for (int s = 1; s < side; s *= 2, within /= 4) {
                const int far_along = within / 2 % 2, far_across = (within ^ within / 2) % 2;
                if (!far_across) {  // the first and the last quarter lie on their side
                    const int x = far_along ? s - 1 - along : along;
                    along = far_along ? s - 1 - across : across, across = x;
                }
                along += far_along * s, across += far_across * s;
            }
            along += first_long + block / (side * side) * side, across += first_short;
            return {turned ? along : across, turned ? across : along};
        }
        block -= in_squares;
        if (block < rest * side) {
            first_long += longer - rest, longer = rest, shorter = side;
        } else {
            block -= rest * side, first_short += side, shorter -= side;
        }
    }
}

}  // namespace kw
