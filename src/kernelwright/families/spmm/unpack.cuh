// Quad-bitmap records -> the dense weight, for products with so many rows of X that a dense product is faster: a warp for each
// record.
//
// What a lane decodes are fragments, two neighbours at a time; they meet in shared memory, where rows are 272 bytes apart so that
// neither writing fragments nor reading rows meets a bank twice, and leave as whole rows of 256 bytes.
#include "decode.cuh"
#include "kernelwright/copy.cuh"
#include "kernelwright/layout.cuh"
#include "kernelwright/pdl.cuh"

// config: begin
struct Config {
    using Element = kw::f16;
    static constexpr int expected = 16;  // values in a word of 32 weights
    static constexpr int warps = 8;
    static constexpr bool vectors = true;  // rows of W are multiples of 16 bytes
    static constexpr Packing packing = Packing::late;
};
// config: end

using Element = Config::Element;
constexpr int record_bytes = 4480, row_bytes = 272, warp_bytes = record_bytes + 16 * row_bytes;

template <bool Wide>
__device__ __forceinline__ void expand_record(unsigned record, unsigned tile) {
    const Record<Config::expected, Wide, Config::packing> reader;
    const unsigned lane = threadIdx.x % 32, to = tile + lane / 4 * row_bytes + lane % 4 * 4;
    auto half = [&]<int Chunk, int Half>() {
        unsigned a[2][4];
        reader.template fragments<Chunk, Half>(record, a);
#pragma unroll
        for (int step = 0; step < 2; step++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                kw::store_shared_4(to + i % 2 * 8 * row_bytes + Chunk * 128 + (Half * 2 + step) * 32 + i / 2 * 16, a[step][i]);
    };
    half.template operator()<0, 0>();
    half.template operator()<0, 1>();
    half.template operator()<1, 0>();
    half.template operator()<1, 1>();
}

extern "C" __global__ void __launch_bounds__(Config::warps * 32)
    unpack(const unsigned char* records, const int* offsets, const int* facts, Element* w, int M, int K, int ld_w) {
    extern __shared__ __align__(128) unsigned char shared[];
    const int lane = threadIdx.x % 32, per_strip = kw::ceil_div(K, record_columns);
    const int all = kw::ceil_div(M, record_rows) * per_strip;
    const unsigned slot = kw::shared_address(shared) + threadIdx.x / 32 * warp_bytes, tile = slot + record_bytes;
    kw::launch_dependents();
    kw::grid_dependency_wait();
    const bool wide = kw::load_global_4_or_zero(facts, true) == 16;
    for (int i = blockIdx.x * Config::warps + threadIdx.x / 32; i < all; i += gridDim.x * Config::warps) {
        const int first = kw::load_global_4_or_zero(offsets + i, true), end = kw::load_global_4_or_zero(offsets + i + 1, true);
        const unsigned char* from = records + ((long long)first << 4);
        for (int piece = lane; piece < end - first; piece += 32) kw::cp_async<16>(slot + piece * 16, from + piece * 16);
        kw::cp_async_commit();
        kw::cp_async_wait<0>();
        __syncwarp();
        if (wide)
            expand_record<true>(slot, tile);
        else
            expand_record<false>(slot, tile);
        __syncwarp();
        const int m0 = i / per_strip * record_rows, k0 = i % per_strip * record_columns;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int row = j * 2 + lane / 16, column = k0 + lane % 16 * 8;
            const uint4 piece = kw::load_shared_16(tile + row * row_bytes + lane % 16 * 16);
            Element* to = w + (long long)(m0 + row) * ld_w + column;
            const unsigned words[4] = {piece.x, piece.y, piece.z, piece.w};
            if (m0 + row >= M) continue;
            if constexpr (Config::vectors) {
                if (column < K) kw::store_global_16(to, piece);
            } else {
#pragma unroll
                for (int e = 0; e < 8; e++)
                    if (column + e < K) kw::store_global_2(to + e, words[e / 2] >> e % 2 * 16);
            }
        }
        __syncwarp();  // the tile is read, and the record: the next may come
    }
}
