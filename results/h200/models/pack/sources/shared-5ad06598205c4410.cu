    static constexpr bool raster_hilbert = false;
    static constexpr kw::Evict evict_p = kw::Evict::normal, evict_q = kw::Evict::normal;
};

using Element = Config::Element;
constexpr int consumers = Config::pingpong ? 2 : Config::consumers_p * Config::consumers_q;
constexpr int threads = 128 * (1 + consumers);
constexpr int cluster_blocks = Config::cluster_p * Config::cluster_q;
constexpr int span_p = Config::cluster_p * Config::block_p, span_q = Config::cluster_q * Config::block_q;  // of a cluster's tiles
constexpr int stages = Config::stages;

// One consumer's sums: subtiles of 64 rows x slices of n columns. wgmma's N ends at 256; a wider tile takes more than one.
constexpr int consumer_p = Config::block_p / Config::consumers_p, consumer_q = Config::block_q / Config::consumers_q;
constexpr int subtiles = consumer_p / 64, slices = kw::ceil_div(consumer_q, 256), n = consumer_q / slices;
static_assert(subtiles * 64 * Config::consumers_p == Config::block_p, "a consumer takes a multiple of 64 rows");
static_assert(n * slices * Config::consumers_q == Config::block_q, "a consumer's columns divide into slices");

using OperandP = Operand<Config::block_p, Config::block_k, Config::p_k_contiguous>;
using OperandQ = Operand<n, Config::block_k, Config::q_k_contiguous>;  // as many side by side as there are slices
constexpr int q_operands = Config::block_q / n;
constexpr int stage_bytes = OperandP::bytes + q_operands * OperandQ::bytes;

using Store = TileStore<Element, n, Config::swap, Config::store_buffers>;
// named barriers: 0 is __syncthreads, 1 and 2 the turns of ping-pong, then one for each consumer
constexpr int turn_barrier = 1, consumer_barrier = 3;

// 65536 registers: what 128 producer threads give back the consumers get (setmaxnreg works on 168 a thread with 384 threads, 128
// with 512)
constexpr int producer_registers = consumers == 2 ? 40 : 32, consumer_registers = consumers == 2 ? 232 : 160;

using Work = Schedule<Config::split_k, Config::shared_waves>;
using ReadStage = Release<Config::cluster_p, Config::cluster_q>;

/// What this block's cluster does.
__device__ __forceinline__ Work work_of(int P, int Q, int K) {
    return Work(kw::ceil_div(P, span_p) * kw::ceil_div(Q, span_q), kw::ceil_div(K, Config::block_k), blockIdx.x / cluster_blocks,
                gridDim.x / cluster_blocks);
}

/// Where a block's tile of a cluster's tile begins.
struct Place {
    int p, q;
};
__device__ __forceinline__ Place place_of(int tile, int P, int Q, int rank_p, int rank_q) {
    const int tiles_p = kw::ceil_div(P, span_p), tiles_q = kw::ceil_div(Q, span_q);
    int p, q;
    if constexpr (Config::raster_hilbert) {
        kw::TileCoordinates at = kw::hilbert_tile(tile, tiles_p, tiles_q);
        p = at.m, q = at.n;
    } else if constexpr (Config::raster_along_q) {
        kw::TileCoordinates at = kw::grouped_tile(tile, tiles_q, tiles_p, Config::raster_group);
        p = at.n, q = at.m;
    } else {
        kw::TileCoordinates at = kw::grouped_tile(tile, tiles_p, tiles_q, Config::raster_group);
        p = at.m, q = at.n;
    }
    return {p * span_p + rank_p * Config::block_p, q * span_q + rank_q * Config::block_q};
}

/// What lies where in shared memory, and the block's place in its cluster.
struct Block {
    unsigned ring, store_buffers, full, empty, flags;
    int rank, rank_p, rank_q;

    __device__ __forceinline__ explicit Block(unsigned smem) {
        ring = smem, store_buffers = ring + stages * stage_bytes;
        full = store_buffers + consumers * Store::warpgroup_bytes, empty = full + stages * 8, flags = empty + stages * 8;
        rank = cluster_blocks > 1 ? int(kw::cluster_rank()) : 0;
        rank_p = rank % Config::cluster_p, rank_q = rank / Config::cluster_p;
    }
};

/// One thread: loads every step of the cluster's items into the next stage that is free.
__device__ __forceinline__ void produce(const Block& block, const CUtensorMap* map_p, const CUtensorMap* map_q, int P, int Q,
                                        int K) {
    unsigned short mask_p = 0, mask_q = 0;
    for (int i = 0; i < Config::cluster_q; i++) mask_p |= 1u << (block.rank_p + i * Config::cluster_p);
    for (int i = 0; i < Config::cluster_p; i++) mask_q |= 1u << (block.rank_q * Config::cluster_p + i);
    RingPosition<stages> at;
    Work work = work_of(P, Q, K);
#pragma unroll 1
    while (work.more()) {
        const Item item = work.next();
        const Place place = place_of(item.tile, P, Q, block.rank_p, block.rank_q);
        int k = item.begin * Config::block_k;
#pragma unroll 1
        for (int step = 0; step < item.steps; step++, k += Config::block_k) {
            const unsigned bar = block.full + at.slot * 8, to = block.ring + at.slot * stage_bytes;
            kw::barrier_wait(block.empty + at.slot * 8, at.parity ^ 1);
            kw::barrier_expect(bar, stage_bytes);
            OperandP::template load<Config::cluster_q>(to, map_p, bar, place.p, k, block.rank_q, mask_p, Config::evict_p);
#pragma unroll
            for (int i = 0; i < q_operands; i++)
                OperandQ::template load<Config::cluster_p>(to + OperandP::bytes + i * OperandQ::bytes, map_q, bar,
                                                           place.q + i * n, k, block.rank_p, mask_q, Config::evict_q);
            at.advance();
        }
    }
}

