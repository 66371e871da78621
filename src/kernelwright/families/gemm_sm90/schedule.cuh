// Which cluster works on what, in which order: shares of K first, then whole tiles.
//
// Tiles are dealt out whole as long as they fill waves of all clusters. Where the last wave would not be full, the K steps of its
// tiles are put in a row, tile after tile, and cut into one equal share for each cluster (Stream-K: Osama et al., PPoPP 2023; with
// SharedWaves = 2 its "two-tile" variant: the last full wave joins, every share is a tile's K or longer, and at most two clusters
// meet in a tile). Split-K is the same with SplitK shares for every tile. Shares come first, not last as the tiles of a last wave
// would: what their parts cost to add up then hides behind the whole tiles.
#pragma once
#include "kernelwright/layout.cuh"

/// Steps [begin, begin + steps) along K of a tile. Fewer than all: a part of it, which belongs to `share`.
struct Item {
    int tile, begin, steps, share;
};

template <int SplitK, int SharedWaves>
struct Schedule {
    static_assert(SplitK == 1 || SharedWaves == 0, "one way to cut K at a time");
    static constexpr bool cuts = SplitK > 1 || SharedWaves > 0;

    int tiles, k_steps, clusters;
    int shared = 0;                      // the first tiles
    int share, step = 0, share_end = 0;  // this cluster's next steps in the row of shared tiles
    int tile;                            // its next whole tile

    __device__ __forceinline__ Schedule(int tile_count, int steps_of_k, int cluster, int cluster_count)
        : tiles(tile_count), k_steps(steps_of_k), clusters(cluster_count), share(cluster) {
        if constexpr (SplitK > 1) shared = tiles;
        if constexpr (SharedWaves > 0)
            if (tiles % clusters) shared = tiles - kw::larger(0, tiles / clusters - (SharedWaves - 1)) * clusters;
        tile = shared + cluster;
        if constexpr (cuts) open();
    }

    /// Shares of the row of `shared` tiles.
    __device__ __forceinline__ int shares() const {
        return SplitK > 1 ? shared * SplitK : kw::smaller(clusters, shared * k_steps);
    }
    __device__ __forceinline__ int begin_of(int which) const {
        if constexpr (SplitK > 1) return which / SplitK * k_steps + k_steps * (which % SplitK) / SplitK;
        const int row = shared * k_steps;  // the first row % shares() shares have a step more than the others
        return row / shares() * which + kw::smaller(which, row % shares());
    }
    __device__ __forceinline__ int share_of(int row_step) const {  // SharedWaves only
        const int row = shared * k_steps, steps = row / shares(), longer = row % shares(), long_end = longer * (steps + 1);
        return row_step < long_end ? row_step / (steps + 1) : longer + (row_step - long_end) / steps;
    }
    __device__ __forceinline__ void open() {
        if (share < shares()) step = begin_of(share), share_end = begin_of(share + 1);
    }

    __device__ __forceinline__ bool more() const { return cuts && step < share_end || tile < tiles; }

    __device__ __forceinline__ Item next() {
        if (cuts && step < share_end) {
            Item item{step / k_steps, step % k_steps, 0, share};
            item.steps = kw::smaller(share_end - step, k_steps - item.begin);
            step += item.steps;
            if constexpr (SplitK > 1) share += clusters, open();
            return item;
        }
        Item item{tile, 0, k_steps, 0};
        tile += clusters;
        return item;
    }

    /// The shares that meet in a tile are `first` to `first` + `count` - 1. Every share but the first of a tile begins in it, and
    /// so is not the first of two tiles.
    struct Meeting {
        int first, count;
    };
    __device__ __forceinline__ Meeting meeting(int in_tile) const {
        if constexpr (SplitK > 1) return {in_tile * SplitK, SplitK};
        const int first = share_of(in_tile * k_steps);
        return {first, share_of(in_tile * k_steps + k_steps - 1) - first + 1};
    }
};
