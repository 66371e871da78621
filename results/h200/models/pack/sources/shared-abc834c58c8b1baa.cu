};

using Element = Config::Element;
constexpr int threads = Config::block_p * 2;  // a warpgroup for every 64 rows of P
using TileP = Operand<Config::block_p, Config::block_k, Config::p_k_contiguous>;
using TileQ = Operand<Config::block_q, Config::block_k, Config::q_k_contiguous>;
constexpr int stage_bytes = TileP::bytes + TileQ::bytes;
constexpr int part_k = Config::stages * Config::block_k;  // K of one block

// Shared memory: the stages; an area where the tile of C is laid out, or partial sums arrive; mbarriers. The area lies apart from
// the stages: warps end their last wgmma at different times, and what one still reads another must not overwrite.
using Reduce = ClusterReduce<Config::swap, Config::block_p, Config::block_q, Config::split_k, 1>;
constexpr int area_bytes = Config::split_k > 1 ? Reduce::bytes : Config::block_p * Config::block_q * 2;
constexpr int reduce_barrier = Config::stages * stage_bytes + area_bytes, stage_barriers = reduce_barrier + 8;

// ------------------------------------------------------------------------------------------------------------------- loads

/// One thread's share of the cp.async of one operand. Tiles are lines of 128 bytes (64 or 32 where M or N is contiguous and the
/// tile narrow), line after line; thread t copies the chunks t, t + threads ... of 16 bytes, swizzled. The swizzle looks at
/// address bits 7 to 9, which a step of `threads` chunks leaves alone, so every pass writes at the same place plus a constant.
template <int Rows, bool KContiguous>
struct Copy {
    using Tile = Operand<Rows, Config::block_k, KContiguous>;
    static constexpr int width() {
        if constexpr (KContiguous)
            return 64;
        else
            return Tile::width;
    }
    static constexpr int chunks = width() / 8;                         // of a line
    static constexpr int slab = KContiguous ? Rows : Config::block_k;  // lines that lie below each other in the matrix
    static constexpr int lines = Tile::bytes / (width() * 2), lines_per_pass = threads / chunks;
    static constexpr int passes = kw::ceil_div(lines, lines_per_pass);
    static_assert(Config::load == Load::tma || slab % lines_per_pass == 0 || lines_per_pass % slab == 0,
                  "a thread keeps its line or slab over all passes");

    const Element* source;
    int ld;
    unsigned place;                // of this thread's first chunk in the tile
    int lines_left, elements_left;  // from this thread's first chunk to the end of the matrix

    __device__ __forceinline__ Copy(const Element* matrix, int ld, int first_row, int rows, int first_k, int K) : ld(ld) {
        const int index = threadIdx.x / chunks;
        const int line = lines_per_pass > slab ? index % slab : index;
        const int element = (lines_per_pass > slab ? index / slab * width() : 0) + threadIdx.x % chunks * 8;
        const int first_line = KContiguous ? first_row : first_k, first_element = KContiguous ? first_k : first_row;
        source = kw::opaque(matrix + (long long)(first_line + line) * ld + (first_element + element));
        lines_left = (KContiguous ? rows : K) - first_line - line;
        elements_left = (KContiguous ? K : rows) - first_element - element;
        const unsigned linear = threadIdx.x * 16;
        place = linear ^ (linear >> 3 & (width() * 2 - 16));
    }

    __device__ __forceinline__ void load(unsigned tile, int stage) const {
#pragma unroll
        for (int pass = 0; pass < passes; pass++) {
            const int done = pass * lines_per_pass;
            if (lines - done < lines_per_pass && int(threadIdx.x) >= (lines - done) * chunks) break;
            const int line = done % slab + (KContiguous ? 0 : stage * Config::block_k);
            const int element = done / slab * width() + (KContiguous ? stage * Config::block_k : 0);
            const unsigned to = tile + place + pass * threads * 16;
            const Element* from = source + (long long)ld * line + element;
            if constexpr (Config::tails == Tails::none)
                kw::cp_async<16>(to, from);
            else if constexpr (Config::tails == Tails::chunk)
                kw::cp_async_or_zero<16>(to, from, line < lines_left && element < elements_left);
            else
                kw::cp_async_partial<16>(to, from,
                                         line < lines_left ? kw::larger(0, kw::smaller(8, elements_left - element)) * 2 : 0);
        }
    }
};

/// What the kernel is given of an operand.
struct Pointer {
    const Element* first;
};
template <Load>
struct Given {
    using Source = CUtensorMap;
};
template <>
struct Given<Load::cp_async> {
    using Source = Pointer;
};
using Source = Given<Config::load>::Source;

// ---------------------------------------------------------------------------------------------------------------- multiply

using Running = RunningSums<Config::block_q / 2, Config::fp16_accumulate>::Array[1];

__device__ __forceinline__ void multiply(Running& running, unsigned stage, int first_row, bool accumulate) {
    kw::wgmma_fence();
    multiply_stage<Element, TileP, TileQ, 1, Config::block_q, Config::block_k>(running, stage, first_row, stage + TileP::bytes,
                                                                               accumulate);
    kw::wgmma_commit();
}

/// Stages from Stage on: its group of cp.async has come for this thread, is fenced for wgmma, and after the barrier for all
/// threads.
template <int Stage>
__device__ __forceinline__ void multiply_copied(Running& running, unsigned smem, int first_row) {
    kw::cp_async_wait<Config::stages - 1 - Stage>();
    kw::fence_async_proxy();
    __syncthreads();
    multiply(running, smem + Stage * stage_bytes, first_row, Stage > 0);
    if constexpr (Stage + 1 < Config::stages) multiply_copied<Stage + 1>(running, smem, first_row);
}

