};

using Element = Config::Element;
using OperandP = Operand<Config::block_p, Config::block_k, Config::p_k_contiguous>;
using OperandQ = Operand<Config::block_q, Config::block_k, Config::q_k_contiguous>;
constexpr int warpgroup_rows = 64 * Config::subtiles, warpgroups = Config::block_p / warpgroup_rows;
constexpr int consumers = 128 * warpgroups, threads = consumers + 32;  // the last warp is the producer
constexpr int tiles = Config::cluster_p * Config::cluster_q, cluster_blocks = tiles * Config::split_k;
constexpr bool multicast = tiles > 1, split = Config::split_k > 1;
static_assert(Config::block_p % warpgroup_rows == 0, "a warpgroup has whole subtiles");

// A block's rank in its cluster is part * tiles + tile_q * cluster_p + tile_p.
using Reduce = ClusterReduce<Config::swap, Config::block_p, Config::block_q, Config::split_k, tiles>;

// Shared memory: the ring, over which C's tile is laid at the end; partial sums of other blocks, there or apart; barriers.
constexpr int stage_bytes = OperandP::bytes + OperandQ::bytes;
constexpr int overlaid_bytes = !split                   ? warpgroups * staging_bytes<Config::subtiles, Config::block_q>
                               : Config::partials_apart ? 0
                                                        : Reduce::bytes;
constexpr int ring_bytes = kw::larger(Config::stages * stage_bytes, overlaid_bytes);
constexpr int partials_offset = split && Config::partials_apart ? ring_bytes : 0;
constexpr int full_offset = ring_bytes + (split && Config::partials_apart ? Reduce::bytes : 0);
constexpr int empty_offset = full_offset + Config::stages * 8, arrived_offset = empty_offset + Config::stages * 8;
static_assert(arrived_offset + 8 <= 227 * 1024, "what a block can have on Hopper");

/// Where the block works: its tile of D, its place among the tiles of its cluster, its part of K.
struct Place {
    int tile_p, tile_q, part, first_rank;  // first_rank: of the block with the same tile and part 0
    int first_p, first_q;
    int first_step, steps;

    __device__ __forceinline__ Place(int P, int Q, int K) {
        const int rank = blockIdx.x % cluster_blocks, cluster = blockIdx.x / cluster_blocks;
        first_rank = rank % tiles, part = rank / tiles;
        tile_p = first_rank % Config::cluster_p, tile_q = first_rank / Config::cluster_p;
        kw::TileCoordinates at = {cluster, static_cast<int>(blockIdx.y)};
        if constexpr (Config::raster_group > 0)
            at = kw::grouped_tile(cluster, kw::ceil_div(P, Config::block_p * Config::cluster_p),
                                  kw::ceil_div(Q, Config::block_q * Config::cluster_q), Config::raster_group);
        first_p = (at.m * Config::cluster_p + tile_p) * Config::block_p;
        first_q = (at.n * Config::cluster_q + tile_q) * Config::block_q;
        const int all = kw::ceil_div(K, Config::block_k);
        first_step = all * part / Config::split_k;
        steps = all * (part + 1) / Config::split_k - first_step;
    }
};

/// Loads one step into a slot: P's tile is shared by the cluster's tiles along Q, Q's by those along P; each block sends its
/// part of both.
__device__ __forceinline__ void load_step(unsigned smem, const CUtensorMap* map_p, const CUtensorMap* map_q, const Place& at,
                                          int slot, int step) {
    const unsigned stage = smem + slot * stage_bytes, full = smem + full_offset + slot * 8;
    const int k = (at.first_step + step) * Config::block_k, base = at.part * tiles;
    unsigned along_q = 0;  // one bit for each block with the same tile_p
#pragma unroll
    for (int i = 0; i < Config::cluster_q; i++) along_q |= 1u << i * Config::cluster_p;
    const unsigned along_p = (1u << Config::cluster_p) - 1;
    const unsigned short p_mask = along_q << (base + at.tile_p), q_mask = along_p << (base + at.tile_q * Config::cluster_p);
    const auto policy = kw::Evict::normal;
    kw::barrier_expect(full, stage_bytes);
    OperandP::load<Config::cluster_q>(stage, map_p, full, at.first_p, k, at.tile_q, p_mask, policy);
    OperandQ::load<Config::cluster_p>(stage + OperandP::bytes, map_q, full, at.first_q, k, at.tile_p, q_mask, policy);
}

/// The producer warp. Barriers are set up by the thread that issues loads: without multicast the first ones are on their way
/// before the other warps pass the block's barrier.
__device__ __forceinline__ void produce(unsigned smem, const CUtensorMap* map_p, const CUtensorMap* map_q, const Place& at) {
    const unsigned empty = smem + empty_offset, arrived = smem + arrived_offset;
    const bool leader = kw::elect_one();
    const int prologue = kw::smaller(at.steps, Config::stages);
    if (leader) {
        kw::prefetch_tensor_map(map_p);
        kw::prefetch_tensor_map(map_q);
        for (int s = 0; s < Config::stages; s++) {
            kw::barrier_init(smem + full_offset + s * 8, 1);
            // one arrival per warp of every block that the slot's loads go to
            kw::barrier_init(empty + s * 8, consumers / 32 * Release<Config::cluster_p, Config::cluster_q>::blocks);
        }
        if constexpr (split) kw::barrier_init(arrived, 1);
        kw::fence_barrier_init();
        if constexpr (split) kw::barrier_expect(arrived, Reduce::expected(at.part));
        kw::launch_dependents();
        kw::grid_dependency_wait();
        if constexpr (!multicast)
            for (int step = 0; step < prologue; step++) load_step(smem, map_p, map_q, at, step, step);
    }
    __syncwarp();
    __syncthreads();
    if constexpr (cluster_blocks > 1) kw::cluster_arrive_relaxed();  // the barriers are fenced: only the fact counts
    if constexpr (multicast) kw::cluster_wait();
    if (leader) {
        if constexpr (multicast)
            for (int step = 0; step < prologue; step++) load_step(smem, map_p, map_q, at, step, step);
        RingPosition<Config::stages> next;
        for (int step = Config::stages; step < at.steps; step++, next.advance()) {
            kw::barrier_wait(empty + next.slot * 8, next.parity);
            load_step(smem, map_p, map_q, at, next.slot, step);
        }
    }
    __syncwarp();
    if constexpr (cluster_blocks > 1 && !multicast) kw::cluster_wait();
}

