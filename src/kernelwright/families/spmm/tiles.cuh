// Y = X W^T for 16 rows of X and more, W in quad-bitmap records: decoded weights are wgmma's register operand A, X its shared
// operand B.
//
// A tile is 64 rows of W for each warpgroup. All tiles' steps of 128 columns are one list, which the blocks (one a
// multiprocessor) share evenly, so that any number of rows fills all of them. A producer warp brings X by TMA, a stage a step,
// for all warpgroups; every other warp reads the records of its own 16 rows through a ring of bulk copies. Where a block's share
// holds all of a tile, it stores Y; else its sums go to the workspace, at block + tile, which no two share, and the second kernel
// adds them up in the order of blocks: the same bits every time, and nothing that blocks wait for.
#include "decode.cuh"
#include "finish.cuh"
#include "kernelwright/barrier.cuh"
#include "kernelwright/copy.cuh"
#include "kernelwright/layout.cuh"
#include "kernelwright/numeric.cuh"
#include "kernelwright/pdl.cuh"
#include "kernelwright/tma.cuh"
#include "kernelwright/wgmma.cuh"

// config: begin
struct Config {
    using Element = kw::f16;
    static constexpr int expected = 16;  // values in a word of 32 weights
    static constexpr int columns = 32;   // rows of X, wgmma's N
    static constexpr int groups = 4, stages = 4, ring_bytes = 5376;
    static constexpr bool bias = false, silu_mul = false, swiglu = false, residual = false;
};
// config: end

using Element = Config::Element;
constexpr int columns = Config::columns, fragments = columns / 8;
constexpr int warps = 4 * Config::groups, tile_strips = warps, unit_floats = 128;  // a unit: 16 rows of W, 8 of X, 4 sums a lane
constexpr int most_slots = 8;
constexpr int half_bytes = columns * 128, stage_bytes = 2 * half_bytes;  // 64 columns of X, and 128
constexpr int rings_at = Config::stages * stage_bytes, barriers_at = rings_at + warps * Config::ring_bytes;

/// The list of all steps, and the blocks' shares of it: `each` steps, of the first `more` blocks one more.
struct Share {
    int per_tile, each, more;
    float reciprocal;  // of per_tile

    __device__ __forceinline__ Share(int M, int K, int blocks) {
        per_tile = kw::ceil_div(K, record_columns), reciprocal = kw::reciprocal_fast(per_tile);
        const int items = kw::ceil_div(M, 16 * tile_strips) * per_tile;
        each = kw::quotient(items, kw::reciprocal_fast(blocks)), more = items - each * blocks;
    }
    __device__ __forceinline__ int begin(int block) const { return block * each + min(block, more); }
    __device__ __forceinline__ int count(int block) const { return each + (block < more); }
    /// The block that has this item. `each` is 1 at least: there are no more blocks than items.
    __device__ __forceinline__ int owner(int item) const {
        const int longer = more * (each + 1);
        return item < longer ? kw::quotient(item, kw::reciprocal_fast(each + 1))
                             : more + kw::quotient(item - longer, kw::reciprocal_fast(each));
    }
    __device__ __forceinline__ int tile(int item) const { return kw::quotient(item, reciprocal); }
};

/// A lane's four sums of a unit: rows of W lane / 4 and 8 further, rows of X 2 (lane % 4) and the next.
__device__ __forceinline__ void store_unit(const Finish<Config>& finish, float4 sums, int strip, int fragment, int N, int M) {
    const int lane = threadIdx.x % 32, m = strip * 16 + lane / 4, n = fragment * 8 + lane % 4 * 2;
    if (m < M && n < N) finish.store(sums.x, n, m);
    if (m < M && n + 1 < N) finish.store(sums.y, n + 1, m);
    if (m + 8 < M && n < N) finish.store(sums.z, n, m + 8);
    if (m + 8 < M && n + 1 < N) finish.store(sums.w, n + 1, m + 8);
}

/// The same of a gate's strip and of the other's behind it.
__device__ __forceinline__ void store_gated_unit(const Finish<Config>& finish, float4 gate, float4 other, int strip, int fragment,
                                                 int N, int M) {
    const int lane = threadIdx.x % 32, row = strip * 16 + lane / 4, m = strip * 8 + lane / 4;
    const int n = fragment * 8 + lane % 4 * 2;
    if (row >= M) return;  // M is a multiple of 32
    if (n < N) finish.store_gated(gate.x, other.x, n, m, row), finish.store_gated(gate.z, other.z, n, m + 8, row + 8);
    if (n + 1 < N) finish.store_gated(gate.y, other.y, n + 1, m, row), finish.store_gated(gate.w, other.w, n + 1, m + 8, row + 8);
}

