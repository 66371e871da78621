// One small kernel for each other part of Hopper that the emulator has.

/// Sums the rows of four blocks of a cluster: block r sums quarter r, in the order of the blocks.
extern "C" __global__ void __launch_bounds__(128, 1) reduce(const float* a, float* c) {
    extern __shared__ __align__(1024) unsigned char smem[];
    const unsigned slots = kw::shared_address(smem), bar = slots + 4 * 512, rank = kw::cluster_rank(), owner = threadIdx.x / 32;
    if (threadIdx.x == 0) {
        kw::barrier_init(bar, 1);
        kw::fence_barrier_init();
        kw::barrier_expect(bar, 4 * 512);
    }
    kw::cluster_arrive();
    kw::cluster_wait();
    const float4 v = kw::load_l2_float4(a + rank * 512 + threadIdx.x * 4);
    kw::store_async(kw::cluster_address(slots + rank * 512 + threadIdx.x % 32 * 16, owner), kw::cluster_address(bar, owner), v.x,
                    v.y, v.z, v.w);
    kw::barrier_wait_cluster(bar, 0);
    float sum = 0.f;
    for (int r = 0; r < 4; r++) sum += __uint_as_float(kw::load_shared_4(slots + r * 512 + threadIdx.x * 4));
    kw::store_global_float(c + rank * 128 + threadIdx.x, sum);
}

/// c = -a, box by box through TMA both ways.
extern "C" __global__ void __launch_bounds__(64)
    negate(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_c, int rows) {
    extern __shared__ __align__(1024) unsigned char smem[];
    const unsigned box = kw::shared_address(smem), bar = box + 1024;
    if (threadIdx.x == 0) {
        kw::barrier_init(bar, 1);
        kw::fence_barrier_init();
    }
    __syncthreads();
    for (int tile = 0; tile * 8 < rows; tile++) {
        if (threadIdx.x == 0) {
            kw::tma_store_wait<0>();
            kw::barrier_expect(bar, 1024);
            kw::tma_load(box, &map_a, bar, 0, tile * 8, kw::Evict::first);
        }
        kw::barrier_wait(bar, tile % 2);
        uint4 v = kw::load_shared_16(box + threadIdx.x * 16);
        kw::store_shared_16(box + threadIdx.x * 16,
                            make_uint4(v.x ^ 0x80008000, v.y ^ 0x80008000, v.z ^ 0x80008000, v.w ^ 0x80008000));
        kw::fence_async_proxy();
        __syncthreads();
        if (threadIdx.x == 0) kw::tma_store(&map_c, box, 0, tile * 8);
    }
}

/// c = a reversed: one warpgroup hands over to the two others, which write half each.
extern "C" __global__ void __launch_bounds__(384, 1) reverse(const float* a, float* c) {
    extern __shared__ __align__(1024) unsigned char smem[];
    const unsigned slots = kw::shared_address(smem), t = threadIdx.x % 128;
    if (threadIdx.x < 128) {
        kw::shrink_registers<40>();
        kw::store_shared_4(slots + t * 4, __float_as_uint(kw::load_l2_float(a + t)));
        kw::named_arrive(1, 384);
    } else {
        kw::grow_registers<232>();
        kw::named_sync(1, 384);
        if (t / 64 == threadIdx.x / 128 - 1)
            kw::store_global_float(c + t, __uint_as_float(kw::load_shared_4(slots + (127 - t) * 4)));
    }
}

/// The matrices of stmatrix and ldmatrix in all their forms; `c` takes 32 lanes x 16 words.
extern "C" __global__ void __launch_bounds__(32) matrices(int* c) {
    extern __shared__ __align__(1024) unsigned char smem[];
    const unsigned at = kw::shared_address(smem), lane = threadIdx.x, row = at + lane * 16;
    unsigned r[4], back[4];
    for (unsigned i = 0; i < 4; i++) r[i] = (i * 64 + lane * 2 + 1) << 16 | (i * 64 + lane * 2);
    kw::stmatrix_x4(row, r[0], r[1], r[2], r[3]);
    __syncthreads();
    kw::ldmatrix_x4_trans(back, row);
    for (unsigned i = 0; i < 4; i++) kw::store_global_4(c + lane * 16 + i, back[i] ^ kw::movmatrix_trans(r[i]));
    __syncthreads();
    kw::stmatrix_x4_trans(row, r[0], r[1], r[2], r[3]);
    __syncthreads();
    kw::ldmatrix_x4_trans(back, row);
    for (unsigned i = 0; i < 4; i++) kw::store_global_4(c + lane * 16 + 4 + i, back[i] ^ r[i]);
    __syncthreads();
    kw::stmatrix_x2_trans(row, r[0], r[1]);
    kw::stmatrix_x2(row + 256, kw::movmatrix_trans(r[0]), kw::movmatrix_trans(r[1]));
    __syncthreads();
    kw::ldmatrix_x4(back, row);
    kw::store_global_4(c + lane * 16 + 8, back[0] ^ back[2]);
    kw::store_global_4(c + lane * 16 + 9, back[1] ^ back[3]);
    for (unsigned i = 10; i < 16; i++) kw::store_global_4(c + lane * 16 + i, kw::load_shared_2(at + (i - 10) * 2));
}
