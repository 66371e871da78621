// Split-K inside a cluster: every block pushes its partial sums into the shared memory of the block that owns them (st.async),
// which adds them up in the order of the parts and writes its share of C. No workspace, no second kernel, no barrier at the
// end.
//
// The unit of ownership is what one warp holds of 16 x 8 sums: one 16-byte store per lane. Units are numbered along C's rows,
// so that a share is a run of whole rows as far as it divides; block `part` owns units [units * part / Parts, units * (part +
// 1) / Parts).
#pragma once
#include "epilogue_tile.cuh"

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
