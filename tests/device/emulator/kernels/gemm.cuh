// The smallest kernel with all of Hopper's parts: a ring of TMA loads by one warp, wgmma by one warpgroup, P multicast in a
// cluster.
struct Config {
    using Element = kw::f16;
    static constexpr bool p_k_contiguous = true, q_k_contiguous = true;
    static constexpr int block_q = 16, stages = 2, cluster = 1;
};

extern "C" __global__ void __launch_bounds__(160, 1)
    gemm(const __grid_constant__ CUtensorMap map_p, const __grid_constant__ CUtensorMap map_q, float* c, int P, int Q, int K) {
    using PTile = Operand<64, 64, Config::p_k_contiguous>;
    using QTile = Operand<Config::block_q, 64, Config::q_k_contiguous>;
    constexpr int stages = Config::stages, cluster = Config::cluster, bytes = PTile::bytes + QTile::bytes;
    extern __shared__ __align__(1024) unsigned char smem[];
    const unsigned tiles = kw::shared_address(smem), full = tiles + stages * bytes, empty = full + stages * 8;
    const unsigned rank = kw::cluster_rank();
    const int warp = kw::warp_index(), first_q = blockIdx.x * Config::block_q, first_p = blockIdx.y * 64,
              steps = kw::ceil_div(K, 64);

    if (threadIdx.x == 0) {
        for (int s = 0; s < stages; s++) {
            kw::barrier_init(full + s * 8, 1);
            kw::barrier_init(empty + s * 8, 4 * cluster);
        }
        kw::fence_barrier_init();
    }
    kw::cluster_arrive();
    kw::cluster_wait();  // at the start

    if (warp == 4) {
        if (kw::elect_one()) {
            for (int step = 0; step < steps; step++) {
                const int slot = step % stages;
                const unsigned to = tiles + slot * bytes, bar = full + slot * 8;
                kw::barrier_wait(empty + slot * 8, (step / stages + 1) % 2);
                kw::barrier_expect(bar, bytes);
                PTile::load<cluster>(to, &map_p, bar, first_p, step * 64, rank, (1 << cluster) - 1, kw::Evict::normal);
                QTile::load<1>(to + PTile::bytes, &map_q, bar, first_q, step * 64, 0, 0, kw::Evict::normal);
            }
        }
    } else {
        float sums[1][Config::block_q / 2];
        for (int step = 0; step < steps; step++) {
            const int slot = step % stages;
            const unsigned at = tiles + slot * bytes;
            kw::barrier_wait(full + slot * 8, step / stages % 2);
            kw::wgmma_fence();
            multiply_stage<Config::Element, PTile, QTile, 1, Config::block_q, 64>(sums, at, 0, at + PTile::bytes, step > 0);
            kw::wgmma_commit();
            kw::wgmma_wait<0>();
            if (threadIdx.x % 32 < cluster) kw::barrier_arrive_cluster(kw::cluster_address(empty + slot * 8, threadIdx.x % 32));
        }
        kw::wgmma_settle(sums[0]);
        for (int i = 0; i < Config::block_q / 2; i++) {
            const int lane = threadIdx.x % 32, row = first_p + warp * 16 + lane / 4 + i / 2 % 2 * 8;
            const int column = first_q + i / 4 * 8 + lane % 4 * 2 + i % 2;
            if (row < P && column < Q) kw::store_global_float(c + row * Q + column, sums[0][i]);
        }
    }
    kw::cluster_arrive();
    kw::cluster_wait();  // at the end
}
