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

}  // namespace kw