/// A warpgroup: multiplies its share of each item (ping-pong: all of every other item), and sends the sums on their way to C.
__device__ __forceinline__ void consume(const Block& block, int consumer, const CUtensorMap* map_c, int P, int Q, int K,
                                        float* partials, int* counters, const kw::Epilogue<Config>& epilogue) {
    const int share_p = consumer % Config::consumers_p, share_q = Config::pingpong ? 0 : consumer / Config::consumers_p;
    Store store(block.store_buffers + consumer * Store::warpgroup_bytes, consumer_barrier + consumer);
    constexpr int shares = Config::pingpong ? 1 : consumers;  // of a tile
    const Meetings<slices * subtiles * n / 2, cluster_blocks * shares> meetings{
        partials, counters, block.rank * shares + (Config::pingpong ? 0 : consumer), block.flags + consumer * 4,
        consumer_barrier + consumer};
    const ReadStage release(block.empty, block.rank_p, block.rank_q, 0);
    RunningSums<n / 2, Config::fp16_accumulate>::Array running[slices][subtiles];
    RingPosition<stages> at;
    Work work = work_of(P, Q, K);
#pragma unroll 1
    for (int turn = 0; work.more(); turn++) {
        const Item item = work.next();
        if (Config::pingpong && turn % 2 != consumer) {
            at.skip(item.steps);
            continue;
        }
        if (Config::pingpong && turn > 0) kw::named_sync(turn_barrier + consumer, 256);
        int previous = 0;
#pragma unroll 1
        for (int step = 0; step < item.steps; step++) {
            const unsigned p = block.ring + at.slot * stage_bytes;
            const unsigned q = p + OperandP::bytes + share_q * slices * OperandQ::bytes;
            kw::barrier_wait(block.full + at.slot * 8, at.parity);
            kw::wgmma_fence();
#pragma unroll
            for (int i = 0; i < slices; i++)
                multiply_stage<Element, OperandP, OperandQ, subtiles, n, Config::block_k>(running[i], p, share_p * consumer_p,
                                                                                          q + i * OperandQ::bytes, step > 0);
            kw::wgmma_commit();
            kw::wgmma_wait<1>();
            if (step > 0) release(previous);
            previous = at.slot;
            at.advance();
        }
        if (Config::pingpong && work.more()) kw::named_arrive(turn_barrier + (consumer ^ 1), 256);
        kw::wgmma_wait<0>();
        release(previous);
#pragma unroll
        for (int i = 0; i < slices; i++) {
#pragma unroll
            for (int s = 0; s < subtiles; s++) kw::wgmma_settle(running[i][s]);
        }
        float room[slices][subtiles][n / 2];
        auto& sums = as_floats(running, room);
        if constexpr (Work::cuts) {
            if (item.steps < work.k_steps) {
                const Work::Meeting meeting = work.meeting(item.tile);
                if (!meetings.climb(&sums[0][0][0], meeting.first, item.share - meeting.first, meeting.count)) continue;
            }
        }
        const Place place = place_of(item.tile, P, Q, block.rank_p, block.rank_q);
#pragma unroll
        for (int i = 0; i < slices; i++) {
#pragma unroll
            for (int s = 0; s < subtiles; s++)
                store.store(sums[i][s], epilogue, map_c, place.p + share_p * consumer_p + s * 64,
                            place.q + (share_q * slices + i) * n);
        }
    }
    store.finish();
}

/// Grid: clusters of cluster_p * cluster_q blocks along x, all of them on the device at one time. Dynamic shared memory: the
/// stages, the store buffers, the full and empty barriers, one word for each consumer. partials, counters: where K is cut.
extern "C" __global__ void __launch_bounds__(threads, 1)
    gemm(const __grid_constant__ CUtensorMap map_p, const __grid_constant__ CUtensorMap map_q,
         const __grid_constant__ CUtensorMap map_c, int P, int Q, int K, float* partials, int* counters,
         const Element* bias, const Element* addend, int ld_addend, float alpha, float beta) {
    extern __shared__ __align__(1024) unsigned char dynamic_smem[];
    const Block block(kw::shared_address(dynamic_smem));
    const int warp = kw::warp_index();

    if (warp == 0 && kw::elect_one()) {
        kw::prefetch_tensor_map(&map_p);
        kw::prefetch_tensor_map(&map_q);
        kw::prefetch_tensor_map(&map_c);
        for (int s = 0; s < stages; s++) {
            kw::barrier_init(block.full + s * 8, 1);
            kw::barrier_init(block.empty + s * 8, (Config::pingpong ? 1 : consumers) * 4 * ReadStage::blocks);
        }
        kw::fence_barrier_init();
    }
    if constexpr (cluster_blocks > 1) {
        __syncwarp();
        kw::cluster_arrive_relaxed();
        kw::cluster_wait();
    } else {
        __syncthreads();
    }
    kw::grid_dependency_wait();
    kw::launch_dependents();

    if (warp < 4) {
        kw::shrink_registers<producer_registers>();
        if (warp == 0 && kw::elect_one()) produce(block, &map_p, &map_q, P, Q, K);
    } else {
        kw::grow_registers<consumer_registers>();
        consume(block, warp / 4 - 1, &map_c, P, Q, K, partials, counters, {bias, addend, ld_addend, alpha, beta, P, Q});
    }
    if constexpr (cluster_blocks > 1) {  // a block must not end while others still tell it of stages they have read
        __syncwarp();
        kw::cluster_arrive_relaxed();
        kw::cluster_wait();
    }
}
