// Y = X W^T for few rows of X, W in three layers (layouts/three_layer.py): the 2:4 part and the overflow as two sparse products
// of tensor cores, the residual on CUDA cores.
//
// Blocks, streams and sums are those of ring.cuh. A warp's turn with a record: its lanes move the fillers out of their slots, in
// the record itself, to their places in a matrix of the overflow, which is the warp's own and otherwise zero; then each k-step
// multiplies the slots by their codes and the overflow by a constant code, as a third or fourth non-zero of a group stands in
// its column 2 or 3; then each four lanes add what their rows of the residual contribute to their own sums. Meanwhile the copies
// of its next records are on their way.
//
// Fillers are listed by blocks of 256 slots; four lanes move those of a block, four entries at a time, so that loads of one entry
// do not wait for stores of another. Counted in sm_90a's code at 50 % and 8 rows of X, a weight takes about 3.3 instructions where
// one of a quad-bitmap takes 5.1, for 1.14 times the bytes.
#include "kernelwright/numeric.cuh"

// config: begin
struct Config {
    using Element = kw::f16;
    static constexpr int tiles = 1;  // of 8 rows of X
    static constexpr int warps = 12, ring_bytes = 12928, scratch_bytes = 4096, cluster = 2;
    static constexpr bool bulk = true, x_vectors = true;
    static constexpr int prefetched = 0, record_sixteenths = 0;
    static constexpr bool bias = false, silu_mul = false, swiglu = false, residual = false;
};
// config: end

constexpr int record_rows = 16, record_columns = 256;
#include "ring.cuh"

constexpr unsigned codes_at = 4096, ends_at = codes_at + 512, fillers_at = ends_at + 32;
constexpr unsigned upper_half = 0xeeeeeeee;  // the code of columns 2 and 3, in each group
constexpr int entries = 4;                   // of a lane at a time

template <int Selector>
__device__ __forceinline__ void multiply(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[4], unsigned codes) {
    if constexpr (kw::is_bf16<Element>)
        kw::mma_sp_bf16_f32<Selector>(sums, a, b, codes);
    else
        kw::mma_sp_f16_f32<Selector>(sums, a, b, codes);
}

/// Moves fillers from their slots in the record to their places among the overflow.
__device__ __forceinline__ void place_fillers(unsigned record, unsigned overflow) {
    const unsigned block = threadIdx.x % 32 / 4;
    const unsigned slots = record + block * 512, places = overflow + block * 512 - 256;  // a distance is 128 too large
    const unsigned end = record + kw::load_shared_2(record + ends_at + block * 2);
    unsigned from = record + (block ? kw::load_shared_2(record + ends_at + block * 2 - 2) : fillers_at) + threadIdx.x % 4 * 2;
#pragma unroll 1
    for (; from < end; from += 8 * entries) {
        unsigned entry[entries], slot[entries], value[entries];
#pragma unroll
        for (int i = 0; i < entries; i++) entry[i] = kw::load_shared_2_or_zero(from + 8 * i, from + 8 * i < end);
#pragma unroll
        for (int i = 0; i < entries; i++) {
            slot[i] = kw::dot_bytes(entry[i], 0x0002, slots);
            // beyond the end this would be the block's first slot, which another lane may be emptying: a race to racecheck, though
            // nothing is stored
            value[i] = kw::load_shared_2_or_zero(slot[i], from + 8 * i < end);
        }
#pragma unroll
        for (int i = 0; i < entries; i++) {
            kw::store_shared_2_if(slot[i], 0, from + 8 * i < end);
            kw::store_shared_2_if(kw::dot_bytes(entry[i], 0x0202, places), value[i], from + 8 * i < end);
        }
    }
}

