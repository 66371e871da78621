// C = A B on Hopper for large shapes: persistent blocks, one warpgroup that loads, two or three that multiply.
//
// A block stays on its multiprocessor and takes one tile after another. One thread of the producer warpgroup fills a ring of
// stages by TMA, tiles ahead of the others if there is room; the consumer warpgroups multiply from it and keep one group of wgmma
// in flight, so a stage is handed back when the next one's has been issued and its own is done. C leaves by TMA while the next
// tile is multiplied.
// - cooperative: the consumers share a tile, consumers_p x consumers_q of them.
// - ping-pong: two consumers, each with a tile of its own; they take turns at the tensor cores, so that the epilogue of one hides
//   behind the main loop of the other.
// Where tiles alone would leave clusters idle at the end, K is cut too (schedule.cuh); parts of a tile meet in the workspace.
// The blocks of a cluster work on neighbouring tiles; each loads its part of what they share and multicasts it.
#include "kernelwright/barrier.cuh"
#include "kernelwright/copy.cuh"
#include "kernelwright/epilogue.cuh"
#include "kernelwright/layout.cuh"
#include "kernelwright/mma.cuh"
#include "kernelwright/numeric.cuh"
#include "kernelwright/pdl.cuh"
#include "kernelwright/tma.cuh"
#include "kernelwright/wgmma.cuh"
// How the tiles of an operand lie in shared memory, for both storage orders: what TMA writes, and what wgmma's descriptors say.
//
// The product is seen as D = P Q^T: P gives wgmma's 64-row side, Q its N side. Unswapped, P is A and Q is B; swapped, P is B and Q is A, and
// D is C transposed. P has `rows` = a multiple of 64, Q any multiple of 16 (or 8).
#include "kernelwright/tma.cuh"
#include "kernelwright/wgmma.cuh"

/// A descriptor whose operand starts `bytes` (a multiple of 16) further. Shared memory ends within the 14 bits of the address, so
/// only the low word changes: one addition a step, where building each descriptor took four dependent instructions before every
/// wgmma (ptxas 13.0).
__device__ __forceinline__ unsigned long long advanced(unsigned long long descriptor, int bytes) {
    return descriptor & 0xffffffff00000000ull | (static_cast<unsigned>(descriptor) + (static_cast<unsigned>(bytes) >> 4));
}

/// A tile of Rows x K elements of 2 bytes; K is a multiple of 64. KContiguous: neighbours along K are neighbours in memory.
template <int Rows, int K, bool KContiguous>
struct Operand;

/// K contiguous: K / 64 slabs side by side, each of Rows rows of 64 elements (128 bytes, swizzled). Map: dims (K, rows), box (64, Rows
/// / parts).
template <int Rows, int K>
struct Operand<Rows, K, true> {
    static constexpr bool transposed = false;
    static constexpr int slab = Rows * 128, bytes = Rows * K * 2;

    /// Issues this block's part of the tile that starts at (first_row, first_k), `parts` of them make the whole. With parts > 1 each goes
    /// to all blocks of `mask`.
    template <int Parts>
    static __device__ __forceinline__ void load(unsigned to, const CUtensorMap* map, unsigned bar, int first_row, int first_k, int part,
                                                unsigned short mask, kw::Evict policy) {
        constexpr int rows = Rows / Parts;
#pragma unroll
        for (int s = 0; s < K / 64; s++) {
            unsigned place = to + s * slab + part * rows * 128;
            if constexpr (Parts > 1)
                kw::tma_load_multicast(place, map, bar, first_k + s * 64, first_row + part * rows, mask, policy);
            else
                kw::tma_load(place, map, bar, first_k + s * 64, first_row, policy);
        }
    }

    /// Descriptor of the 16-wide step `k` of the rows from `row` on (a multiple of 8), tile at shared address `tile`.
    static __device__ __forceinline__ unsigned long long descriptor(unsigned tile, int row, int k) {
        return advanced(kw::wgmma_descriptor<128>(tile, 16, 1024), k / 4 * slab + row * 128 + k % 4 * 32);
    }
};

/// Rows contiguous: Rows / width chunks, each of K rows of `width` elements, swizzled over the whole row. Map: dims (rows, K), box
/// (width, K / parts). The chunk is as wide as Rows allows: 64, 32 or 16 elements.
template <int Rows, int K>
struct Operand<Rows, K, false> {
    static constexpr bool transposed = true;
    static constexpr int width = Rows % 64 == 0 ? 64 : Rows % 32 == 0 ? 32 : 16;
    static constexpr int row_bytes = width * 2, chunk = K * row_bytes, bytes = Rows * K * 2;
    static_assert(Rows % 16 == 0, "rows come in chunks of 16, 32 or 64");

