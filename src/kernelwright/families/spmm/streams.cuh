// Y = X W^T for few rows of X, W in quad-bitmap records: every warp decodes a stream of records of its own into mma.sync.
//
// A cluster owns a run of strips (16 rows of W), its blocks split K between them. A block keeps its part of X in shared memory,
// swizzled; its strips' records are one list, strip by strip, which its warps share evenly, so that any number of rows fills all
// warps. A warp reads its part of the list through a ring of bulk copies: no barrier of the block stands between them. Where its
// part ends inside a strip, the sums so far go to a place of their own; at the end all parts of a strip are added, first those of
// a block in the order of warps, then those of the cluster in the order of blocks: the same bits every time, without workspace or
// second kernel.
#include "decode.cuh"

// config: begin
struct Config {
    using Element = kw::f16;
    static constexpr int expected = 16;  // values in a word of 32 weights
    static constexpr int tiles = 1;      // of 8 rows of X
    static constexpr int warps = 16, ring_bytes = 8064, scratch_bytes = 0, cluster = 2;
    static constexpr bool bulk = true, x_vectors = true;
    static constexpr int prefetched = 3, record_sixteenths = 38000;  // records of a warp, and their mean length
    static constexpr Packing packing = Packing::late;
    static constexpr bool bias = false, silu_mul = false, swiglu = false, residual = false;
};
// config: end

#include "ring.cuh"

template <bool Wide>
__device__ __forceinline__ void multiply_stream(Stream& stream, const Layout& at, int N) {
    constexpr int tiles = Config::tiles;
    const int lane = threadIdx.x % 32, warp = kw::warp_index();
    const Record<Config::expected, Wide, Config::packing> reader;
    // ldmatrix: lanes 8 i to 8 i + 7 give the rows of piece i of 32 columns. Rows that X lacks repeat its last: nobody reads
    // their sums.
    unsigned x_at[tiles], x_piece[tiles];
#pragma unroll
    for (int i = 0; i < tiles; i++) {
        const int row = min(i * 8 + lane % 8, N - 1);
        x_at[i] = at.slab + row * 128, x_piece[i] = (lane / 8 ^ row & 7) << 4;
    }
    if (stream.count == 0) return;
    // with one tile k-steps take turns with two sets of sums: an mma waits 33 clocks for the one before it. 32 warps lack the registers
    constexpr int chains = tiles == 1 && Config::warps <= 24 ? 2 : 1;
    float sums[chains][tiles][4] = {};
    int strip = stream.strip_of(stream.begin), record = stream.begin - strip * at.records, slot = 0;
    if (record == 0) open_strip(at, warp, strip);
    unsigned parity = 0;
#pragma unroll 1
    for (int k = 0; k < stream.count; k++) {
        stream.wait(slot, parity);
        const unsigned from = stream.ring + slot * stream.slot_bytes;
        const unsigned x_record = record * 256 * N;
        auto half = [&]<int Chunk, int Half>() {
            unsigned a[2][4], b[tiles][4];
#pragma unroll
            for (int i = 0; i < tiles; i++)
                kw::ldmatrix_x4(b[i], x_record + Chunk * 128 * N + x_at[i] + (x_piece[i] ^ Half * 64));
            reader.template fragments<Chunk, Half>(from, a);
#pragma unroll
            for (int step = 0; step < 2; step++)
#pragma unroll
                for (int i = 0; i < tiles; i++) {
                    const unsigned pair[2] = {b[i][2 * step], b[i][2 * step + 1]};
                    if constexpr (kw::is_bf16<Element>)
                        kw::mma_bf16_f32(sums[step % chains][i], a[step], pair);
                    else
                        kw::mma_f16_f32(sums[step % chains][i], a[step], pair);
                }
        };
        half.template operator()<0, 0>();
        half.template operator()<0, 1>();
        half.template operator()<1, 0>();
        half.template operator()<1, 1>();
        __syncwarp();
        stream.start(k + stream.slots, slot);
        if (++slot == stream.slots) slot = 0, parity ^= 1;
        if (++record == at.records || k == stream.count - 1) {
            if constexpr (chains == 2)
                for (int e = 0; e < 4; e++) sums[0][0][e] += sums[1][0][e], sums[1][0][e] = 0.f;
            store_part(sums[0], at, warp, strip, record == at.records, N);
            record = 0, strip++;
            if (k < stream.count - 1) open_strip(at, warp, strip);
        }
    }
}

extern "C" __global__ void __launch_bounds__(Config::warps * 32, 1)
    spmm(const Element* x, const unsigned char* records, const int* offsets, const int* facts, const Element* bias,
         const Element* factor, const Element* addend, Element* y, int N, int M, int K, int ld_x, int ld_factor, int ld_addend,
         int ld_y, long long bytes) {
    run_streams(x, records, bytes, offsets, facts, bias, factor, addend, y, N, M, K, ld_x, ld_factor, ld_addend, ld_y,
                [](Stream& stream, const Layout& at, int N, int prefix_bits) {
                    if (prefix_bits == 16)
                        multiply_stream<true>(stream, at, N);
                    else
                        multiply_stream<false>(stream, at, N);
                });
}