/// Adds the residual's part of a record to the sums; x_record: where the record's columns of X begin.
__device__ __forceinline__ void add_residual(float (&sums)[Config::tiles][4], unsigned record, unsigned x_record, int N) {
    const unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const unsigned end = record + kw::load_shared_2(record + ends_at + 16 + g * 2);
    // that of g = 0 begins behind all fillers, whose end precedes it in the list; at a multiple of 4
    unsigned from = record + ((kw::load_shared_2(record + ends_at + 14 + g * 2) + 3) & ~3u);
#pragma unroll 1
    for (; from < end; from += 4) {
        const unsigned entry = kw::load_shared_4(from), column = entry >> 16 & 255;
        const float weight = kw::to_float(Element{static_cast<unsigned short>(entry)});
        const unsigned at = x_record + column / 64 * 128 * N + column % 8 * 2, piece = column / 8 % 8;
#pragma unroll
        for (int i = 0; i < Config::tiles; i++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const unsigned row = min(i * 8 + t * 2 + e, N - 1);
                const float x = kw::to_float(Element{kw::load_shared_2(at + row * 128 + ((piece ^ row % 8) << 4))});
                if (entry >> 24)
                    sums[i][2 + e] += weight * x;
                else
                    sums[i][e] += weight * x;
            }
    }
}

__device__ __forceinline__ void multiply_stream(Stream& stream, const Layout& at, int N) {
    constexpr int tiles = Config::tiles;
    const unsigned lane = threadIdx.x % 32;
    const int warp = kw::warp_index();
    // ldmatrix: lanes 8 i to 8 i + 7 give the rows of piece i of 32 columns. Rows that X lacks repeat its last: nobody reads
    // their sums.
    unsigned x_at[tiles], x_piece[tiles];
#pragma unroll
    for (int i = 0; i < tiles; i++) {
        const int row = min(i * 8 + int(lane % 8), N - 1);
        x_at[i] = at.slab + row * 128, x_piece[i] = (lane / 8 ^ row & 7) << 4;
    }
    if (stream.count == 0) return;
    const unsigned overflow = stream.ring + Config::ring_bytes;
    constexpr uint4 nothing = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 8; i++) kw::store_shared_16(overflow + i * 512 + lane * 16, nothing);
    __syncwarp();

    // with one tile the overflow's sums apart, so that an mma waits for the one before the last
    constexpr int chains = tiles == 1 ? 2 : 1;
    float sums[chains][tiles][4] = {};
    int strip = stream.strip_of(stream.begin), record = stream.begin - strip * at.records, slot = 0;
    if (record == 0) open_strip(at, warp, strip);
    unsigned parity = 0;
#pragma unroll 1
    for (int k = 0; k < stream.count; k++) {
        stream.wait(slot, parity);
        const unsigned from = stream.ring + slot * stream.slot_bytes, x_record = record * 512 * N;
        place_fillers(from, overflow);
        __syncwarp();
        const uint4 loaded = kw::load_shared_16(from + codes_at + lane * 16);
        const unsigned codes[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
#pragma unroll
        for (int step = 0; step < 8; step++) {
            const uint4 own = kw::load_shared_16(from + step * 512 + lane * 16);
            const uint4 over = kw::load_shared_16(overflow + step * 512 + lane * 16);
            kw::store_shared_16(overflow + step * 512 + lane * 16, nothing);
            const unsigned slots[4] = {own.x, own.y, own.z, own.w}, others[4] = {over.x, over.y, over.z, over.w};
#pragma unroll
            for (int i = 0; i < tiles; i++) {
                unsigned b[4];
                kw::ldmatrix_x4(b, x_record + step / 2 * 128 * N + x_at[i] + (x_piece[i] ^ step % 2 * 64));
                if (step % 2 == 0)
                    multiply<0>(sums[0][i], slots, b, codes[step / 2]);
                else
                    multiply<1>(sums[0][i], slots, b, codes[step / 2]);
                multiply<0>(sums[chains - 1][i], others, b, upper_half);
            }
        }
        add_residual(sums[0], from, at.slab + x_record, N);
        if constexpr (Config::bulk) kw::fence_async_proxy();  // slots were written; the next copy writes there, too
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
                [](Stream& stream, const Layout& at, int N, int) { multiply_stream(stream, at, N); });
}