    template <int Parts>
    static __device__ __forceinline__ void load(unsigned to, const CUtensorMap* map, unsigned bar, int first_row, int first_k, int part,
                                                unsigned short mask, kw::Evict policy) {
        constexpr int depth = K / Parts;  // a part is some of the K rows of every chunk
        static_assert(depth % 8 == 0, "a part must be whole swizzle atoms");
#pragma unroll
        for (int c = 0; c < Rows / width; c++) {
            unsigned place = to + c * chunk + part * depth * row_bytes;
            if constexpr (Parts > 1)
                kw::tma_load_multicast(place, map, bar, first_row + c * width, first_k + part * depth, mask, policy);
            else
                kw::tma_load(place, map, bar, first_row + c * width, first_k, policy);
        }
    }

    /// `row` is a multiple of `width`.
    static __device__ __forceinline__ unsigned long long descriptor(unsigned tile, int row, int k) {
        return advanced(kw::wgmma_descriptor<row_bytes>(tile, chunk, 8 * row_bytes), row / width * chunk + k * 16 * row_bytes);
    }
};

/// All wgmma of one stage: Subtiles sums of 64 x N each, P's rows from `first_row` on. Sums: an array as Wgmma takes it.
template <class Element, class P, class Q, int Subtiles, int N, int K, class Sums>
__device__ __forceinline__ void multiply_stage(Sums (&sums)[Subtiles], unsigned p, int first_row, unsigned q, bool accumulate) {
#pragma unroll
    for (int k = 0; k < K / 16; k++) {
#pragma unroll
        for (int s = 0; s < Subtiles; s++)
            kw::Wgmma<Element, N, P::transposed, Q::transposed>::run(sums[s], P::descriptor(p, first_row + s * 64, k),
                                                                     Q::descriptor(q, 0, k), k > 0 || accumulate);
    }
}
// From wgmma's sums to C through shared memory: rounded, turned by stmatrix into rows of C, and stored by TMA in the background.
//
// Unswapped, a warp's 16 rows of a subtile are rows of C: every warp has buffers of its own, and no warp waits for another.
// Swapped, they are 16 columns of C, only 32 bytes of each row; so the four warps of a warpgroup write side by side into one
// buffer with rows of 64 elements, which costs two barriers of the warpgroup and keeps TMA's rows at 128 bytes. stmatrix's .trans
// does the turning.
#include "kernelwright/barrier.cuh"
#include "kernelwright/copy.cuh"
#include "kernelwright/layout.cuh"
#include "kernelwright/mma.cuh"
#include "kernelwright/numeric.cuh"
#include "kernelwright/tma.cuh"

/// Stores subtiles of 64 x N sums of one warpgroup. `Buffers` of them may be on their way to C.
/// Map of C: box of `width` columns x 16 rows, swizzle width * 2 bytes; swapped: 64 columns x `width` rows, swizzle 128 bytes.
template <class Element, int N, bool Swap, int Buffers>
struct TileStore {
    static constexpr int width = N % 64 == 0 ? 64 : N % 32 == 0 ? 32 : 16;  // of wgmma's N side, in one box
    using Buffer = kw::SwizzledTile<Swap ? width : 16, Swap ? 8 : width / 8>;
    static constexpr int box_bytes = Buffer::bytes;
    static constexpr int warpgroup_bytes = Buffers * width * 128;  // of shared memory, aligned to 1024

    unsigned buffers;  // the first one of this warp, swapped: of this warpgroup
    int barrier;       // of this warpgroup (swapped only)
    int next = 0;

    /// `first`: shared address of the warpgroup's warpgroup_bytes.
    __device__ __forceinline__ TileStore(unsigned first, int barrier_id) : barrier(barrier_id) {
        buffers = Swap ? first : first + threadIdx.x / 32 % 4 * Buffers * box_bytes;
    }

    /// The thread that issues the stores and waits for them.
    static __device__ __forceinline__ bool issuer() { return threadIdx.x % (Swap ? 128 : 32) == 0; }

    __device__ __forceinline__ void sync() const {
        if constexpr (Swap)
            kw::named_sync(barrier, 128);
        else
            __syncwarp();
    }