/// X for every step of the block's share.
__device__ __forceinline__ void produce(const CUtensorMap* map_x, unsigned shared, const Share& share, int begin, int count) {
    if (!kw::elect_one()) return;
    const unsigned full = shared + barriers_at, empty = full + Config::stages * 8;
    int record = begin - share.tile(begin) * share.per_tile, stage = 0;
    unsigned parity = 1;  // the first round finds all stages empty
    for (int k = 0; k < count; k++) {
        kw::barrier_wait(empty + stage * 8, parity);
        kw::barrier_expect(full + stage * 8, stage_bytes);
#pragma unroll
        for (int half = 0; half < 2; half++)
            kw::tma_load(shared + stage * stage_bytes + half * half_bytes, map_x, full + stage * 8, record * 128 + half * 64, 0,
                         kw::Evict::last);
        if (++stage == Config::stages) stage = 0, parity ^= 1;
        if (++record == share.per_tile) record = 0;
    }
}

/// A warp's ring of records.
struct Stream {
    struct Place {
        int first, end;  // in units of 16 bytes; as they are loaded, for to subtract them would be to wait for them
    };
    const unsigned char* records;
    const int* offsets;
    const Share& share;
    int warp, strips, begin, count, slots, slot_bytes;
    unsigned ring, barriers;
    Place here, next;  // a lane has one record of the current 32, and one of the 32 after

    __device__ __forceinline__ Place place(int k) const {
        const int tile = share.tile(begin + k), record = begin + k - tile * share.per_tile;
        const int strip = min(tile * tile_strips + warp, strips - 1);  // below the matrix, the last again: nobody stores it
        const int* offset = offsets + (long long)strip * share.per_tile + record;
        Place p;
        p.first = kw::load_global_4_or_zero(offset, k < count);
        p.end = kw::load_global_4_or_zero(offset + 1, k < count);
        return p;
    }
    __device__ __forceinline__ void start(int k, int slot) {
        const int lane = threadIdx.x % 32;
        if (lane == k % 32 && k < count) {
            const unsigned bytes = (here.end - here.first) << 4;
            kw::barrier_expect(barriers + slot * 8, bytes);
            kw::bulk_load(ring + slot * slot_bytes, records + ((long long)here.first << 4), bytes, barriers + slot * 8,
                          kw::Evict::first);
        }
        if (k % 32 == 31) here = next, next = place(k + 33 + lane);
    }
};

template <bool Wide>
__device__ __forceinline__ void consume(unsigned shared, const Share& share, Stream& stream, float4* workspace,
                                        const Finish<Config>& finish, int N, int M) {
    const int lane = threadIdx.x % 32, warp = kw::warp_index();
    // packed late, ptxas 13.x takes the loads for branches and serialises wgmma (C7520)
    const Record<Config::expected, Wide, Packing::at_once> reader;
    const unsigned full = shared + barriers_at, empty = full + Config::stages * 8;
    float sums[columns / 2] = {};
    int tile = share.tile(stream.begin), record = stream.begin - tile * share.per_tile, first_record = record;
    int slot = 0, stage = 0;
    unsigned parity = 0, x_parity = 0;
#pragma unroll 1
    for (int k = 0; k < stream.count; k++) {
        kw::barrier_wait(stream.barriers + slot * 8, parity);
        kw::barrier_wait(full + stage * 8, x_parity);
        const unsigned from = stream.ring + slot * stream.slot_bytes, x = shared + stage * stage_bytes;
        unsigned a[2][2][4];
        auto next = reader.template head<0, 0>(from);
        auto half = [&]<int Chunk, int Half>() {
            constexpr int turn = Half;
            const auto head = next;
            if constexpr (Chunk + Half < 2) next = reader.template head<Chunk + Half, 1 - Half>(from);  // before wgmma orders loads
            reader.template fragments<Chunk, Half>(from, head, a[turn]);
            kw::wgmma_fence();
#pragma unroll
            for (int step = 0; step < 2; step++)
                kw::WgmmaRegisters<Element, columns>::run(
                    sums, a[turn][step], kw::wgmma_descriptor<128>(x + Chunk * half_bytes + (Half * 2 + step) * 32, 0, 1024));
            kw::wgmma_commit();
            kw::wgmma_wait<Chunk + Half == 2 ? 0 : 1>();  // the half before has been read: its registers may be written again
            if constexpr (Chunk + Half > 0) kw::wgmma_settle(a[1 - turn][0]), kw::wgmma_settle(a[1 - turn][1]);
        };
        half.template operator()<0, 0>();
        half.template operator()<0, 1>();
        half.template operator()<1, 0>();
        half.template operator()<1, 1>();
        kw::wgmma_settle(a[1][0]), kw::wgmma_settle(a[1][1]), kw::wgmma_settle(sums);
        __syncwarp();
        if (lane == 0) kw::barrier_arrive(empty + stage * 8);
        stream.start(k + stream.slots, slot);
        if (++slot == stream.slots) slot = 0, parity ^= 1;
        if (++stage == Config::stages) stage = 0, x_parity ^= 1;
        if (++record == share.per_tile || k == stream.count - 1) {
            // a gate's rows and the other's are with neighbouring warps, and meet in the workspace
            const bool whole = !Config::swiglu && first_record == 0 && record == share.per_tile;
            float4* to = workspace + ((long long)(blockIdx.x + tile) * warps + warp) * fragments * 32 + lane;
#pragma unroll
            for (int i = 0; i < fragments; i++) {
                const float4 unit = {sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]};
                if (whole)
                    store_unit(finish, unit, tile * tile_strips + warp, i, N, M);
                else
                    kw::store_global_float4(reinterpret_cast<float*>(to + i * 32), unit);
                sums[4 * i] = sums[4 * i + 1] = sums[4 * i + 2] = sums[4 * i + 3] = 0.f;
            }
            record = first_record = 0, tile++;
        }
    }
}

