// Split-K: several blocks share one output tile, each sums its part of K. Their fp32 partial sums meet in the workspace and
// are always added in the order of the parts, so the result does not depend on which block came last.

/// One kernel: every block but the last of its tile stores its partial sums and leaves; the last one adds them all up.
///
/// `sums` is the block's tile, in any fixed distribution over threads (the same in all blocks). `partials` has room for
/// tiles x split x Threads x Count x 4 floats, `counter` is the tile's own, zero on entry. Both are left zeroed, as the launch
/// plan promises. `owner` says which threads hold sums; all threads of the block must call. Returns true in the last block.
/// The fence-and-count pattern is the one of the CUDA programming guide's threadFenceReduction sample.
template <int Threads, int Count>
__device__ __forceinline__ bool reduce_in_last_block(float (&sums)[Count][4], float* partials, int* counter, int tile, int part,
                                                     int split, bool owner, unsigned flag_address) {
    float* mine = partials + (size_t(tile) * split * Count * Threads + threadIdx.x) * 4;
    constexpr size_t part_stride = size_t(Count) * Threads * 4;
    if (owner) {
#pragma unroll
        for (int i = 0; i < Count; i++)
            kw::store_global_float4(mine + part * part_stride + size_t(i) * Threads * 4,
                                    make_float4(sums[i][0], sums[i][1], sums[i][2], sums[i][3]));
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        int arrived = atomicAdd(counter, 1);
        if (arrived == split - 1) atomicExch(counter, 0);
        kw::store_shared_4(flag_address, arrived == split - 1);
    }
    __syncthreads();
    if (kw::load_shared_4(flag_address) == 0) return false;
    __threadfence();
    if (owner) {
#pragma unroll
        for (int i = 0; i < Count; i++) sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0.f;
        for (int p = 0; p < split; p++) {
            float* from = mine + p * part_stride;
#pragma unroll
            for (int i = 0; i < Count; i++) {
                float4 v = kw::load_l2_float4(from + size_t(i) * Threads * 4);
                sums[i][0] += v.x, sums[i][1] += v.y, sums[i][2] += v.z, sums[i][3] += v.w;
            }
#pragma unroll
            for (int i = 0; i < Count; i++)
                kw::store_global_float4(from + size_t(i) * Threads * 4, make_float4(0.f, 0.f, 0.f, 0.f));
        }
    }
    return true;
}

/// Two kernels, first half: a pair of neighbouring partial sums to row-major [split][M][N].
__device__ __forceinline__ void store_partial_pair(float* partials, int part, int m, int n, int M, int N, float x, float y) {
    if (m >= M || n >= N) return;
    float* to = partials + (size_t(part) * M + m) * N + n;
    if (N % 2 == 0) {
        kw::store_global_float2(to, x, y);
    } else {
        kw::store_global_float(to, x);
        if (n + 1 < N) kw::store_global_float(to + 1, y);
    }
}

/// Two kernels, second half: C = sum over parts, rounded once. One thread adds four neighbours where rows allow it, one
/// element otherwise; the grid covers ceil(M N / 4) threads and strides on.
template <class Element, int Split>
__device__ __forceinline__ void reduce_partials(const float* partials, Element* c, int M, int N, int ld_c) {
    kw::grid_dependency_wait();
    kw::launch_dependents();
    const size_t total = size_t(M) * N;
    const size_t step = size_t(gridDim.x) * blockDim.x;
    size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (N % 4 == 0) {
        for (; i < total / 4; i += step) {
            float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
            for (int p = 0; p < Split; p++) {
                float4 v = kw::load_l2_float4(partials + p * total + i * 4);
                sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
            }
            Element* to = c + (i * 4 / N) * ld_c + i * 4 % N;
            store_element(to, sum.x), store_element(to + 1, sum.y), store_element(to + 2, sum.z), store_element(to + 3, sum.w);
        }
    } else {
        for (; i < total; i += step) {
            float sum = 0.f;
#pragma unroll
            for (int p = 0; p < Split; p++) sum += kw::load_l2_float(partials + p * total + i);
            store_element(c + (i / N) * ld_c + i % N, sum);
        }
    }
}