    /// One subtile whose first element lies at (row p, column q) of D. What lies outside C, TMA leaves out.
    template <class Epilogue>
    __device__ __forceinline__ void store(const float (&sums)[N / 2], const Epilogue& epilogue, const CUtensorMap* map_c, int p,
                                          int q) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
        for (int box = 0; box < N / width; box++) {
            const auto loaded = epilogue.template load<width>(p + warp * 16, q + box * width);
            if (issuer()) kw::tma_store_wait<Buffers - 1>();
            sync();
            const unsigned buffer = buffers + next * box_bytes;
#pragma unroll
            for (int j = 0; j < width / 16; j++) {
                // 16 x 16 sums: the matrices (rows 0-7, columns 0-7), (8-15, 0-7), (0-7, 8-15), (8-15, 8-15)
                float x[8];
#pragma unroll
                for (int i = 0; i < 8; i++) x[i] = sums[box * (width / 2) + j * 8 + i];
                epilogue.apply(x, loaded, j * 2);
                epilogue.apply(x + 4, loaded, j * 2 + 1);
                unsigned r0 = kw::pack2<Element>(x[0], x[1]), r1 = kw::pack2<Element>(x[2], x[3]);
                unsigned r2 = kw::pack2<Element>(x[4], x[5]), r3 = kw::pack2<Element>(x[6], x[7]);
                if constexpr (Swap) {
                    int row = j * 16 + lane / 16 * 8 + lane % 8, chunk = warp * 2 + lane / 8 % 2;
                    kw::stmatrix_x4_trans(buffer + Buffer::offset(row, chunk), r0, r1, r2, r3);
                } else {
                    kw::stmatrix_x4(buffer + Buffer::offset(lane % 16, j * 2 + lane / 16), r0, r1, r2, r3);
                }
            }
            kw::fence_async_proxy();
            sync();
            if (issuer()) {
                int column = q + box * width;
                if constexpr (Swap)
                    kw::tma_store(map_c, buffer, p, column);
                else
                    kw::tma_store(map_c, buffer, column, p + warp * 16);
            }
            if (++next == Buffers) next = 0;
        }
    }

    /// Before the block ends: its shared memory must outlive the stores.
    static __device__ __forceinline__ void finish() {
        if (issuer()) kw::tma_store_wait<0>();
    }
};
// Which cluster works on what, in which order: shares of K first, then whole tiles.
//
// Tiles are dealt out whole as long as they fill waves of all clusters. Where the last wave would not be full, the K steps of its
// tiles are put in a row, tile after tile, and cut into one equal share for each cluster (Stream-K: Osama et al., PPoPP 2023; with
// SharedWaves = 2 its "two-tile" variant: the last full wave joins, every share is a tile's K or longer, and at most two clusters
// meet in a tile). Split-K is the same with SplitK shares for every tile. Shares come first, not last as the tiles of a last wave
// would: what their parts cost to add up then hides behind the whole tiles.
#include "kernelwright/layout.cuh"

/// Steps [begin, begin + steps) along K of a tile. Fewer than all: a part of it, which belongs to `share`.
struct Item {
    int tile, begin, steps, share;
};

template <int SplitK, int SharedWaves>
struct Schedule {
    static_assert(SplitK == 1 || SharedWaves == 0, "one way to cut K at a time");
    static constexpr bool cuts = SplitK > 1 || SharedWaves > 0;

    int tiles, k_steps, clusters;
    int shared = 0;                      // the first tiles
    int share, step = 0, share_end = 0;  // this cluster's next steps in the row of shared tiles
    int tile;                            // its next whole tile

    __device__ __forceinline__ Schedule(int tile_count, int steps_of_k, int cluster, int cluster_count)
        : tiles(tile_count), k_steps(steps_of_k), clusters(cluster_count), share(cluster) {
        if constexpr (SplitK > 1) shared = tiles;
        if constexpr (SharedWaves > 0)
            if (tiles % clusters) shared = tiles - kw::larger(0, tiles / clusters - (SharedWaves - 1)) * clusters;
        tile = shared + cluster;
        if constexpr (cuts) open();
    }

    /// Shares of the row of `shared` tiles.
    __device__ __forceinline__ int shares() const {
        return SplitK > 1 ? shared * SplitK : kw::smaller(clusters, shared * k_steps);
    }
    __device__ __forceinline__ int begin_of(int which) const {
        if constexpr (SplitK > 1) return which / SplitK * k_steps + k_steps * (which % SplitK) / SplitK;
        const int row = shared * k_steps;  // the first row % shares() shares have a step more than the others
        return row / shares() * which + kw::smaller(which, row % shares());
    }
    __device__ __forceinline__ int share_of(int row_step) const {  // SharedWaves only
        const int row = shared * k_steps, steps = row / shares(), longer = row % shares(), long_end = longer * (steps + 1);
        return row_step < long_end ? row_step / (steps + 1) : longer + (row_step - long_end) / steps;
    }
    __device__ __forceinline__ void open() {
        if (share < shares()) step = begin_of(share), share_end = begin_of(share + 1);
    }

