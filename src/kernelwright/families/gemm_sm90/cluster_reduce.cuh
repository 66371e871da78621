// Split-K inside a cluster: every block pushes its partial sums into the shared memory of the block that owns them (st.async), which
// adds them up in the order of the parts and writes its share of C. No workspace, no second kernel, no barrier at the end.
//
// The unit of ownership is what one warp holds of 16 x 8 sums: one 16-byte store per lane. Units are numbered along C's rows, so that
// a share is a run of whole rows as far as it divides; block `part` owns units [units * part / Parts, units * (part + 1) / Parts).
#pragma once
#include "epilogue_tile.cuh"

/// A tile of Rows x N sums (of P's and Q's rows), reduced over Parts blocks. Block `part` has rank `first_rank + part * RankStride`.
template <bool Swap, int Rows, int N, int Parts, int RankStride>
struct ClusterReduce {
    static constexpr int warps = Rows / 16, columns = N / 8, units = warps * columns;
    static constexpr int share = kw::ceil_div(units, Parts);  // the largest
    static constexpr int unit_bytes = 512;
    static constexpr int bytes = Parts * share * unit_bytes;  // of the area where partial sums arrive, 128-byte aligned

    static __device__ __forceinline__ int first_unit(int part) { return units * part / Parts; }

    /// The bytes that will arrive, to be announced once (barrier_expect) at a barrier of count 1 before the cluster's first barrier.
    static __device__ __forceinline__ unsigned expected(int part) {
        return (first_unit(part + 1) - first_unit(part)) * Parts * unit_bytes;
    }

    /// Where a lane's 16 bytes lie. The swizzle lets 8 threads read the same lane of 8 neighbouring units in one go.
    static __device__ __forceinline__ unsigned offset(int part, int local, int lane) {
        return (part * share + local) * unit_bytes + (lane ^ local % 8) * 16;
    }

    /// Sends a warp's sums: its 16 rows of each subtile, which start at P's row first_row + 64 s of the tile. All blocks of the
    /// cluster must have started, and nobody may use their areas for anything else any more.
    template <int Subtiles>
    static __device__ __forceinline__ void push(const float (&sums)[Subtiles][N / 2], unsigned area, unsigned bar, int first_row, int part,
                                                int first_rank) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int s = 0; s < Subtiles; s++) {
            const int row = first_row / 16 + s * 4;
#pragma unroll
            for (int j = 0; j < columns; j++) {
                const int unit = Swap ? j * warps + row : row * columns + j;
                const int owner = (unit * Parts + Parts - 1) / units;  // the last part whose first unit is not beyond this one
                const unsigned to = kw::cluster_address(area, first_rank + owner * RankStride);
                kw::store_async(to + offset(part, unit - first_unit(owner), lane), to + (bar - area), sums[s][j * 4],
                                sums[s][j * 4 + 1], sums[s][j * 4 + 2], sums[s][j * 4 + 3]);
            }
        }
    }

    /// Waits for all parts of this block's share, adds them up and writes them; thread 0 to threads - 1 call it.
    template <class Element>
    static __device__ __forceinline__ void finish(unsigned area, unsigned bar, int part, int thread, int threads,
                                                  const Output<Element>& out, int first_p, int first_q) {
        const int first = first_unit(part), count = first_unit(part + 1) - first;
        if (count == 0) return;
        kw::barrier_wait_cluster(bar, 0);
        if constexpr (Swap) {  // a thread takes 2 columns x 8 rows of a unit: two 8-element pieces of C's rows
#pragma unroll 1
            for (int item = thread; item < kw::ceil_div(count, 8) * 64; item += threads) {
                const int half = item % 2, local = item / 64 * 8 + item / 2 % 8, pair = item / 16 % 4;
                if (local >= count) continue;
                float even[8] = {}, odd[8] = {};
#pragma unroll 2
                for (int p = 0; p < Parts; p++) {
#pragma unroll
                    for (int r = 0; r < 8; r++) {
                        float x, y;
                        kw::load_shared_float_pair(area + offset(p, local, r * 4 + pair) + half * 8, x, y);
                        even[r] += x, odd[r] += y;
                    }
                }
                const int column = first_p + (first + local) % warps * 16 + half * 8;
                const int row = first_q + (first + local) / warps * 8 + pair * 2;
                out.store(row, column, packed<Element>(even));
                out.store(row + 1, column, packed<Element>(odd));
            }
        } else {  // a thread takes one row of a unit
#pragma unroll 1
            for (int item = thread; item < kw::ceil_div(count, 8) * 128; item += threads) {
                const int local = item / 128 * 8 + item % 8, half = item / 8 % 2, row = item / 16 % 8;
                if (local >= count) continue;
                float sum[8] = {};
#pragma unroll 4
                for (int p = 0; p < Parts; p++) {
#pragma unroll
                    for (int pair = 0; pair < 4; pair++) {
                        float x, y;
                        kw::load_shared_float_pair(area + offset(p, local, row * 4 + pair) + half * 8, x, y);
                        sum[pair * 2] += x, sum[pair * 2 + 1] += y;
                    }
                }
                out.store(first_p + (first + local) / columns * 16 + half * 8 + row, first_q + (first + local) % columns * 8,
                          packed<Element>(sum));
            }
        }
    }

    template <class Element>
    static __device__ __forceinline__ uint4 packed(const float (&v)[8]) {
        return make_uint4(kw::pack2<Element>(v[0], v[1]), kw::pack2<Element>(v[2], v[3]), kw::pack2<Element>(v[4], v[5]),
                          kw::pack2<Element>(v[6], v[7]));
    }
};
