// A block's part of a product with compressed weights: its strips' records as one list that its warps share, X beside them, and
// the sums on their way out. Included behind Config,
// record_rows and record_columns; what a warp does with its records is the caller's.
//
// Before sm_90 (Config::bulk is false) lanes copy 16 bytes each by cp.async, and a cluster is one block.
#pragma once
#include "finish.cuh"
#include "kernelwright/barrier.cuh"
#include "kernelwright/copy.cuh"
#include "kernelwright/layout.cuh"
#include "kernelwright/mma.cuh"
#include "kernelwright/numeric.cuh"
#include "kernelwright/pdl.cuh"
#include "kernelwright/tma.cuh"

using Element = Config::Element;
constexpr int unit = Config::swiglu ? 2 : 1;      // strips that a cluster must have together
constexpr int most_slots = Config::bulk ? 8 : 4;  // of a ring; cp.async waits for a constant number of groups

/// The first of `count` things that part `part` of Parts has. The plan promises that the product fits 32 bits.
template <int Parts>
__device__ __forceinline__ int first_of(unsigned count, unsigned part) {
    return count * part / Parts;
}

/// Where the parts of a block's shared memory begin, and how much of the matrix is its own.
struct Layout {
    int strip0, strips, record0, records, per_strip;
    unsigned barriers, owners, sums, slab, ring;  // rings: of each warp `ring_bytes`, then Config::scratch_bytes of its own

    __device__ __forceinline__ Layout(unsigned shared, int N, int M, int K, int cluster, int clusters, int part) {
        const int all = kw::ceil_div(M, record_rows * unit);
        const int each = kw::quotient(all, kw::reciprocal_fast(clusters)), more = all - each * clusters;  // `more` have one more
        const int most_strips = (each + (more > 0)) * unit;
        per_strip = kw::ceil_div(K, record_columns);
        strip0 = (cluster * each + min(cluster, more)) * unit, strips = (each + (cluster < more)) * unit;
        record0 = first_of<Config::cluster>(per_strip, part);
        records = first_of<Config::cluster>(per_strip, part + 1) - record0;
        barriers = shared;
        owners = barriers + Config::warps * most_slots * 8;  // of each strip, 8 bytes: the first warp that has a part, and the last
        sums = owners + most_strips * 8;
        slab = shared + kw::ceil_div(sums + (Config::warps + most_strips) * N * 64 - shared, 128) * 128;
        ring = slab + kw::ceil_div(per_strip, Config::cluster) * record_columns * 2 * N;
    }
};