    __device__ __forceinline__ bool more() const { return cuts && step < share_end || tile < tiles; }

    __device__ __forceinline__ Item next() {
        if (cuts && step < share_end) {
            Item item{step / k_steps, step % k_steps, 0, share};
            item.steps = kw::smaller(share_end - step, k_steps - item.begin);
            step += item.steps;
            if constexpr (SplitK > 1) share += clusters, open();
            return item;
        }
        Item item{tile, 0, k_steps, 0};
        tile += clusters;
        return item;
    }

    /// The shares that meet in a tile are `first` to `first` + `count` - 1. Every share but the first of a tile begins in it, and
    /// so is not the first of two tiles.
    struct Meeting {
        int first, count;
    };
    __device__ __forceinline__ Meeting meeting(int in_tile) const {
        if constexpr (SplitK > 1) return {in_tile * SplitK, SplitK};
        const int first = share_of(in_tile * k_steps);
        return {first, share_of(in_tile * k_steps + k_steps - 1) - first + 1};
    }
};
// The ring of stages between TMA and the warpgroups that multiply: where one stands in it, and how a warp says that it has read a
// stage.
#include "kernelwright/barrier.cuh"

/// A stage of the ring and the parity of its present round.
template <int Stages>
struct RingPosition {
    int slot = 0;
    unsigned parity = 0;

    __device__ __forceinline__ void advance() {
        if (++slot == Stages) slot = 0, parity ^= 1;
    }
    __device__ __forceinline__ void skip(int steps) {
        slot += steps % Stages;
        parity ^= steps / Stages % 2;
        if (slot >= Stages) slot -= Stages, parity ^= 1;
    }
};

/// A warp's share of saying that a stage has been read, to every block that loads into it: one lane for each. A block at (p, q)
/// of ClusterP x ClusterQ shares loads with those of its row and column, itself counted once.
template <int ClusterP, int ClusterQ>
struct Release {
    static constexpr int blocks = ClusterP + ClusterQ - 1;

    unsigned empty;
    bool active;

    /// `empty_barriers`: shared address of the first stage's. `first_rank`: in the cluster, of the block at (0, 0).
    __device__ __forceinline__ Release(unsigned empty_barriers, int p, int q, int first_rank) : empty(empty_barriers) {
        const int lane = threadIdx.x % 32;
        active = lane < blocks;
        if constexpr (blocks > 1) {
            int to_p = lane, to_q = q;
            if (lane >= ClusterP) to_p = p, to_q = lane - ClusterP, to_q += to_q >= q;
            if (active) empty = kw::cluster_address(empty, first_rank + to_q * ClusterP + to_p);
        }
    }

    __device__ __forceinline__ void operator()(int slot) const {
        if (!active) return;
        if constexpr (blocks > 1)
            kw::barrier_arrive_cluster(empty + slot * 8);
        else
            kw::barrier_arrive(empty + slot * 8);
    }
};
// The sums that a thread keeps along K, as wgmma and mma.sync hold them: fp32, or, for Workloads that ask for it (acc=fp16), fp16 in pairs,
// rounded in every step of 16. What comes after the main loop (the parts of a split K, the epilogue) sees fp32 either way.
#include "kernelwright/numeric.cuh"

/// Count sums; the four of each 16 x 8 fragment are neighbours.
template <int Count, bool Fp16>
struct RunningSums {
    using Array = float[Count];
};
template <int Count>
struct RunningSums<Count, true> {
    using Array = unsigned[Count / 2];
};

