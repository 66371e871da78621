// Element-wise chains. `Chain` (generated) loads, computes and stores one vector; these loops decide who works on what.
// Every thread issues all its loads before the first use: ITEMS vectors of each input are in flight.

// All matrices are contiguous and nothing depends on the row or column, so it is one long vector.
// ScalarChain is the same chain with vectors of one element, for the tail.
template <class Chain, class ScalarChain, int THREADS, int ITEMS>
__device__ __forceinline__ void pointwise_flat(const Chain& chain, const ScalarChain& scalar_chain, long long numel) {
    const long long vectors = numel / Chain::VEC;
    constexpr int SPAN = THREADS * ITEMS;
    const typename Chain::Row one = chain.row(0);
    const typename Chain::Columns none = chain.columns(0);
    for (long long first = static_cast<long long>(blockIdx.x) * SPAN + threadIdx.x; first < vectors;
              first += static_cast<long long>(gridDim.x) * SPAN) {
        typename Chain::Slot slot[ITEMS];
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            if (first + i * THREADS < vectors) chain.load(slot[i], 0, (first + i * THREADS) * Chain::VEC);
        }
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            if (first + i * THREADS < vectors) chain.store(slot[i], none, one, 0, (first + i * THREADS) * Chain::VEC);
        }
    }
    // fewer elements than a vector has: the first threads of block 0 take one each
    const long long tail = vectors * Chain::VEC + threadIdx.x;
    if (blockIdx.x == 0 && tail < numel) {
        typename ScalarChain::Slot slot;
        scalar_chain.load(slot, 0, tail);
        scalar_chain.store(slot, scalar_chain.columns(0), scalar_chain.row(0), 0, tail);
    }
}

// Tiles of WIDTH vectors by (THREADS / WIDTH x ITEMS) rows. A thread keeps its columns over ITEMS rows, so it reads per-column
// inputs once; the only division is one of 32 bits a tile, the same for the whole block.
template <class Chain, int THREADS, int WIDTH, int ITEMS>
__device__ __forceinline__ void pointwise_tiles(const Chain& chain, int rows, int cols) {
    constexpr int LINES = THREADS / WIDTH;
    const unsigned across = (cols + WIDTH * Chain::VEC - 1) / (WIDTH * Chain::VEC);
    const unsigned tiles = across * ((rows + LINES * ITEMS - 1) / (LINES * ITEMS));
    for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const int col = (tile % across * WIDTH + threadIdx.x % WIDTH) * Chain::VEC;
        const int row = tile / across * (LINES * ITEMS) + threadIdx.x / WIDTH;
        if (col >= cols) continue;
        typename Chain::Slot slot[ITEMS];
        typename Chain::Row r[ITEMS];
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            if (row + i * LINES < rows) {
                chain.load(slot[i], row + i * LINES, col);
                r[i] = chain.row(row + i * LINES);
            }
        }
        const typename Chain::Columns columns = chain.columns(col);
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            if (row + i * LINES < rows) chain.store(slot[i], columns, r[i], row + i * LINES, col);
        }
    }
}