/// The block's part of X: for each 64 columns its N rows of 128 bytes, 16-byte pieces swizzled so that ldmatrix meets no bank
/// twice.
__device__ __forceinline__ void load_x(const Element* x, int ld_x, int N, int K, const Layout& at) {
    constexpr int per_record = record_columns / 8;
    const int pieces = at.records * per_record;
    for (int i = threadIdx.x; i < pieces * N; i += Config::warps * 32) {
        const int n = i / pieces, piece = i % pieces, column = (at.record0 * per_record + piece) * 8;
        const unsigned to = at.slab + (piece / 8 * N + n) * 128 + ((piece % 8 ^ n & 7) << 4);
        const Element* from = x + (long long)n * ld_x + column;
        if constexpr (Config::x_vectors) {
            kw::cp_async_or_zero<16>(to, column < K ? from : x, column < K);
        } else {
            unsigned words[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                words[j] = kw::load_global_2_or_zero(from + 2 * j, column + 2 * j < K) |
                           kw::load_global_2_or_zero(from + 2 * j + 1, column + 2 * j + 1 < K) << 16;
            kw::store_shared_16(to, make_uint4(words[0], words[1], words[2], words[3]));
        }
    }
    kw::cp_async_commit();
}

/// A warp's ring: which records it reads, and how they come.
struct Stream {
    struct Place {
        int first, end;  // in units of 16 bytes; as they are loaded, for to subtract them would be to wait for them
    };
    const unsigned char* records;
    const int* offsets;
    const Layout& at;
    int begin, count;      // of the block's list
    int slots, slot_bytes;
    unsigned ring, barriers;
    Place here, next;      // a lane has one record of the current 32, and one of the 32 after

    __device__ __forceinline__ int strip_of(int item) const { return kw::quotient(item, kw::reciprocal_fast(at.records)); }
    /// Of all records of the matrix.
    __device__ __forceinline__ long long number_of(int k) const {
        const int item = begin + k, strip = strip_of(item);
        return (long long)(at.strip0 + strip) * at.per_strip + at.record0 + item - strip * at.records;
    }
    __device__ __forceinline__ Place place(int k) const {
        const int* offset = offsets + number_of(k);
        Place p;
        p.first = kw::load_global_4_or_zero(offset, k < count);
        p.end = kw::load_global_4_or_zero(offset + 1, k < count);
        return p;
    }

    /// Has L2 ask memory for the first records where they would be if all were as long as the mean, while the offsets that say
    /// where they are have not come yet: one latency of memory instead of two until the first record is there. Nothing but time
    /// depends on the guess; `bytes` are what may be touched.
    __device__ __forceinline__ void prefetch(long long bytes) const {
        constexpr int margin = 192, size = (Config::record_sixteenths / 16 + 2 * margin) / 16 * 16;
        if (const int k = threadIdx.x % 32; k < Config::prefetched && k < count) {
            const long long from = max(0ll, (number_of(k) * Config::record_sixteenths >> 4) - margin) / 16 * 16;
            if (from + size <= bytes) kw::bulk_prefetch(records + from, size);
        }
    }

    /// Begins to copy record k into a slot, if the stream has so many. By the whole warp, in the order of k.
    __device__ __forceinline__ void start(int k, int slot) {
        const int lane = threadIdx.x % 32;
        const unsigned to = ring + slot * slot_bytes;
        if constexpr (Config::bulk) {
            if (lane == k % 32 && k < count) {
                const unsigned bytes = (here.end - here.first) << 4;
                kw::barrier_expect(barriers + slot * 8, bytes);
                kw::bulk_load(to, records + ((long long)here.first << 4), bytes, barriers + slot * 8, kw::Evict::first);
            }
        } else {
            const int first = __shfl_sync(~0u, here.first, k % 32);
            const unsigned bytes = __shfl_sync(~0u, here.end - here.first, k % 32) << 4;
            const unsigned char* from = records + ((long long)first << 4);
            for (unsigned i = lane * 16; i < bytes; i += 512) kw::cp_async<16>(to + i, from + i);
            kw::cp_async_commit();
        }
        if (k % 32 == 31) here = next, next = place(k + 33 + lane);
    }

    __device__ __forceinline__ void wait(int slot, unsigned parity) const {
        if constexpr (Config::bulk) {
            kw::barrier_wait(barriers + slot * 8, parity);
        } else {
            if (slots == 1)
                kw::cp_async_wait<0>();
            else if (slots == 2)
                kw::cp_async_wait<1>();
            else if (slots == 3)
                kw::cp_async_wait<2>();
            else
                kw::cp_async_wait<3>();
            __syncwarp();
        }
    }
};

/// Says that a warp has the first record of a strip.
__device__ __forceinline__ void open_strip(const Layout& at, int warp, int strip) {
    if (threadIdx.x % 32 == 0) kw::store_shared_4(at.owners + strip * 8, warp);
}

/// A warp's sums of its part of a strip go to the part's place: warp + strip grows from part to part, no two share one. `ends`:
/// the part has the strip's last record.
template <int Tiles>
__device__ __forceinline__ void store_part(float (&sums)[Tiles][4], const Layout& at, int warp, int strip, bool ends, int N) {
    const int lane = threadIdx.x % 32;
    if (ends && lane == 0) kw::store_shared_4(at.owners + strip * 8 + 4, warp);
    const unsigned to = at.sums + (warp + strip) * N * 64;
#pragma unroll
    for (int i = 0; i < Tiles; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int row = lane / 4 + e / 2 * 8, n = i * 8 + lane % 4 * 2 + e % 2;
            if (n < N) kw::store_shared_4(to + (n * 16 + row) * 4, __float_as_uint(sums[i][e]));
            sums[i][e] = 0.f;
        }
}

/// The whole kernel; `multiply(stream, at, N, fact)`, with the rows of X that the block has and the first of the layout's facts,
/// leaves the sums of a warp's parts of strips at their places.
template <class Multiply>
__device__ __forceinline__ void run_streams(const Element* x, const unsigned char* records, long long bytes, const int* offsets,
                                            const int* facts, const Element* bias, const Element* factor, const Element* addend,
                                            Element* y, int N, int M, int K, int ld_x, int ld_factor, int ld_addend, int ld_y,
                                            const Multiply& multiply) {
    extern __shared__ __align__(128) unsigned char shared[];
    // blocks of one blockIdx.y have a few rows of X, and read all of W for them
    const int n0 = blockIdx.y * 8 * Config::tiles;
    x += (long long)n0 * ld_x, y += (long long)n0 * ld_y;
    if constexpr (Config::silu_mul) factor += (long long)n0 * ld_factor;
    if constexpr (Config::residual) addend += (long long)n0 * ld_addend;
    N = min(N - n0, 8 * Config::tiles);
    const int lane = threadIdx.x % 32, warp = kw::warp_index();
    const int clusters = gridDim.x / Config::cluster, part = blockIdx.x % Config::cluster;
    const Layout at(kw::shared_address(shared), N, M, K, blockIdx.x / Config::cluster, clusters, part);
    const unsigned barriers = at.barriers + warp * most_slots * 8;
    if constexpr (Config::bulk) {
        if (lane < most_slots) kw::barrier_init(barriers + lane * 8, 1);
        kw::fence_barrier_init();
        __syncwarp();
    }
    kw::launch_dependents();

    const int items = at.strips * at.records;
    Stream stream = {records, offsets, at};
    stream.begin = items < Config::warps ? min(warp, items) : first_of<Config::warps>(items, warp);
    stream.count = (items < Config::warps ? min(warp + 1, items) : first_of<Config::warps>(items, warp + 1)) - stream.begin;
    stream.barriers = barriers;
    stream.here = stream.place(lane), stream.next = stream.place(32 + lane);
    const int fact = kw::load_global_4_or_zero(facts, true), largest = kw::load_global_4_or_zero(facts + 1, true);
    if constexpr (Config::prefetched > 0) stream.prefetch(bytes);  // before anything waits for what was loaded
    stream.slot_bytes = kw::ceil_div(largest, 128) * 128;
    // at least 1: the plan has room for a record without zeros
    stream.slots = min(most_slots, kw::quotient(Config::ring_bytes, kw::reciprocal_fast(stream.slot_bytes)));
    stream.ring = at.ring + warp * (Config::ring_bytes + Config::scratch_bytes);
    for (int k = 0; k < stream.slots; k++) stream.start(k, k);
    kw::grid_dependency_wait();  // so far only the weight, which no kernel writes, was read
    load_x(x, ld_x, N, K, at);
    kw::cp_async_wait<0>();
    __syncthreads();

    multiply(stream, at, N, fact);
    __syncthreads();

    // the sums of a strip lie at warp + strip, for the warps from the one that has its first record to the one that has its last
    const Finish<Config> finish = {bias, factor, addend, y, ld_factor, ld_addend, ld_y};
    const int each = N * 16, total = at.strips * each;
    const auto of_block = [&](int i) {
        const int strip = i / each;
        float value = 0.f;
        if (items) {
            const uint2 of = kw::load_shared_8(at.owners + strip * 8);
            for (int w = of.x; w <= int(of.y); w++)
                value += __uint_as_float(kw::load_shared_4(at.sums + ((w + strip) * each + i - strip * each) * 4));
        }
        return value;
    };
    // element i of the block's part of Y, from where its sums are
    const auto out = [&](int i, const auto& sum) {
        const int strip = i / each, row = (at.strip0 + strip * unit) * 16 + i % 16, n = (i - strip * each) / 16;
        if constexpr (Config::swiglu)
            finish.store_gated(sum(i + strip * each), sum(i + (strip + 1) * each), n, (at.strip0 / 2 + strip) * 16 + i % 16, row);
        else if (row < M)
            finish.store(sum(i), n, row);
    };
    if constexpr (Config::cluster == 1) {
        for (int i = threadIdx.x; i < total / unit; i += Config::warps * 32) out(i, of_block);
    } else {
        for (int i = threadIdx.x; i < total; i += Config::warps * 32)
            kw::store_shared_4(at.slab + i * 4, __float_as_uint(of_block(i)));  // X and the rings are done with
        kw::cluster_arrive();
        kw::cluster_wait();
        const auto of_cluster = [&](int i) {
            float value = 0.f;
#pragma unroll
            for (int rank = 0; rank < Config::cluster; rank++)
                value += kw::load_cluster_float(kw::cluster_address(at.slab + i * 4, rank));
            return value;
        };
        for (int i = part * Config::warps * 32 + threadIdx.x; i < total / unit; i += Config::cluster * Config::warps * 32)
            out(i, of_cluster);
        kw::cluster_arrive_relaxed();  // nobody leaves while its sums are read; there is nothing to hand over
        kw::cluster_wait();
    }
}