/// map_p, map_q: boxes as operands.cuh wants them, for cluster_q and cluster_p parts. Grid: (clusters * cluster_blocks, 1), or
/// (clusters along P * cluster_blocks, clusters along Q) without raster order; cluster (cluster_blocks, 1, 1).
extern "C" __global__ void __launch_bounds__(threads, 1)
    gemm(const __grid_constant__ CUtensorMap map_p, const __grid_constant__ CUtensorMap map_q, Element* c, int P, int Q, int K,
         int ld_c, const Element* bias, const Element* addend, int ld_addend, float alpha, float beta) {
    extern __shared__ __align__(1024) unsigned char dynamic_smem[];
    const unsigned smem = kw::shared_address(dynamic_smem);
    const int warp = kw::warp_index();
    const Place at(P, Q, K);

    if (warp == consumers / 32) {
        produce(smem, &map_p, &map_q, at);
        // Nobody leaves while loads of its own may still be on their way into another block, or (split) before the ring is free
        // for sums.
        if constexpr (multicast || (split && !Config::partials_apart)) {
            kw::cluster_arrive_relaxed();
            kw::cluster_wait();
        }
        return;
    }

    // the first step overwrites them
    RunningSums<Config::block_q / 2, Config::fp16_accumulate>::Array running[Config::subtiles];
    const int first_row = warp / 4 * warpgroup_rows;
    __syncthreads();
    if constexpr (cluster_blocks > 1) kw::cluster_arrive_relaxed();
    if constexpr (multicast) kw::cluster_wait();
    const Release<Config::cluster_p, Config::cluster_q> release(smem + empty_offset, at.tile_p, at.tile_q, at.part * tiles);
    RingPosition<Config::stages> next;
    int before = 0;  // the previous step's slot
    for (int step = 0; step < at.steps; step++, next.advance()) {
        const unsigned stage = smem + next.slot * stage_bytes;
        kw::barrier_wait(smem + full_offset + next.slot * 8, next.parity);
        kw::wgmma_fence();
        multiply_stage<Element, OperandP, OperandQ, Config::subtiles, Config::block_q, Config::block_k>(
            running, stage, first_row, stage + OperandP::bytes, step > 0);
        kw::wgmma_commit();
        kw::wgmma_wait<1>();  // the previous step's have read their slot
        // only if it will be filled again: so the producer waits for all arrivals, and none comes when the block has left
        if (step > 0 && step - 1 + Config::stages < at.steps) release(before);
        before = next.slot;
    }
    kw::wgmma_wait<0>();
#pragma unroll
    for (int s = 0; s < Config::subtiles; s++) {
        kw::wgmma_settle(running[s]);
        if (split && at.steps == 0) {  // K has fewer steps than parts
#pragma unroll
            for (auto& sum : running[s]) sum = 0;
        }
    }
    float room[Config::subtiles][Config::block_q / 2];
    auto& sums = as_floats(running, room);

    kw::grid_dependency_wait();  // the loads' wait was the producer's; these threads write C, which may still be read
    const kw::Epilogue<Config> epilogue = {bias, addend, ld_addend, alpha, beta, P, Q};
    const auto out = Output<Element>::of<Config::swap>(c, ld_c, P, Q);
    if constexpr (split) {
        const unsigned partials = smem + partials_offset, arrived = smem + arrived_offset;
        if constexpr (!multicast) kw::cluster_wait();  // all blocks have started
        if constexpr (!Config::partials_apart) {
            kw::cluster_arrive();
            kw::cluster_wait();  // all rings have been read
        } else if constexpr (multicast) {
            kw::cluster_arrive_relaxed();
        }
        Reduce::push(sums, partials, arrived, first_row + warp % 4 * 16, at.part, at.first_rank);
        Reduce::finish(partials, arrived, at.part, threadIdx.x, consumers, epilogue, out, at.first_p, at.first_q);
    } else {
        if constexpr (multicast) kw::cluster_arrive_relaxed();
        kw::named_sync<1>(consumers);  // all warpgroups have read the ring
        const unsigned staging = smem + warp / 4 * staging_bytes<Config::subtiles, Config::block_q>;
        store_tile<Config::swap, Element, Config::subtiles, Config::block_q>(sums, staging, epilogue, out, at.first_p + first_row,
                                                                             at.first_q, 2 + warp / 4);
    }
    if constexpr (multicast && (!split || Config::partials_apart)) {
        __syncwarp();  // the lanes that stored at C's edge come last
        kw::cluster_wait();
    }
}