// ------------------------------------------------------------------------------------------------------------------ kernel

/// A block's place in the product, and what its threads share.
struct Block {
    unsigned smem;
    int P, Q, K, ld_p, ld_q;
    int first_p, first_q, part;

    __device__ __forceinline__ int first_k() const { return part * part_k; }

    /// The 64 rows of P that this thread's warpgroup multiplies. From warp_index, so that descriptors stay in uniform registers.
    __device__ __forceinline__ int warpgroup() const { return Config::block_p > 64 ? kw::warp_index() / 4 : 0; }

    /// The barrier at which partial sums arrive must stand before any other block sends them.
    __device__ __forceinline__ void join_cluster() const {
        if constexpr (Config::split_k > 1) {
            if (threadIdx.x == 0) {
                kw::barrier_init(smem + reduce_barrier, 1);
                kw::fence_barrier_init();
                kw::barrier_expect(smem + reduce_barrier, Reduce::expected(part));
            }
            __syncwarp();
            kw::cluster_arrive_relaxed();
        }
    }
};

/// Dependents may start now: they take what room is left beside these blocks, and their own wait keeps them in order.
__device__ __forceinline__ void wait_for_predecessor() {
    kw::launch_dependents();
    kw::grid_dependency_wait();
}

/// By cp.async: every thread copies and fences its own share.
__device__ __forceinline__ void load_and_multiply(Running& running, const Block& b, const Pointer& p, const Pointer& q) {
    const Copy<Config::block_p, Config::p_k_contiguous> copy_p(p.first, b.ld_p, b.first_p, b.P, b.first_k(), b.K);
    const Copy<Config::block_q, Config::q_k_contiguous> copy_q(q.first, b.ld_q, b.first_q, b.Q, b.first_k(), b.K);
    wait_for_predecessor();
#pragma unroll
    for (int stage = 0; stage < Config::stages; stage++) {
        copy_p.load(b.smem + stage * stage_bytes, stage);
        copy_q.load(b.smem + stage * stage_bytes + TileP::bytes, stage);
        kw::cp_async_commit();
    }
    b.join_cluster();
    multiply_copied<0>(running, b.smem, b.warpgroup() * 64);
}

/// By TMA: one thread issues all, with an mbarrier for each stage.
__device__ __forceinline__ void load_and_multiply(Running& running, const Block& b, const CUtensorMap& p, const CUtensorMap& q) {
    const unsigned loaded = b.smem + stage_barriers;
    if (kw::warp_index() == 0 && kw::elect_one()) {
        kw::prefetch_tensor_map(&p);
        kw::prefetch_tensor_map(&q);
#pragma unroll
        for (int stage = 0; stage < Config::stages; stage++) kw::barrier_init(loaded + stage * 8, 1);
        kw::fence_barrier_init();
        wait_for_predecessor();
#pragma unroll
        for (int stage = 0; stage < Config::stages; stage++) {
            const unsigned to = b.smem + stage * stage_bytes, bar = loaded + stage * 8;
            const int k = b.first_k() + stage * Config::block_k;
            kw::barrier_expect(bar, stage_bytes);
            TileP::template load<1>(to, &p, bar, b.first_p, k, 0, 0, kw::Evict::normal);
            TileQ::template load<1>(to + TileP::bytes, &q, bar, b.first_q, k, 0, 0, kw::Evict::normal);
        }
    }
    b.join_cluster();
    __syncthreads();
#pragma unroll
    for (int stage = 0; stage < Config::stages; stage++) {
        kw::barrier_wait(loaded + stage * 8, 0);
        multiply(running, b.smem + stage * stage_bytes, b.warpgroup() * 64, stage > 0);
    }
}

/// Grid: (tiles along P, tiles along Q, split_k), cluster (1, 1, split_k). K is at most split_k * part_k.
extern "C" __global__ void __launch_bounds__(threads, 1)
    gemm(const __grid_constant__ Source p, const __grid_constant__ Source q, Element* c, int P, int Q, int K, int ld_p, int ld_q,
         int ld_c, const Element* bias, const Element* addend, int ld_addend, float alpha, float beta) {
    extern __shared__ __align__(1024) unsigned char dynamic_smem[];
    const Block b = {kw::shared_address(dynamic_smem), P, Q, K, ld_p, ld_q, int(blockIdx.x) * Config::block_p,
                     int(blockIdx.y) * Config::block_q, Config::split_k > 1 ? int(blockIdx.z) : 0};
    Running running;
    load_and_multiply(running, b, p, q);
    kw::wgmma_wait<0>();
    kw::wgmma_settle(running[0]);
    float room[1][Config::block_q / 2];
    auto& sums = as_floats(running, room);

    const kw::Epilogue<Config> epilogue = {bias, addend, ld_addend, alpha, beta, P, Q};
    const auto out = Output<Element>::of<Config::swap>(c, ld_c, P, Q);
    const unsigned area = b.smem + Config::stages * stage_bytes;
    if constexpr (Config::split_k > 1) {
        kw::cluster_wait();
        Reduce::push<1>(sums, area, b.smem + reduce_barrier, threadIdx.x / 32 * 16, b.part, 0);
        Reduce::finish(area, b.smem + reduce_barrier, b.part, threadIdx.x, threads, epilogue, out, b.first_p, b.first_q);
    } else {
        const int warpgroup = b.warpgroup();
        store_tile<Config::swap, Element, 1, Config::block_q>(sums, area + warpgroup * staging_bytes<1, Config::block_q>,
                                                              epilogue, out, b.first_p + warpgroup * 64, b.first_q,
                                                              1 + warpgroup);
    }
}