/// The running sums as floats: those in fp32 themselves, with nothing copied (ptxas 13.0 spilled where they were), those in fp16
/// converted into `room`. Afterwards they are zero: a loop that comes back for the next tile would keep the registers of old ones.
template <class Floats>
__device__ __forceinline__ Floats& as_floats(Floats& running, Floats&) {
    return running;
}
template <class Floats, class Pairs>
__device__ __forceinline__ Floats& as_floats(Pairs& running, Floats& room) {
    static_assert(sizeof(Floats) == 2 * sizeof(Pairs), "two sums in each register");
    unsigned* from = reinterpret_cast<unsigned*>(&running);
    float* to = reinterpret_cast<float*>(&room);
#pragma unroll
    for (int i = 0; i < int(sizeof(Pairs) / 4); i++) {
        kw::unpack2<kw::f16>(from[i], to[i * 2], to[i * 2 + 1]);
        from[i] = 0u;
    }
    return room;
}
// Parts of one tile of C, summed in different blocks, meet in the workspace. Every warpgroup meets only its own counterparts in the
// other blocks. They meet in pairs, as in a knock-out: the first of two to arrive leaves its sums there and is done, the second
// takes them along to the next round. Nobody waits, so any order of blocks will do; the tree is fixed and x + y = y + x, so the
// result does not depend on who came when. A chain of n parts costs its last block log2(n) reads; reading all parts at the end,
// as the last of all, would cost n.
#include "kernelwright/barrier.cuh"
#include "kernelwright/copy.cuh"
#include "kernelwright/layout.cuh"

/// Where the sums of warpgroups meet: Count of each thread. A meeting of two has a number, which is that of the right one's share,
/// and every one of Units warpgroups that work on a tile its own counter and room for the two.
template <int Count, int Units>
struct Meetings {
    static_assert(Count % 4 == 0, "sums move in words of four");
    static constexpr int words = Count / 4;

    float* partials;
    int* counters;  // both zero on entry and left zeroed, as the launch plan promises
    int unit;
    unsigned flag;  // a word of shared memory of this warpgroup
    int barrier;    // of this warpgroup

    /// Where this thread's words lie, 128 words (2 KB) from each other: a warp's are 512 bytes in a row.
    __device__ __forceinline__ float* room(int meeting, bool right) const {
        return partials + ((size_t(meeting) * 2 + right) * Units + unit) * (Count * 128) + threadIdx.x % 128 * 4;
    }

    /// Whether the other of two is through with its sums, to all threads. `arrivals` 1 says the same of ours; with 0 we only look.
    /// One thread fences for the warpgroup, on both sides of its barriers, as a grid barrier does it.
    __device__ __forceinline__ bool other_came(int* counter, int arrivals) const {
        kw::named_sync(barrier, 128);
        if (threadIdx.x % 128 == 0) {
            if (arrivals) __threadfence();
            const int came = atomicAdd(counter, arrivals);
            if (came) __threadfence(), atomicExch(counter, 0);
            kw::store_shared_4(flag, came);
        }
        kw::named_sync(barrier, 128);
        return kw::load_shared_4(flag) != 0;
    }

    static __device__ __forceinline__ void clear(float* from) {
#pragma unroll
        for (int i = 0; i < words; i++) kw::store_global_float4(from + i * 512, make_float4(0.f, 0.f, 0.f, 0.f));
    }

    /// True in the warpgroup whose `sums` are then the whole of `parts` parts, of which it brings number `part`; part p has share
    /// first_share + p.
    __device__ __forceinline__ bool climb(float* sums, int first_share, int part, int parts) const {
#pragma unroll 1
        for (int width = 1; width < parts; width *= 2) {
            const int middle = part / (2 * width) * (2 * width) + width;  // the right one's first part
            if (middle >= parts) continue;                                // nobody to meet in this round
            const bool right = part >= middle;
            const int meeting = first_share + middle;
            int* counter = counters + meeting * Units + unit;
            float *mine = room(meeting, right), *other = room(meeting, !right);
            const bool writes = !other_came(counter, 0);
            if (writes) {
#pragma unroll
                for (int i = 0; i < words; i++)
                    kw::store_global_float4(mine + i * 512,
                                            make_float4(sums[i * 4], sums[i * 4 + 1], sums[i * 4 + 2], sums[i * 4 + 3]));
                if (!other_came(counter, 1)) return false;
            }
            // ptxas sends loads ahead until registers run out (13.0: 21 of 32 beside 128 sums), cleared is what they read after that
#pragma unroll
            for (int i = 0; i < words; i++) {
                const float4 x = kw::load_l2_float4(other + i * 512);
                sums[i * 4] += x.x, sums[i * 4 + 1] += x.y, sums[i * 4 + 2] += x.z, sums[i * 4 + 3] += x.w;
            }
            clear(other);
            if (writes) clear(mine);  // for nobody: the other came in the meantime, and left
        }
        return true;
    }
};

struct Config {
    using Element = kw::bf16;
    static constexpr bool p_k_contiguous = true, q_k_contiguous = true;
    static constexpr bool swap = false;
    static constexpr bool fp16_accumulate = false;