extern "C" __global__ void __launch_bounds__(warps * 32 + 32, 1)
    spmm(const __grid_constant__ CUtensorMap map_x, const unsigned char* records, const int* offsets, const int* facts,
         const Element* bias, const Element* factor, const Element* addend, Element* y, float4* workspace, int N, int M, int K,
         int ld_factor, int ld_addend, int ld_y) {
    extern __shared__ __align__(1024) unsigned char bytes[];
    const unsigned shared = kw::shared_address(bytes);
    const int lane = threadIdx.x % 32, warp = kw::warp_index();
    const unsigned full = shared + barriers_at, empty = full + Config::stages * 8, own = empty + Config::stages * 8;
    // each its own: one thread would take a turn of a loop for each of 128
    if (warp < warps && lane < most_slots) kw::barrier_init(own + (warp * most_slots + lane) * 8, 1);
    if (warp == warps && lane < Config::stages) kw::barrier_init(full + lane * 8, 1), kw::barrier_init(empty + lane * 8, warps);
    kw::fence_barrier_init();
    __syncthreads();
    kw::launch_dependents();

    const Share share(M, K, gridDim.x);
    const int begin = share.begin(blockIdx.x), count = share.count(blockIdx.x);
    if (warp == warps) {
        kw::prefetch_tensor_map(&map_x);
        kw::grid_dependency_wait();
        produce(&map_x, shared, share, begin, count);
    } else {
        Stream stream = {records, offsets, share, warp, kw::ceil_div(M, record_rows), begin, count};
        stream.here = stream.place(lane), stream.next = stream.place(32 + lane);
        const bool wide = kw::load_global_4_or_zero(facts, true) == 16;
        stream.slot_bytes = kw::ceil_div(kw::load_global_4_or_zero(facts + 1, true), 128) * 128;
        // at least 1: there is room for a record without zeros
        stream.slots = min(most_slots, kw::quotient(Config::ring_bytes, kw::reciprocal_fast(stream.slot_bytes)));
        stream.ring = shared + rings_at + warp * Config::ring_bytes, stream.barriers = own + warp * most_slots * 8;
        for (int k = 0; k < stream.slots; k++) stream.start(k, k);
        kw::grid_dependency_wait();  // so far only the weight, which no kernel writes, was read
        const Finish<Config> finish = {bias, factor, addend, y, ld_factor, ld_addend, ld_y};
        if (wide)
            consume<true>(shared, share, stream, workspace, finish, N, M);
        else
            consume<false>(shared, share, stream, workspace, finish, N, M);
    }
}

/// Adds the parts of a tile that several blocks share; blockIdx.x is the tile, blockIdx.y the 8 rows of X.
extern "C" __global__ void __launch_bounds__(warps * 32)
    add_parts(const float* workspace, const Element* bias, const Element* factor, const Element* addend, Element* y, int N, int M,
              int K, int blocks, int ld_factor, int ld_addend, int ld_y) {
    const int tile = blockIdx.x, fragment = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Share share(M, K, blocks);
    const int first = share.owner(tile * share.per_tile), last = share.owner((tile + 1) * share.per_tile - 1);
    kw::launch_dependents();
    kw::grid_dependency_wait();
    const auto sum_of = [&](int warp) {
        float4 sum = {0.f, 0.f, 0.f, 0.f};
        for (int block = first; block <= last; block++) {
            const float4 part =
                kw::load_l2_float4(workspace + lane * 4 +
                                   (((long long)(block + tile) * warps + warp) * fragments + fragment) * unit_floats);
            sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
        }
        return sum;
    };
    const Finish<Config> finish = {bias, factor, addend, y, ld_factor, ld_addend, ld_y};
    const int strip = tile * tile_strips + warp;
    if constexpr (Config::swiglu) {
        if (warp % 2 == 0) store_gated_unit(finish, sum_of(warp), sum_of(warp + 1), strip, fragment, N, M);
    } else if (first != last) {
        store_unit(finish, sum_of(warp), strip, fragment, N, M);
    }
}
